"""The wheel, built from the repository as `pip install rayscribe` builds it from what is published."""

import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PACKAGES = ("jobs", "trainers", "runtime_env", "cluster_configs")
FILES = ("pyproject.toml", "setup.py", "rayscribe.py", "task.py", "README.md", "LICENSE")


def build_wheel(folder: Path) -> Path:
    """Builds the source distribution in a folder, and of that the wheel; gives its path."""
    source, unpacked = folder / "source", folder / "unpacked"
    for package in PACKAGES:
        shutil.copytree(ROOT / package, source / package, ignore=shutil.ignore_patterns("__pycache__"))
    for name in FILES:
        shutil.copy(ROOT / name, source)
    _build("sdist", source, folder)
    (archive,) = folder.glob("*.tar.gz")
    # Python 3.11.0 to 3.11.3 knows no filter; it is our own.
    shutil.unpack_archive(archive, unpacked)
    (inside,) = unpacked.iterdir()
    _build("wheel", inside, folder)
    (wheel,) = folder.glob("*.whl")
    return wheel


def _build(kind: str, source: Path, target: Path) -> None:
    build = f"import sys; from setuptools.build_meta import build_{kind} as build; build(sys.argv[1])"
    command = [sys.executable, "-c", build, str(target)]
    subprocess.run(command, cwd=source, check=True, capture_output=True, timeout=300)
