"""What a training's start costs at a million utterances: python -m tests.benchmarks.scale.training_start.

Index, labels and batch plan of a synthetic index, measured in processes of their own: the driver, which encodes the
labels the first time; the first rank of a node, which decompresses the index; and the next one, as all others are.
Memory is what a process has at its peak beyond its imports, mapped files included, which all of a node share. What ten
million cost is extrapolated from two sizes.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

import numpy as np
import pyarrow as pa

from tests.benchmarks.scale.figures import Figure, peak_gb, print_figures
from trainers.config.loader import build_config
from trainers.config.schema import TrainConfig
from trainers.data.prepared_set import PreparedSet, find, finish
from trainers.models.families import family_of
from trainers.models.labels import labels_of
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.models.whisper.whisper_recognizer import WhisperRecognizer
from trainers.storage import open_storage
from trainers.training.planning import plan_training

CLIPS = 1_000_000
EXTRAPOLATED = 10_000_000
MOST_S, MOST_GB = 20.0, 0.5
KEY = "set"
WORDS = 12
BATCH = 256


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale.training_start", description=__doc__)
    parser.add_argument("--clips", type=int, default=CLIPS)
    parser.add_argument("--in-process", nargs=3, metavar=("PART", "FOLDER", "NODE"), help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.in_process:
        part, folder, node = chosen.in_process
        with patch.object(tempfile, "tempdir", node):
            print(json.dumps(_measure(PARTS[part], Path(folder))))
        return 0
    large: int = chosen.clips
    sizes = {clips: _sizes(clips) for clips in (large // 4, large)}
    print(f"texts of {WORDS} words, {BATCH} utterances a step\n")
    print_figures([figure for name in sizes[large] for figure in _figures(name, sizes, large)])
    return 0


def _sizes(clips: int) -> dict[str, tuple[float, float]]:
    """Of each process: seconds, and gigabytes beyond its imports."""
    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as temporary:
        folder, node = Path(temporary) / "sets", Path(temporary) / "node"
        folder.mkdir()
        node.mkdir()
        _write_set(folder, clips)
        names = {"driver, labels encoded": "driver", "driver, labels there": "driver", "rank": "rank"}
        measured = {name: _in_process(part, folder, node) for name, part in names.items()}
        other = Path(temporary) / "another node"
        other.mkdir()
        measured["first rank of a node"] = _in_process("rank", folder, other)
        return measured


def _figures(name: str, sizes: dict[int, dict[str, tuple[float, float]]], large: int) -> list[Figure]:
    small, most = large // 4, MOST_S if name != "driver, labels encoded" else None
    figures = []
    for column, (unit, bound) in enumerate((("s", most), ("GB", MOST_GB if "rank" in name else None))):
        less, more = sizes[small][name][column], sizes[large][name][column]
        figures.append(Figure(f"{name}, {large:,} clips, {unit}", more, most=bound))
        beyond = more + (more - less) / (large - small) * (EXTRAPOLATED - large)
        figures.append(Figure(f"{name}, {EXTRAPOLATED:,} clips, {unit}, extrapolated", beyond))
    return figures


def _in_process(part: str, folder: Path, node: Path) -> tuple[float, float]:
    command = [sys.executable, "-m", "tests.benchmarks.scale.training_start", "--in-process", part]
    result = subprocess.run([*command, str(folder), str(node)], check=True, stdout=subprocess.PIPE, text=True)
    seconds, gigabytes = json.loads(result.stdout.splitlines()[-1])
    return seconds, gigabytes


def _write_set(folder: Path, clips: int) -> None:
    generator = np.random.default_rng(3)
    letters = np.array(list("abcdefghijklmnopqrstuvwxyz"))
    words = np.array(["".join(generator.choice(letters, generator.integers(2, 9))) for _ in range(5000)])
    texts = [" ".join(row) for row in words[generator.integers(0, len(words), (clips, WORDS))]]
    index = pa.table(
        {
            "id": [f"speaker-{row % 1000:04d}/clip-{row:08d}.flac" for row in range(clips)],
            "shard": np.arange(clips) // 256,
            "row": np.arange(clips) % 256,
            "duration_s": np.clip(generator.lognormal(1.6, 0.55, clips), 0.3, 30.0),
            "text": texts,
        }
    )
    (folder / "set-bench").mkdir()
    finish(open_storage(str(folder)), "set-bench", KEY, index, [], 0)
    processor = family_of(_config().model).new_processor(texts[:20_000], _config().model)
    processor.save_pretrained(folder / "processor")


def _config() -> TrainConfig:
    content = {
        "data": {"train": "train.csv", "validation": "valid.csv"},
        "model": {"init": "scratch", "language": "English"},
        "training": {"max_steps": 10, "global_batch_size": BATCH, "per_device_train_batch_size": BATCH},
    }
    return build_config(content, origin="benchmark", environment={})


def _measure(part: Callable[[PreparedSet, Any], object], folder: Path) -> tuple[float, float]:
    prepared = find(open_storage(str(folder)), KEY, PreparedSet("", "").storage_options)
    assert prepared is not None
    processor = family_of(_config().model).open_processor(_config().model, folder / "processor")
    before, began = peak_gb(), time.perf_counter()
    part(prepared, processor)
    return time.perf_counter() - began, peak_gb() - before


def _drive(prepared: PreparedSet, processor: Any) -> None:
    """The driver: knows how long each label is."""
    assert labels_of(prepared, WhisperFamily(), processor).lengths.max() < 448


def _begin_rank(prepared: PreparedSet, processor: Any) -> None:
    """A rank up to its first utterances."""
    weightless = SimpleNamespace(config=SimpleNamespace(max_target_positions=448))
    recognizer = WhisperRecognizer(weightless, processor, WhisperFamily())
    plan, clips = plan_training(_config(), prepared, recognizer, 1)
    for step in range(10):
        for row in plan.batch(step).rows:
            assert clips.labels[int(row)]


PARTS: dict[str, Callable[[PreparedSet, Any], object]] = {"driver": _drive, "rank": _begin_rank}


if __name__ == "__main__":
    sys.exit(main())
