"""A Ray that task.py starts on this machine for itself."""

import os
import subprocess
import sys
from pathlib import Path

TRAIN = """
import os, ray
from tests.trainers.synthetic import config
from trainers.distributed.ray_connection import connected

with connected(config({})):
    print(ray.get(ray.remote(lambda: os.environ.get("RAY_AUTH_TOKEN", "none")).remote()))
"""


def started_in(home: Path) -> str:
    """Starts a Ray of its own in a process with this home folder.

    Returns:
        The token that a worker of it has in its environment.
    """
    known = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    done = subprocess.run(
        [sys.executable, "-c", TRAIN],
        env={**known, "HOME": str(home)},
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip()


def test_a_local_ray_writes_no_token_for_others_to_find(tmp_path: Path) -> None:
    token = started_in(tmp_path)
    # The Ray is closed to others all the same.
    assert len(token) == 64
    assert not (tmp_path / ".ray").exists()
