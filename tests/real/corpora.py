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
        folds: For each seed, the speakers of validation and of test.
        short_s: A context that all of its clips fit in. Seconds.
        most: Clips of a speaker in validation and in test, spread evenly over the manifests. None for all.
    """

    name: str
    folds: Sequence[tuple[Sequence[str], Sequence[str]]]
    short_s: int
    most: tuple[int, int] | None = None

    def write(self, folder: Path, fold: int) -> dict[str, str]:
        """Writes the manifests of a fold; returns their paths by split."""
        rows = {split: self.rows(fold, split) for split in ("train", "validation", "test")}
        return {split: str(_write(folder / f"{self.name}-{fold}-{split}.csv", each)) for split, each in rows.items()}

    def rows(self, fold: int, split: str) -> list[dict[str, str]]:
        """Returns the rows of a split, with complete paths."""
        validation, test = self.folds[fold]
        held_out = {"validation": validation, "test": test}
        if split == "train":
            return [row for row in self._all_rows() if row["speaker"] not in {*validation, *test}]
        rows: list[dict[str, str]] = []
        for speaker in held_out[split]:
            own = [row for row in self._all_rows() if row["speaker"] == speaker]
            kept = min(len(own), self.most[split == "test"]) if self.most else len(own)
            rows += [own[number * len(own) // kept] for number in range(kept)]
        return rows

    def _all_rows(self) -> list[dict[str, str]]:
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
    short_s=23,
)
# 430 words of each of four speakers: one trains, one validates, and 170 words of the other two are tested.
DIGITS = Corpus(
    "fsdd",
    [
        (["george"], ["nicolas", "theo"]),
        (["jackson"], ["george", "theo"]),
        (["theo"], ["jackson", "nicolas"]),
    ],
    short_s=3,
    most=(40, 85),
)


def _write(path: Path, rows: Sequence[dict[str, str]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, FIELDS)
        writer.writeheader()
        writer.writerows(rows)
    return path
