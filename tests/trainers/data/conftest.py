"""Manifests, and where they are prepared to."""

from pathlib import Path

import pytest

from tests.trainers.data.preparing import DURATIONS_S, TEXTS, Cache
from tests.trainers.synthetic import write_corpus, write_rows


@pytest.fixture
def folder(tmp_path: Path) -> Cache:
    return Cache(str(tmp_path / "prepared sets"), None)


@pytest.fixture(params=["folder", "bucket"])
def cache(request: pytest.FixtureRequest, folder: Cache) -> Cache:
    if request.param == "folder":
        return folder
    bucket = request.getfixturevalue("s3_bucket")
    return Cache(f"{bucket}/prepared", request.getfixturevalue("s3_endpoint"))


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """Five recordings."""
    return write_corpus(tmp_path, TEXTS, durations_s=DURATIONS_S)


@pytest.fixture
def long_manifest(manifest: Path) -> Path:
    """600 rows of the same five recordings: three shards."""
    rows = [(f"train/{row % 5:03d}.wav", TEXTS[row % 5]) for row in range(600)]
    return write_rows(manifest.with_name("long.csv"), rows)
