"""Hosts whose wall clock shows another time: a library that all their processes load, in Python as in C."""

import shutil
import subprocess
from pathlib import Path

import pytest

HOUR = 3600
SHIFTED = """
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/time.h>
#include <time.h>

int clock_gettime(clockid_t clock, struct timespec *time) {
    static int (*real)(clockid_t, struct timespec *);
    if (!real) real = dlsym(RTLD_NEXT, "clock_gettime");
    int failed = real(clock, time);
    if (!failed && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) time->tv_sec += SECONDS;
    return failed;
}
int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    time->tv_sec = now.tv_sec;
    time->tv_usec = now.tv_nsec / 1000;
    return 0;
}
time_t time(time_t *seconds) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (seconds) *seconds = now.tv_sec;
    return now.tv_sec;
}
"""


def shifted(directory: Path, seconds: int) -> str:
    """Return a library that shows a wall clock which is so many seconds ahead."""
    compiler = shutil.which("cc")
    if compiler is None:
        pytest.skip("a host with another clock takes a C compiler: apt install gcc")
    source, library = directory / f"clock{seconds}.c", directory / f"clock{seconds}.so"
    source.write_text(SHIFTED)
    options = ["-shared", "-fPIC", "-O1", f"-DSECONDS={seconds}", "-o", str(library), str(source), "-ldl"]
    subprocess.run([compiler, *options], check=True, timeout=60)
    return str(library)
