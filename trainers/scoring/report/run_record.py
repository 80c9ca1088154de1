"""What a run folder holds, read for a report: of a run that has ended, or goes on."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainers.errors import ConfigError
from trainers.run_folder.attempt_status import read_status
from trainers.run_folder.journal import Journal, State, accepted_metrics, deduplicate
from trainers.run_folder.layout import (
    ATTEMPT,
    ATTEMPTS,
    CHECKPOINTS,
    CONFIG,
    ENVIRONMENT,
    EVALUATION,
    OVERRIDES,
    QUARANTINE,
    SLICES,
    RunFolder,
    now,
    seconds_of,
)
from trainers.scoring.comparison.systems import rows_of

VALIDATION = "validation"


@dataclass(frozen=True)
class AttemptRecord:
    """One attempt.

    Attributes:
        started: ISO 8601 time.
        took_s: Until its last status.
        workers: How many trained, of its last worker group. None: none did, or an earlier version has not entered it.
        phase: What it did last.
        reason: In one line, what it was doing, or how it ended.
    """

    number: int
    started: str
    host: str
    took_s: float | None
    workers: int | None
    phase: str
    reason: str
    step: int | None
    changes: Sequence[str]


@dataclass(frozen=True)
class SplitRecord:
    """A scored split: totals as evaluation/<split>.json has them, the utterances, and what was scored."""

    split: str
    of: str
    totals: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]


@dataclass(frozen=True)
class RunRecord:
    """A run as its folder has it.

    Attributes:
        read: When it was read, ISO 8601.
        metrics: Each loss and each score once, by step.
        quarantine: Rows that were left out: split, id, reason.
        slices: What clips have in `data.slice_columns`: by split and id, each column's value.
    """

    folder: RunFolder
    read: str
    state: State
    config: Mapping[str, Any]
    overrides: Sequence[str]
    environment: Mapping[str, Any]
    metrics: Sequence[Mapping[str, Any]]
    quarantine: Sequence[Mapping[str, Any]]
    attempts: Sequence[AttemptRecord]
    splits: Sequence[SplitRecord]
    slices: Mapping[str, Mapping[str, Mapping[str, str]]]

    @classmethod
    def of(cls, folder: RunFolder) -> "RunRecord":
        """Reads a run folder.

        Raises:
            RayscribeError: no run is in it, or a file of it is damaged.
        """
        journal = Journal(folder)
        state = journal.read()
        if state.number == 0:
            raise ConfigError(f"{folder.url}: no run has begun here: give the folder of a run")
        return cls(
            folder,
            now(),
            state,
            folder.read_yaml(CONFIG) or {},
            folder.read_yaml(OVERRIDES) or [],
            folder.read_json(ENVIRONMENT) or {},
            _lines(deduplicate(accepted_metrics(folder, state))),
            _lines(folder.storage.read_bytes(QUARANTINE) if folder.storage.exists(QUARANTINE) else b""),
            _attempts(folder, state, _workers(journal)),
            [*_splits(folder, state)],
            _slices(folder, state),
        )

    @property
    def language(self) -> str | None:
        """Of the speech, where the recipe names one."""
        found: str | None = (self.config.get("model") or {}).get("language")
        return found


def _lines(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines()]


def _slices(folder: RunFolder, state: State) -> dict[str, dict[str, dict[str, str]]]:
    key = f"{ATTEMPTS}/{state.prepared}/{SLICES}"
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in _lines(folder.storage.read_bytes(key)) if folder.storage.exists(key) else ():
        found.setdefault(row["split"], {})[row["id"]] = row["values"]
    return found


def _workers(journal: Journal) -> dict[int, int]:
    """The workers of each attempt's last worker group."""
    groups = (entry for entry in journal.entries() if entry.get("kind") == "opened" and entry.get("workers"))
    return {entry["attempt"]: entry["workers"] for entry in groups}


def _attempts(folder: RunFolder, state: State, workers: Mapping[int, int]) -> list[AttemptRecord]:
    found = []
    for number in range(1, state.attempt + 1):
        began = folder.read_json(f"{ATTEMPTS}/{number}/{ATTEMPT}") or {}
        status = read_status(folder, number) or {}
        started, at_s = str(began.get("started") or ""), status.get("at_s")
        took_s = max(0.0, at_s - seconds_of(started)) if started and isinstance(at_s, int | float) else None
        step = status.get("step")
        found.append(
            AttemptRecord(
                number,
                started,
                str(began.get("host") or ""),
                took_s,
                workers.get(number),
                str(status.get("phase") or "not known"),
                str(status.get("detail") or ""),
                step if isinstance(step, int) else None,
                [str(change) for change in began.get("changes") or ()],
            )
        )
    return found


def _splits(folder: RunFolder, state: State) -> list[SplitRecord]:
    """The scores of the run's result; while it trains, that of its newest checkpoint on the validation set."""
    if state.finished is not None:
        outputs = folder.sub(state.finished.outputs)
        best = str(state.finished.result.get("best_checkpoint") or "the result")
        return [found for split in ("test", VALIDATION) if (found := _split(outputs, EVALUATION, split, best))]
    for checkpoint in reversed(state.checkpoints):
        found = _split(folder, f"{CHECKPOINTS}/{checkpoint.name}", VALIDATION, checkpoint.name)
        if found is not None:
            return [found]
    return []


def _split(folder: RunFolder, prefix: str, split: str, of: str) -> SplitRecord | None:
    key = f"{prefix}/{split}.jsonl"
    if not folder.storage.exists(key):
        return None
    return SplitRecord(split, of, folder.read_json(f"{prefix}/{split}.json") or {}, rows_of(folder, key))
