"""What augmentation gives on speakers that training never hears: python -m tests.benchmarks.unheard_speakers.

    FSDD=/path/to/fsdd python -m tests.benchmarks.unheard_speakers [--plain RECIPE] [--augmented RECIPE] [--set …]

Holds out one speaker at a time: trains on train.csv and chooses the model on valid.csv, both without the speaker, and
scores all recordings of the speaker, with each recipe in turn. One process without Ray, of the same global batch.
"""

import argparse
import csv
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import yaml

from tests.benchmarks.table import machine_facts

ROOT = Path(__file__).parents[2]
SPECS = ROOT / "jobs" / "specs"
SPLITS = ("train", "valid", "test")


def write_folds(source: Path, folder: Path) -> list[str]:
    """Writes <speaker>/train.csv, valid.csv and test.csv for each speaker; gives the speakers."""
    rows = {split: list(csv.DictReader((source / f"{split}.csv").open(encoding="utf-8"))) for split in SPLITS}
    speakers = sorted({row["speaker"] for row in rows["train"]})
    for speaker in speakers:
        others = {split: [row for row in rows[split] if row["speaker"] != speaker] for split in ("train", "valid")}
        own = [row for split in SPLITS for row in rows[split] if row["speaker"] == speaker]
        (folder / speaker).mkdir(parents=True)
        for split, chosen in {**others, "test": own}.items():
            with (folder / speaker / f"{split}.csv").open("w", newline="", encoding="utf-8") as file:
                writer = csv.writer(file)
                writer.writerow(("path", "text"))
                writer.writerows((str(source / row["path"]), row["text"]) for row in chosen)
    return speakers


def one_process(recipe: Path) -> list[str]:
    """What makes a recipe run in one process with the same global batch."""
    content = yaml.safe_load(recipe.read_text(encoding="utf-8"))
    batch = content["scaling"]["num_workers"] * content["training"]["per_device_train_batch_size"]
    return ["scaling.num_workers=1", f"training.per_device_train_batch_size={batch}", "training.report_to=[]"]


def errors_of(recipe: Path, name: str, folder: Path, fold: Path, changes: Sequence[str]) -> tuple[int, int]:
    """Trains; gives the word errors of the test score, and the words."""
    own = [f"run.name={name}", f"run.storage_path={folder}/runs", *one_process(recipe), *changes]
    command = [sys.executable, str(ROOT / "task.py"), "--config", str(recipe), "--no-ray"]
    command += [part for change in own for part in ("--set", change)]
    environment = {"OMP_NUM_THREADS": "1", **os.environ, "FSDD": str(fold)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{name} failed:\n{done.stdout[-2000:]}\n{done.stderr[-2000:]}")
    score = json.loads((folder / "runs" / name / "result.json").read_text(encoding="utf-8"))["test"]
    return score["insertions"] + score["deletions"] + score["substitutions"], score["words"]


def row_of(speaker: str, plain: tuple[int, int], augmented: tuple[int, int]) -> str:
    """A row of the table, as Markdown."""
    rates = [100 * errors / words for errors, words in (plain, augmented)]
    return f"| {speaker} | {plain[1]} | {rates[0]:.1f} % | {rates[1]:.1f} % | {augmented[0] / plain[0] - 1:+.0%} |"


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.unheard_speakers", description=__doc__)
    parser.add_argument("--plain", type=Path, default=SPECS / "whisper_digits.yaml")
    parser.add_argument("--augmented", type=Path, default=SPECS / "whisper_digits_augmented.yaml")
    parser.add_argument("--speakers", nargs="*", help="default: all")
    parser.add_argument("--set", action="append", default=[], help="of both recipes")
    given = parser.parse_args(arguments)
    source = Path(os.environ["FSDD"]).absolute()
    found: list[tuple[tuple[int, int], tuple[int, int]]] = []
    print("| held out | words | WER, plain | WER, augmented | errors |\n|---|---:|---:|---:|---:|")
    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as temporary:
        folder = Path(temporary)
        speakers = write_folds(source, folder / "folds")
        for speaker in given.speakers or speakers:
            fold = folder / "folds" / speaker
            sides = {"plain": given.plain, "augmented": given.augmented}
            plain, augmented = (
                errors_of(recipe, f"{side}-{speaker}", folder, fold, given.set) for side, recipe in sides.items()
            )
            print(row_of(speaker, plain, augmented), flush=True)
            found.append((plain, augmented))
    totals = np.sum(found, axis=0).tolist()
    print(f"{row_of('all', *totals)}\n\n{machine_facts()}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
