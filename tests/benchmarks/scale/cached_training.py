"""Training from a bucket on a node with room for a fifth of the set: python -m tests.benchmarks.scale.cached_training.

Two complete runs of one recipe but for `data.local_cache_gb`: one's node has room for all shards, and the other's for a
fifth of them. Each begins without any; the bucket's server has a process of its own. The weights must be the same to
the last bit. The model is next to nothing, so that waiting for data is as large a part of a step as it can be. Shuffle
window, shards and batches are in proportion to the defaults at an eighth to a sixteenth of their size.
"""

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import yaml

from tests.benchmarks.scale.figures import Figure, print_figures
from tests.benchmarks.scale.object_server import BUCKET, COUNTS, serving
from tests.benchmarks.sizes import FULL
from tests.benchmarks.speech import make_speech
from tests.metrics_lines import metrics_of
from tests.s3 import AWS_VARIABLES
from tests.trainers.synthetic import content
from trainers.data.preparation import PrepareOptions
from trainers.main import main as train
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage, sha256_of

PART = 5
EPOCHS = 2
BATCH, ROWS_PER_SHARD, WINDOW_SHARDS = 8, 16, 8
WAITED = re.compile(r"([\d.]+)% of step time was spent waiting for data")
OPTIONS = PrepareOptions(do_lower_case=False, do_remove_punctuation=False, rows_per_shard=ROWS_PER_SHARD)


@dataclass(frozen=True)
class Trained:
    """What a run says of itself.

    Attributes:
        seconds: Of its steps.
        waited: Percentage of them that was spent waiting for data.
        sha256: Of the weights.
        fetches: Of a shard in an epoch, the mean.
    """

    seconds: float
    waited: float
    sha256: str
    fetches: float


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale.cached_training", description=__doc__)
    parser.add_argument("--clips", type=int, default=2400)
    parser.add_argument("--recipe", help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.recipe:
        with patch.object(PrepareOptions, "of", lambda data: OPTIONS):
            return train(["--config", chosen.recipe, "--no-ray"])
    os.environ.update(AWS_VARIABLES)
    clips: int = chosen.clips
    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as temporary:
        folder = Path(temporary)
        speech = make_speech(folder / "speech", FULL.with_clips(clips))
        bucket = folder / "bucket"
        # Prepares the sets and encodes their labels.
        _run(folder, "warm-up", {"data.cache_dir": str(bucket / "prepared"), "training.max_steps": 1})
        shard_bytes = [path.stat().st_size for path in bucket.glob("prepared/*/*.arrow")]
        steps = {"training.max_steps": EPOCHS * clips // BATCH}
        room_for_all = _trained(folder, "all", {**steps, "data.local_cache_gb": 2 * sum(shard_bytes) / 1e9})
        room_for_part = _trained(folder, "part", {**steps, "data.local_cache_gb": sum(shard_bytes) / PART / 1e9})
    assert room_for_part.sha256 == room_for_all.sha256, "other weights"
    print(
        f"{clips} clips of {speech.mean_s:.1f} s in {len(shard_bytes)} shards of {max(shard_bytes) / 1e3:.0f} kB, "
        f"windows of {WINDOW_SHARDS}, {BATCH} utterances a step, {EPOCHS} epochs; the weights are the same\n"
    )
    print_figures(
        [
            Figure("room for all: share of step time spent waiting for data, %", room_for_all.waited),
            Figure(f"room for 1/{PART}: share of step time spent waiting for data, %", room_for_part.waited),
            Figure("room for all: fetches of a shard in an epoch", room_for_all.fetches),
            Figure(f"room for 1/{PART}: fetches of a shard in an epoch", room_for_part.fetches),
            Figure(f"time of the steps, 1/{PART} : all", room_for_part.seconds / room_for_all.seconds),
        ]
    )
    return 0


def _trained(folder: Path, name: str, changes: dict[str, Any]) -> Trained:
    """Trains on the sets in the bucket."""
    with serving(folder / "bucket") as endpoint:
        bucket = {"data.cache_dir": f"s3://{BUCKET}/prepared", "run.s3_endpoint_url": endpoint}
        printed = _run(folder, name, {**bucket, **changes})
        with urllib.request.urlopen(f"{endpoint}/{BUCKET}/{COUNTS}") as response:
            counts = [count for key, count in json.load(response).items() if key.endswith(".arrow")]
    run = folder / "runs" / name
    lines = [line for line in metrics_of(RunFolder(open_storage(str(run)))) if "clips_per_s" in line]
    # Each line is of as many utterances.
    seconds = sum(1 / line["clips_per_s"] for line in lines)
    (waited,) = WAITED.findall(printed)
    return Trained(
        seconds, float(waited), sha256_of(run / "model" / "model.safetensors"), sum(counts) / len(counts) / EPOCHS
    )


def _run(folder: Path, name: str, changes: dict[str, Any]) -> str:
    """Trains in a process of its own, on a node that has nothing yet; gives what it printed."""
    recipe, node = folder / f"{name}.yaml", folder / f"node-{name}"
    node.mkdir()
    given: dict[str, Any] = {
        "run.name": name,
        "run.storage_path": str(folder / "runs"),
        "data.train": str(folder / "speech" / "train.csv"),
        "data.validation": str(folder / "speech" / "warm.csv"),
        "data.fingerprint": "manifest",
        "model.max_context_s": 4,
        "training.learning_rate": 1e-3,
        "training.per_device_train_batch_size": BATCH,
        "training.shuffle_window_shards": WINDOW_SHARDS,
        "training.logging_steps": 20,
        "training.save_steps": changes["training.max_steps"],
        "training.eval_steps": changes["training.max_steps"],
        "decode.max_length": 8,
        "training.report_to": [],
        **changes,
    }
    recipe.write_text(yaml.safe_dump(content(given)))
    command = [sys.executable, "-m", "tests.benchmarks.scale.cached_training", "--recipe", str(recipe)]
    # The other core is the server's.
    environment = {**os.environ, "TMPDIR": str(node), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


if __name__ == "__main__":
    sys.exit(main())
