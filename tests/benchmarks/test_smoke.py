"""Every benchmark runs to its end, in a form of next to nothing whose figures mean nothing."""

from pathlib import Path

import pytest

from tests.benchmarks import __main__ as stock
from tests.benchmarks import api, augmentation, ledger, queue, short_context, unheard_speakers
from tests.benchmarks.scale import (
    bucket_reading,
    cached_training,
    coordination,
    driver_memory,
    node_scaling,
    shard_fetches,
    training_start,
)
from tests.benchmarks.table import MET, MISSED, UNDECIDED

pytestmark = [pytest.mark.long, pytest.mark.integration]


@pytest.mark.timeout(1800)
def test_the_comparison_with_the_stock_recipe(capsys: pytest.CaptureFixture[str]) -> None:
    assert stock.main(["--smoke"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    judged = tuple(f" {word} |" for word in (MET, MISSED, UNDECIDED))
    for row in (
        "prepare, clips/s",
        "train, clips/s at 30 s (Ray TorchTrainer)",
        "train, clips/s, buckets",
        "train, peak MB",
        "evaluate, clips/s at 30 s",
        "CTC, train",
        "CTC, evaluate",
        "start to the first step, s (rayscribe train",
        "start to the first step, s (submit",
    ):
        assert [line for line in rows if line.startswith(f"| {row}") and line.endswith(judged)], row
    assert [line for line in rows if line.startswith("| transcribe, clips/s (WER ")]


def test_one_comparison_alone(capsys: pytest.CaptureFixture[str]) -> None:
    assert stock.main(["--smoke", "--only", "ctc-evaluate"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0].strip("| ") for row in rows] == [
        "what",
        "CTC, evaluate, clips/s",
        "CTC, evaluate, clips/s : bare loop",
    ]


def test_the_queue(capsys: pytest.CaptureFixture[str]) -> None:
    assert queue.main(["--turns", "1", "--waiting", "200"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.endswith((" yes |", " NO |"))]
    assert len(rows) == len(queue.SITUATIONS) + 2


def test_the_ledger(capsys: pytest.CaptureFixture[str]) -> None:
    assert ledger.main(["--runs", "2000", "--waiting", "500"]) == 0
    assert "usage(by=user), everything" in capsys.readouterr().out


def test_the_api(capsys: pytest.CaptureFixture[str]) -> None:
    assert api.main(["--runs", "2000", "--waiting", "500", "--turns", "3", "--requests", "100"]) == 0
    assert "resident memory" in capsys.readouterr().out


def test_augmentation(capsys: pytest.CaptureFixture[str]) -> None:
    assert augmentation.main(["--smoke"]) == 0
    assert "| all of it |" in capsys.readouterr().out


def test_unheard_speakers(
    speech_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("FSDD", str(speech_data / "fsdd"))
    changes = ["--set", "training.max_steps=2", "--set", "training.save_steps=2", "--set", "training.eval_steps=2"]
    assert unheard_speakers.main(["--speakers", "theo", *changes]) == 0
    assert "| all | 430 |" in capsys.readouterr().out


def test_short_context(speech_data: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("FSDD", str(speech_data / "fsdd"))
    assert short_context.main(["--smoke"]) == 0
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [row.split(" | ")[0] for row in rows] == ["| tuned on", "| before", *["| new"] * 2, *["| old"] * 2]


def test_reading_from_a_bucket(capsys: pytest.CaptureFixture[str]) -> None:
    assert bucket_reading.main(["--clips", "256"]) == 0
    assert "| bucket : disk" in capsys.readouterr().out


def test_fetching_shards(capsys: pytest.CaptureFixture[str]) -> None:
    assert shard_fetches.main(["--shards", "6", "--window", "2", "--ranks", "2"]) == 0
    assert "2 of 4 ranks on the node" in capsys.readouterr().out


def test_preparing_on_two_nodes(capsys: pytest.CaptureFixture[str]) -> None:
    assert node_scaling.main(["--clips", "16", "--turns", "1"]) == 0
    assert "| two : one, median of the turns |" in capsys.readouterr().out


def test_training_with_a_part_of_the_shards(capsys: pytest.CaptureFixture[str]) -> None:
    assert cached_training.main(["--clips", "160"]) == 0
    assert "| room for 1/5: share of step time spent waiting for data, % |" in capsys.readouterr().out


def test_the_start_of_a_training(capsys: pytest.CaptureFixture[str]) -> None:
    assert training_start.main(["--clips", "4000"]) == 0
    assert "| first rank of a node, 4,000 clips, GB |" in capsys.readouterr().out


@pytest.mark.parametrize("kind", driver_memory.WRITERS)
def test_the_driver_s_memory(kind: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert driver_memory.main(["--rows", "100", "600", "--format", kind]) == 0
    assert "| times as much |" in capsys.readouterr().out


def test_the_coordination_of_ranks(capsys: pytest.CaptureFixture[str]) -> None:
    assert coordination.main(["--ranks", "2", "4"]) == 0
    assert "| requests to the storage, 1,000 ranks, extrapolated |" in capsys.readouterr().out
