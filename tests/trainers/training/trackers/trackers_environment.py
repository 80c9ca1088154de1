"""The environment of MLflow with its server and of Trackio, over our own: `make trackers` makes it."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.settings import setting

ROOT = Path(__file__).parents[4]
ENVIRONMENT = Path(setting("RAYSCRIBE_TEST_TRACKERS", str(ROOT / ".venv-trackers")))


def installed(name: str) -> str:
    """A program of the environment; the test skips where it is absent."""
    found = ENVIRONMENT / "bin" / name
    if not found.exists():
        pytest.skip(f"{found} is not there: run `make trackers`")
    return str(found.absolute())


def run_attempts(tracker: str, folder: Path, *attempts: str, **variables: str) -> str:
    """Runs attempts in the environment, see `attempts_process`; gives what they print."""
    command = [installed("python"), "-m", "tests.trainers.training.trackers.attempts_process", tracker, str(folder)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), **variables}
    done = subprocess.run(
        [*command, *attempts], env=environment, capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout
