"""Fixtures that every test may use: where the recorded speech is, and one Ray for the whole session."""

import os
from pathlib import Path

import pytest

pytest_plugins = ["tests.s3", "tests.postgres"]

DEFAULT_SPEECH_DATA = Path(__file__).resolve().parents[2] / "shared" / "data"


@pytest.fixture(scope="session")
def speech_data() -> Path:
    """The folder of recorded speech that RAYSCRIBE_TEST_DATA names; the test skips where it is absent."""
    folder = Path(os.environ.get("RAYSCRIBE_TEST_DATA", DEFAULT_SPEECH_DATA))
    if not folder.is_dir():
        pytest.skip(f"no recorded speech at {folder}: set RAYSCRIBE_TEST_DATA to its folder")
    return folder
