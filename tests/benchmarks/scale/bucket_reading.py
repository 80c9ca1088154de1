"""Preparing from a bucket against preparing from disk: python -m tests.benchmarks.scale.bucket_reading [--clips 2000].

The same recordings, read from S3 over HTTP on loopback and from files, in turns of one shard each in one process; the
bucket's server has a process of its own. Prints the medians of the turns, whatever they are.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

import pyarrow as pa

from tests.benchmarks.scale.figures import Figure, print_figures
from tests.benchmarks.scale.object_server import BUCKET, serving
from tests.benchmarks.sizes import FULL
from tests.benchmarks.speech import make_speech
from tests.s3 import AWS_VARIABLES
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import PrepareOptions, ShardTask, blocks_of, run_in_process
from trainers.data.sources.manifest import read_manifest
from trainers.data.sources.recording_readers import FileReader
from trainers.storage import open_storage

GOAL = 0.7
ROWS_PER_TURN = 256


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale.bucket_reading", description=__doc__)
    parser.add_argument("--clips", type=int, default=2000)
    clips: int = parser.parse_args(arguments).clips
    os.environ.update(AWS_VARIABLES)
    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as temporary:
        folder = Path(temporary)
        speech = make_speech(folder / "speech", FULL.with_clips(clips))
        with serving(speech.folder) as endpoint:
            rates = _measure(folder, speech.folder, endpoint)
    print(f"{clips} clips of {speech.mean_s:.1f} s, {speech.origin}; one process\n")
    disk, bucket = (statistics.median(rates[side]) for side in ("disk", "bucket"))
    ratios = [one / other for one, other in zip(rates["bucket"], rates["disk"], strict=True)]
    print_figures(
        [
            Figure("prepare from disk, clips/s", disk, digits=0),
            Figure("prepare from a bucket, clips/s", bucket, digits=0),
            Figure("bucket : disk, median of the turns", statistics.median(ratios), least=GOAL),
        ]
    )
    return 0


def _measure(folder: Path, recordings: Path, endpoint: str) -> dict[str, list[float]]:
    options = StorageOptions(endpoint)
    manifest = "train.csv"
    locations = {
        "disk": (str(recordings / manifest), (recordings / manifest).read_bytes()),
        "bucket": (f"s3://{BUCKET}/{manifest}", open_storage(f"s3://{BUCKET}", options).read_bytes(manifest)),
    }
    turns = {
        side: blocks_of(read_manifest(location, content), ROWS_PER_TURN)
        for side, (location, content) in locations.items()
    }
    rates: dict[str, list[float]] = {side: [] for side in turns}
    for number in range(len(turns["disk"])):
        for side, blocks in turns.items():
            task = ShardTask(str(folder / side), options, PrepareOptions(False, False), FileReader(options))
            rates[side].append(_rate(blocks[number], task))
    return rates


def _rate(block: pa.Table, task: ShardTask) -> float:
    began = time.perf_counter()
    (result,) = run_in_process([block], task)
    assert result["reason"].null_count == len(block), result["reason"]
    return len(block) / (time.perf_counter() - began)


if __name__ == "__main__":
    sys.exit(main())
