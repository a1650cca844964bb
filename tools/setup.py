"""Build .venv from the pinned, hashed requirements. Run by make; safe to run again.

`run` installs what the hub itself needs, `dev` everything (Spark, tests, benchmarks).
Java is needed only by Spark: on Debian as root it is installed when missing, elsewhere the message says what to do.
"""

import os
import shutil
import subprocess
import sys
import venv
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
PYTHON = VENV / "bin" / "python"


def main(kind: str) -> None:
    if sys.platform != "linux":
        sys.exit("MessageHub runs on Linux only: it relies on open-file-description locks and /dev/shm.")
    if sys.version_info < (3, 11):  # noqa: UP036  this runs before anything checks the version
        sys.exit(f"MessageHub needs Python 3.11 or newer, this is {sys.version.split()[0]}: make PYTHON=python3.11")
    if not PYTHON.exists():
        print("setup: creating .venv", flush=True)
        venv.create(VENV, with_pip=True)
    print(f"setup: installing requirements/{kind}.txt (the first time takes a few minutes)", flush=True)
    pip("install", "--require-hashes", "--requirement", str(ROOT / "requirements" / f"{kind}.txt"))
    pip("install", "--no-deps", "--no-build-isolation", "--editable", str(ROOT))
    auto_registration()
    if kind == "dev":
        ensure_java()
    (VENV / f".{kind}").touch()


def pip(*arguments: str) -> None:
    command = [str(PYTHON), "-m", "pip", "--quiet", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, stderr=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.exit(f"setup: pip failed\n{done.stderr}")


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


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "dev")
