"""The wheel holds the ready files and the specs, as the repository has them."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

from tests.test_architecture import PACKAGES, ROOT


def test_the_wheel_has_every_file_of_cluster_configs(tmp_path: Path) -> None:
    for name in ("pyproject.toml", "README.md", "LICENSE", "task.py"):
        shutil.copy(ROOT / name, tmp_path)
    for package in PACKAGES:
        shutil.copytree(ROOT / package, tmp_path / package, ignore=shutil.ignore_patterns("__pycache__"))
    build = "from setuptools.build_meta import build_wheel; build_wheel('dist')"
    subprocess.run([sys.executable, "-c", build], cwd=tmp_path, check=True, capture_output=True, timeout=300)
    (wheel,) = (tmp_path / "dist").glob("*.whl")
    with zipfile.ZipFile(wheel) as archive:
        packed = {name for name in archive.namelist() if name.startswith("cluster_configs/")}
    folder = tmp_path / "cluster_configs"
    assert packed == {path.relative_to(tmp_path).as_posix() for path in folder.rglob("*") if path.is_file()}
    assert "cluster_configs/specs/local.yaml" in packed
