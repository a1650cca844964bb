"""Build .venv from the pinned, hashed requirements. Run by make before every target; ends at once when nothing changed.

`run` installs what the hub itself needs, `dev` everything (Spark, tests, benchmarks). A second argument names another
folder than .venv. uv installs the packages where it is there, else pip.
Java is needed only by Spark: on Debian as root it is installed when missing, elsewhere the message says what to do.
With Java, `dev` makes an archive of Spark's classes, with which the sessions of tests start sooner.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import venv
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / (sys.argv[2] if len(sys.argv) > 2 else ".venv")
PYTHON = VENV / "bin" / "python"
ARCHIVE = VENV / "spark-classes.jsa"
CORE = ROOT / "messagehub" / "shm" / "core"
# As a path in a .pth file, which type checkers and editors read. The default, an import hook, is invisible to them.
OWN_PACKAGE = (
    *("--no-deps", "--no-build-isolation", "--config-settings", "editable_mode=compat"),
    *("--editable", str(ROOT)),
)


def main(kind: str) -> None:
    if sys.platform != "linux":
        sys.exit("MessageHub runs on Linux only: it relies on open-file-description locks and /dev/shm.")
    if sys.version_info < (3, 11):  # noqa: UP036  this runs before anything checks the version
        sys.exit(f"MessageHub needs Python 3.11 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.11")
    if not is_installed(kind):
        refuse_environment_of_another_tree()
        install(kind)
    if not is_built():
        refuse_environment_of_another_tree()
        build()
    if kind == "dev":
        ensure_java()
        if not is_archived():
            refuse_environment_of_another_tree()
            archive_classes()


def refuse_environment_of_another_tree() -> None:
    """An installation through a link would make the other tree's programs import this one."""
    there = VENV.resolve()
    owner = next((folder for folder in there.parents if (folder / "tools" / "setup.py").exists()), ROOT)
    if owner != ROOT:
        sys.exit(
            f"setup: {VENV.relative_to(ROOT)} leads to {there}, the environment of another tree, and is not changed.\n"
            "       Remove the link to build an environment for this tree, or run make setup there"
        )


def is_installed(kind: str) -> bool:
    """Whether .venv has these requirements already; those of `dev` include those of `run`."""
    return any(
        stamp(installed).exists() and stamp(installed).read_text() == fingerprint(installed)
        for installed in {kind, "dev"}
    )


def stamp(kind: str) -> Path:
    return VENV / f".{kind}"


def requirements(kind: str) -> Path:
    return ROOT / "requirements" / f"{kind}.txt"


def fingerprint(kind: str) -> str:
    """Changes with whatever an installation depends on: the requirements, our own metadata, the place."""
    project = (ROOT / "pyproject.toml").read_text().partition("[tool.ruff]")[0]
    text = "\n".join([requirements(kind).read_text(), project, str(ROOT), *OWN_PACKAGE])
    return hashlib.sha256(text.encode()).hexdigest()


def install(kind: str) -> None:
    if not PYTHON.exists():
        print(f"setup: creating {VENV.relative_to(ROOT)}", flush=True)
        venv.create(VENV, with_pip=True)
    total = len(re.findall(r"^[\w.-]+(\[.*])?==", requirements(kind).read_text(), re.MULTILINE))
    print(f"setup: installing {total} packages of requirements/{kind}.txt", flush=True)
    packages("--require-hashes", "--requirement", str(requirements(kind)), total=total)
    auto_registration()
    stamp("core").unlink(missing_ok=True)  # our own package is installed with it, perhaps with other metadata now
    stamp(kind).write_text(fingerprint(kind))


def is_built() -> bool:
    """Whether the rings' core was compiled from the sources that are here, or could not be by the compiler that is."""
    return stamp("core").exists() and stamp("core").read_text() == core_fingerprint()


def core_fingerprint() -> str:
    sources = [(CORE / name).read_bytes() for name in ("ring.h", "_ring.c")]
    compiler = f"{shutil.which('cc')} {shutil.which('gcc')} {is_there()}".encode()
    return hashlib.sha256(b"\0".join([*sources, compiler])).hexdigest()


def is_there() -> bool:
    return (CORE / "_ring.abi3.so").exists()


def build() -> None:
    """Compile the rings' core. Without a compiler everything works as well, with slower rings."""
    (CORE / "_ring.abi3.so").unlink(missing_ok=True)  # an old one would do for the new sources
    packages(*OWN_PACKAGE)
    if not is_there():
        print(
            "setup: the core of rings was not compiled (no C compiler, or no headers of Python): rings run in Python,\n"
            "       slower. For example: sudo apt-get install gcc python3-dev, then make again",
            flush=True,
        )
    stamp("core").write_text(core_fingerprint())


