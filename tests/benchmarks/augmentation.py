"""What each change of augmentation costs: python -m tests.benchmarks.augmentation [--clips 1000] [--smoke].

One process reads, changes and turns into features the same clips over and over, as a worker without loader processes
does. Prints clips/s of each, and what it adds to a clip next to reading and features. Time is CPU time, so that what
else the machine does hardly counts.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import WhisperFeatureExtractor

from tests.benchmarks.sizes import FULL
from tests.benchmarks.speech import make_speech
from tests.benchmarks.table import machine_facts
from tests.trainers.synthetic import config, speechlike, write_recording
from trainers.config.parts.data_part import DataPart
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions
from trainers.data.augmentation import mask_features
from trainers.data.features import LogMel
from trainers.data.preparation import prepare, run_in_process
from trainers.data.prepared_set import ClipReader, PreparedSet
from trainers.data.selection import Bounds
from trainers.data.sources.known_sources import open_sources
from trainers.models.recognizer import pad_labels
from trainers.training.planning import augmenter_of, speeds_of
from trainers.training.trainer.planned_batches import Clips, Collator, SampleReference

BATCH, EDGE_S = 16, 5.0
SPEED, MASKS = {"augment.speed_range": [0.8, 1.25]}, {"augment.time_masks": 2, "augment.frequency_masks": 2}


def stages_of(folder: Path) -> dict[str, dict[str, Any]]:
    """The fields of each row; writes the recordings that they mix in."""
    for number in range(8):
        write_recording(folder / f"noise-{number}.wav", speechlike(20.0, seed=number))
        decay = np.exp(-np.arange(8000) / 1500)
        write_recording(folder / f"room-{number}.wav", (speechlike(0.5, seed=number) * decay).astype(np.int16))
    fields: dict[str, dict[str, Any]] = {}
    for name in ("noise", "room"):
        manifest = folder / f"{name}.csv"
        manifest.write_text("path\n" + "".join(f"{name}-{number}.wav\n" for number in range(8)))
        field = "noise" if name == "noise" else "rir"
        fields[name] = {f"augment.{field}_manifest": str(manifest), f"augment.{field}_probability": 1.0}
    stages: dict[str, dict[str, Any]] = {
        "nothing": {},
        "speed, one of 0.9, 1.0, 1.1": {"augment.speed_factors": [0.9, 1.0, 1.1]},
        "speed, 0.8 to 1.25": SPEED,
        "room of 0.5 s, every clip": fields["room"],
        "noise, every clip": fields["noise"],
        "gain": {"augment.gain_db": [-6, 6]},
        "SpecAugment, 2 + 2 masks": MASKS,
    }
    stages["all of it"] = {**fields["room"], **fields["noise"], **SPEED, **MASKS, "augment.gain_db": [-6, 6]}
    return stages


def clips_of(wanted: TrainConfig, prepared: PreparedSet) -> Clips:
    """The clips of the set, changed as the config says."""
    labels: Any = [[0]] * len(prepared.index)
    speeds = speeds_of(wanted, prepared, Bounds(EDGE_S, 1))
    return Clips(ClipReader(prepared, cache_bytes=0), labels, augmenter_of(wanted, speeds))


def clips_per_s(clips: Clips, features: LogMel, epoch: int) -> float:
    """Clips of one epoch in a second of this process's CPU time, from the prepared set to features."""
    collate = Collator(partial(pad_labels, start_id=0, pad_id=0))
    began = time.process_time()
    for start in range(0, len(clips), BATCH):
        rows = range(start, min(start + BATCH, len(clips)))
        batch = collate([clips[SampleReference(row, EDGE_S, epoch=epoch)] for row in rows])
        samples = [clip[:size] for clip, size in zip(batch["samples"], batch["sizes"], strict=True)]
        inputs = features.inputs(samples, EDGE_S)
        for bins, masks in zip(features.bins(inputs), batch["masks"], strict=True):
            if masks is not None:
                mask_features(bins, masks, bins.shape[1] / EDGE_S)
    return len(clips) / (time.process_time() - began)


def prepared_in(folder: Path, manifest: Path) -> PreparedSet:
    """The clips, as training reads them."""
    data = DataPart(train=str(manifest), validation="/nowhere.csv")
    (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",))
    return prepare(
        source,
        data,
        cache_url=str(folder / "prepared"),
        storage_options=StorageOptions(),
        run="test",
        runner=run_in_process,
        log=lambda line: None,
    )


def print_rates(rates: Mapping[str, Sequence[float]]) -> None:
    """Medians of the turns, as Markdown."""
    plain = statistics.median(rates["nothing"])
    print("| augmentation | clips/s | ms more a clip |\n|---|---:|---:|")
    for name, each in rates.items():
        rate = statistics.median(each)
        print(f"| {name} | {rate:,.0f} | {1000 / rate - 1000 / plain:.2f} |")


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.augmentation", description=__doc__)
    parser.add_argument("--clips", type=int, default=1000)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--smoke", action="store_true", help="next to nothing: only for seeing that it runs")
    given = parser.parse_args(arguments)
    count, turns = (16, 1) if given.smoke else (given.clips, given.turns)
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as temporary:
        folder = Path(temporary)
        speech = make_speech(folder / "speech", FULL.with_clips(count))
        prepared = prepared_in(folder, speech.folder / "train.csv")
        features = LogMel(WhisperFeatureExtractor())
        sides = {name: clips_of(config(fields), prepared) for name, fields in stages_of(folder).items()}
        rates: dict[str, list[float]] = {name: [] for name in sides}
        # The first turn also reads noise and rooms, and is not counted.
        for turn in range(turns + 1):
            for name, clips in sides.items():
                rate = clips_per_s(clips, features, turn)
                if turn:
                    rates[name].append(rate)
    print(f"{count} clips of mean {speech.mean_s:.1f} s, {speech.origin}; one process, one thread\n")
    print_rates(rates)
    print(f"\n{machine_facts()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
