import shutil
from pathlib import Path

import pytest

from trainers.run_folder.disk_space import DiskEstimate, checkpoint_bytes


def estimate(**changes: object) -> DiskEstimate:
    roomy = {
        "checkpoint_bytes": 10**10,
        "staging": "/tmp/staging",
        "staging_free_bytes": 2 * 10**10,
        "kept": 5,
        "storage": "/runs",
        "storage_free_bytes": 5 * 10**10,
    }
    return DiskEstimate(**{**roomy, **changes})  # type: ignore[arg-type]


def test_what_fits_is_said_with_the_numbers() -> None:
    assert estimate().problem is None
    staged, stored = "up to 2 in /tmp/staging (20.0 GB free)", "up to 5 in /runs (50.0 GB free)"
    assert estimate().line == f"disk: a checkpoint takes about 10.0 GB · {staged} · {stored}"


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"staging_free_bytes": 2 * 10**10 - 1}, "/tmp/staging: 20.0 GB are free, and 2 checkpoints of about 10.0 GB"),
        ({"storage_free_bytes": 4 * 10**10}, "/runs: 40.0 GB are free, and the run keeps up to 5 .* free 50.0 GB"),
        ({"kept": None, "storage_free_bytes": 10**9}, "the run keeps all of its checkpoints.* free 10.0 GB"),
    ],
)
def test_what_does_not_fit_is_refused_with_the_need(changes: dict[str, object], words: str) -> None:
    with pytest.raises(AssertionError, match=words):
        assert estimate(**changes).problem is None, estimate(**changes).problem


def test_an_adapter_s_run_needs_room_for_whole_models_too() -> None:
    roomy: dict[str, object] = {"checkpoint_bytes": 10**8, "models_bytes": 3 * 10**9}
    assert estimate(**roomy).line.endswith(", and 3.0 GB of complete models")
    for name in ("staging", "storage"):
        assert estimate(**roomy, **{f"{name}_free_bytes": 4 * 10**9}).problem is None
        problem = estimate(**roomy, **{f"{name}_free_bytes": 3 * 10**9}).problem
        assert problem is not None and ", and 3.0 GB of complete models: free 3." in problem


def test_a_bucket_is_not_asked() -> None:
    assert estimate(storage=None, storage_free_bytes=0).problem is None


def test_adam_keeps_three_numbers_a_weight_and_replaced_checkpoints_make_room(tmp_path: Path) -> None:
    disk = shutil.disk_usage(tmp_path).total
    assert checkpoint_bytes(1000, 1000) == 12_000
    assert checkpoint_bytes(1000, 10) == 4_080, "of what is frozen, the weights only"
    made = DiskEstimate.of(
        checkpoint_bytes(1000, 1000), tmp_path, 3, str(tmp_path), existing_bytes=10**15, fetched_bytes=0
    )
    assert (made.checkpoint_bytes, made.kept) == (12_000, 5)
    assert 0 < made.staging_free_bytes <= disk < 10**15 < made.storage_free_bytes
    everything = DiskEstimate.of(12_000, tmp_path, None, str(tmp_path), existing_bytes=10**15, fetched_bytes=10**16)
    assert everything.storage_free_bytes <= disk, "where all are kept, nothing makes room"
    assert everything.staging_free_bytes > 10**16, "what was fetched goes once it is loaded"
