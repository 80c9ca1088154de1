"""Fixtures that every test may use, and how many examples property tests try."""

from pathlib import Path

import hypothesis
import pytest

from tests import settings

pytest_plugins = ["tests.s3", "tests.postgres"]

EXAMPLES = 100
hypothesis.settings.register_profile("rayscribe", deadline=None, max_examples=settings.examples(EXAMPLES))
hypothesis.settings.load_profile("rayscribe")


@pytest.fixture(scope="session")
def speech_data() -> Path:
    """The folder of recorded speech that RAYSCRIBE_TEST_DATA names; the test skips where it is absent."""
    folder = settings.speech_data()
    if not folder.is_dir():
        pytest.skip(f"no recorded speech at {folder}: set RAYSCRIBE_TEST_DATA to its folder")
    return folder