def packages(*arguments: str, total: int = 0) -> None:
    uv = shutil.which("uv")
    if uv:  # draws its own progress
        quiet = [] if total and sys.stdout.isatty() else ["--quiet"]
        command = [uv, "pip", "install", "--python", str(PYTHON), *quiet, *arguments]
        if subprocess.run(command, check=False).returncode:
            sys.exit("setup: uv failed, see above")
        return
    command = [str(PYTHON), "-m", "pip", "--disable-pip-version-check", "install", *arguments]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as pip:
        assert pip.stdout is not None
        said = follow(pip.stdout, total)
    if pip.returncode:
        sys.exit("setup: pip failed\n" + "".join(said[-30:]))


def follow(lines: Iterable[str], total: int) -> list[str]:
    """Show pip's progress: one line that counts on a terminal, elsewhere a line for every large download."""
    said, count, is_terminal = [], 0, sys.stdout.isatty()
    for line in lines:
        said.append(line)
        words = line.split()
        if words[:1] in (["Collecting"], ["Requirement"]):
            count += 1
            if is_terminal and total:
                print(f"\r\033[Ksetup: {count} of {total} {words[1]}", end="", flush=True)
        elif words[:1] == ["Downloading"] and " MB)" in line and not is_terminal:
            print(f"setup: {count} of {total}, downloading {' '.join(words[1:])}", flush=True)
        elif words[:2] == ["Installing", "collected"] and total:
            print(f"{chr(13) if is_terminal else ''}setup: all there, installing them", flush=True)
    return said


def auto_registration() -> None:
    """Spark finds data sources by looking through the path; an editable install alone is invisible to it."""
    code = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([str(PYTHON), "-c", code], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    source = ROOT / "messagehub" / "spark" / "auto_registration"
    (Path(site) / "pyspark_messagehub.pth").write_text(f"{source}\n")


def ensure_java() -> None:
    if shutil.which("java"):
        return
    if shutil.which("apt-get") and os.geteuid() == 0:
        print("setup: installing Java 17 for Spark", flush=True)
        environment = os.environ | {"DEBIAN_FRONTEND": "noninteractive"}
        for command in (["update", "-qq"], ["install", "-y", "-qq", "openjdk-17-jre-headless"]):
            subprocess.run(["apt-get", *command], stdout=subprocess.DEVNULL, check=True, env=environment)
    else:
        print(
            "setup: no Java found. Only the Spark parts need it; install version 17 or newer, for example\n"
            "       sudo apt-get install openjdk-17-jre-headless",
            flush=True,
        )


def java() -> str | None:
    """The program that Spark starts, found as Spark finds it."""
    home = os.environ.get("JAVA_HOME")
    return shutil.which(f"{home}/bin/java") if home else shutil.which("java")


def is_archived() -> bool:
    """Whether the archive fits the Java and the Spark that are here, or none can be made with them."""
    made_for = archive_fingerprint()
    return not made_for or (stamp("classes").exists() and stamp("classes").read_text() == made_for)


def archive_fingerprint() -> str:
    """Name the versions of Java and Spark. The JVM ignores an archive if the jars' files are not those it was made of,
    therefore the time of the folder is in it. Empty without Java or Spark."""
    program, cores = java(), sorted(VENV.resolve().glob("lib/python*/site-packages/pyspark/jars/spark-core_*.jar"))
    if not program or not cores:
        return ""
    said = subprocess.run(
        [program, "-version"], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    version = [line for line in said.stdout.splitlines() if not line.startswith("Picked up")]
    jars = f"{cores[0]} {cores[0].parent.stat().st_mtime_ns}"
    return "\n".join([*version, jars, f"archive: {ARCHIVE.exists()}", ""])


def archive_classes() -> None:
    """Write the classes that Spark loads to an archive. Sessions that lack it only start more slowly.

    The archive appears under its name when it is complete: a JVM crashes on a file that is cut off.
    """
    print("setup: archiving Spark's classes, for tests to start faster", flush=True)
    ARCHIVE.unlink(missing_ok=True)
    new = ARCHIVE.with_suffix(f".{os.getpid()}")
    environment = {name: value for name, value in os.environ.items() if "SPARK" not in name and name != "PYTHONPATH"}
    environment |= {
        "SPARK_SUBMIT_OPTS": f'"-XX:ArchiveClassesAtExit={new}" -Xlog:cds*=off',
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": str(PYTHON),
    }
    command = [str(PYTHON), str(ROOT / "tools" / "spark_classes.py")]
    try:
        done = subprocess.run(
            command,
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=600,
            check=False,
        )
        if done.returncode == 0 and new.exists():
            new.replace(ARCHIVE)
        else:
            said = (done.stdout.strip().splitlines() or ["no reason given"])[-1]
            print(f"setup: Spark's classes were not archived, tests of Spark start more slowly: {said}", flush=True)
    except subprocess.TimeoutExpired:
        print("setup: Spark's classes were not archived in 10 minutes, tests of Spark start more slowly", flush=True)
    finally:
        new.unlink(missing_ok=True)
    stamp("classes").write_text(archive_fingerprint())


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "dev")
