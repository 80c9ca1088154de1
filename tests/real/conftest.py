"""Fixtures of tests of pretrained weights."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests import settings


@pytest.fixture(scope="session")
def real_weights() -> Callable[[str], Path]:
    """Returns the folder of a model's weights; skips the test where it is absent."""

    def folder(name: str) -> Path:
        found = settings.real_weights() / name
        if not found.is_dir():
            pytest.skip(f"no weights at {found}: run `make real`, or set RAYSCRIBE_TEST_WEIGHTS to their folder")
        return found

    return folder
