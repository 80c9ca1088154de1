"""Recorded speech in splits whose speakers are disjoint, in several folds, for measurements of fine-tuning."""

import csv
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.settings import speech_data

FIELDS = ("path", "text", "speaker", "duration")
MANIFESTS = ("train.csv", "valid.csv", "test.csv")


@dataclass(frozen=True)
class Corpus:
    """A corpus, and its folds: speakers of validation and of test; the others train.

    Attributes:
        name: Its folder among the recorded speech.
        folds: For each seed, at least 500 words of test.
        short_s: A context that all of its clips fit in. Seconds.
    """

    name: str
    folds: Sequence[tuple[Sequence[str], Sequence[str]]]
    short_s: int

    def write(self, folder: Path, fold: int) -> dict[str, str]:
        """Writes the manifests of a fold; returns their paths by split."""
        validation, test = self.folds[fold]
        rows: dict[str, list[dict[str, str]]] = {"train": [], "validation": [], "test": []}
        for row in self.rows():
            split = "validation" if row["speaker"] in validation else "test" if row["speaker"] in test else "train"
            rows[split].append(row)
        return {split: str(_write(folder / f"{self.name}-{fold}-{split}.csv", each)) for split, each in rows.items()}

    def write_all(self, folder: Path) -> str:
        """Writes a manifest of all clips; returns its path."""
        return str(_write(folder / f"{self.name}-all.csv", self.rows()))

    def rows(self) -> list[dict[str, str]]:
        folder, found = speech_data() / self.name, []
        for manifest in MANIFESTS:
            with (folder / manifest).open(encoding="utf-8", newline="") as file:
                found += [row | {"path": str(folder / row["path"])} for row in csv.DictReader(file)]
        return found


# Speakers of 1,527 words: 598, 541 and 517 of them are tested.
LIBRISPEECH = Corpus(
    "librispeech_mini",
    [
        (["2609"], ["3080", "1688", "533"]),
        (["1688"], ["2609", "1998", "3331"]),
        (["533"], ["3005", "2033", "1688"]),
    ],
    short_s=16,
)
# 430 words of each speaker.
DIGITS = Corpus(
    "fsdd",
    [
        (["george"], ["nicolas", "theo"]),
        (["jackson"], ["george", "theo"]),
        (["theo"], ["jackson", "nicolas"]),
    ],
    short_s=3,
)


def _write(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    return path
