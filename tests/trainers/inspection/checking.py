"""A corpus that is sound in every way, and what checks say of a config."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.trainers.synthetic import config, write_corpus
from trainers.findings import Check, run_check
from trainers.inspection.subject import Subject

SAID = {
    "train": ["one two three", "four five", "six seven eight nine", "ten eleven"],
    "validation": ["twelve thirteen", "fourteen"],
    "test": ["fifteen sixteen", "seventeen"],
}


def sound_corpus(folder: Path) -> dict[str, Any]:
    """Writes three manifests with nothing wrong; gives the changes of a config that names them."""
    manifests = {
        f"data.{name}": str(
            write_corpus(folder, texts, durations_s=[0.5 + 0.3 * row for row in range(len(texts))], name=name)
        )
        for name, texts in SAID.items()
    }
    return {**manifests, "run.storage_path": str(folder / "runs"), "run.name": "mine"}


def subject_of(folder: Path, changes: Mapping[str, Any] | None = None, **options: Any) -> Subject:
    """The sound corpus with some fields changed."""
    return Subject(config({**sound_corpus(folder), **(changes or {})}), **options)


def said(check: Check[Subject], subject: Subject) -> list[tuple[str, str]]:
    """Level and text of all that a check says, errors that it raises included."""
    return [(finding.level.value, finding.text) for finding in run_check(check, subject)]


def the_one(check: Check[Subject], subject: Subject, level: str) -> str:
    """The text of the only thing of this level that a check says."""
    notes = said(check, subject)
    texts = [text for found, text in notes if found == level]
    assert len(texts) == 1, notes
    return texts[0]


def levels(check: Check[Subject], subject: Subject) -> set[str]:
    """The levels of all that a check says."""
    found = {level for level, _ in said(check, subject)}
    assert found
    return found
