"""Gathers the wheels that the suite needs next to torch and transformers, for a machine without a network.

    python -m tests.gpu.wheels gpu-wheels         here: gathers them, pinned, and adds up their sizes
    python -m pip install --no-index --no-deps --target gpu-site gpu-wheels/*.whl     there, then PYTHONPATH=gpu-site

torch and transformers stay the machine's own, with all that they bring along.
"""

import argparse
import re
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

CONSTRAINTS = Path(__file__).parents[2] / "constraints.txt"
MOST_BYTES = 60_000_000
# What the training path imports, and what those import that transformers does not bring along.
PACKAGES = (
    *("accelerate", "psutil"),
    "peft",
    *("pydantic", "pydantic_core", "annotated-types", "typing-inspection", "typing_extensions"),
    "pyarrow",
    *("soundfile", "cffi", "pycparser"),
    "soxr",
    *("jiwer", "RapidFuzz", "click"),
    *("langcodes", "language_data", "marisa-trie"),
    *("whisper-normalizer", "more-itertools"),
    *("pytest", "pluggy", "iniconfig", "Pygments", "pytest-timeout"),
)
# Not the pinned version, whose wheel alone is 55 MB: this one's is 43, and reads and writes the same files.
OTHER_VERSIONS = {"pyarrow": "21.0.0"}
# pip matches each glibc exactly.
PLATFORMS = [f"manylinux_2_{minor}_x86_64" for minor in (5, 12, 17, 24, 26, 27, 28)]
PLATFORMS += ["manylinux1_x86_64", "manylinux2010_x86_64", "manylinux2014_x86_64"]


def pins(text: str) -> dict[str, str]:
    """Version of each package of a constraints file, by its normalized name."""
    found = (line.split("==") for line in text.splitlines() if "==" in line and not line.startswith("#"))
    return {normalized(name): version.split(";")[0].strip() for name, version in found}


def normalized(name: str) -> str:
    """A package's name as PEP 503 compares it."""
    return re.sub(r"[-_.]+", "-", name).strip().lower()


def command(folder: Path, python: str, pinned: dict[str, str]) -> list[str]:
    """What pip is asked for."""
    versions = {**pinned, **OTHER_VERSIONS}
    wanted = [f"{name}=={versions[normalized(name)]}" for name in PACKAGES]
    platforms = [word for name in PLATFORMS for word in ("--platform", name)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check"]
    target = ["--no-deps", "--only-binary=:all:", "--implementation", "cp", "--python-version", python, *platforms]
    return [*pip, *target, "--dest", str(folder), *wanted]


def main(arguments: Sequence[str] | None = None) -> int:
    """Gathers them; 1 where they are more than `MOST_BYTES`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--python", default="3.12", help="the machine's (default: 3.12)")
    given = parser.parse_args(arguments)
    subprocess.run(command(given.folder, given.python, pins(CONSTRAINTS.read_text(encoding="utf-8"))), check=True)
    wheels = sorted(given.folder.glob("*.whl"), key=lambda wheel: -wheel.stat().st_size)
    for wheel in wheels:
        print(f"{wheel.stat().st_size / 1e6:6.1f} MB  {wheel.name}")
    total = sum(wheel.stat().st_size for wheel in wheels)
    print(f"{total / 1e6:6.1f} MB  {len(wheels)} wheels in {given.folder}; at most {MOST_BYTES / 1e6:.0f}")
    return int(total > MOST_BYTES)


if __name__ == "__main__":
    raise SystemExit(main())
