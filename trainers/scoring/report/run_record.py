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
        workers: How many trained, of its last worker group. None: none did.
        worker_s: Seconds of all workers together, whose number changes where a run is elastic. None: not known.
        phase: What it did last.
        reason: In one line, what it was doing, or how it ended.
    """

    number: int
    started: str
    host: str
    took_s: float | None
    workers: int | None
    worker_s: float | None
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
            _attempts(folder, state, _groups(journal)),
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


def _groups(journal: Journal) -> dict[int, list[tuple[float, int]]]:
    """The worker groups of each attempt: when they began, in seconds since 1970, and how many workers they have."""
    found: dict[int, list[tuple[float, int]]] = {}
    for entry in journal.entries():
        if entry.get("kind") == "opened" and entry.get("workers"):
            found.setdefault(entry["attempt"], []).append((seconds_of(entry["at"]), entry["workers"]))
    return found


def worker_seconds(groups: Sequence[tuple[float, int]], began_s: float, ended_s: float) -> float:
    """Seconds of all workers, of the first group from the attempt's beginning on."""
    begins_s = [began_s, *(at_s for at_s, _ in groups[1:])]
    ends_s = [*begins_s[1:], ended_s]
    return sum(
        max(0.0, end_s - begin_s) * workers
        for begin_s, end_s, (_, workers) in zip(begins_s, ends_s, groups, strict=True)
    )


def _attempts(
    folder: RunFolder, state: State, groups: Mapping[int, Sequence[tuple[float, int]]]
) -> list[AttemptRecord]:
    found = []
    for number in range(1, state.attempt + 1):
        began = folder.read_json(f"{ATTEMPTS}/{number}/{ATTEMPT}") or {}
        status = read_status(folder, number) or {}
        started, at_s = str(began.get("started") or ""), status.get("at_s")
        own = groups.get(number, ())
        took_s = worker_s = None
        if started and isinstance(at_s, int | float):
            took_s = max(0.0, at_s - seconds_of(started))
            worker_s = worker_seconds(own, seconds_of(started), at_s) if own else None
        step = status.get("step")
        found.append(
            AttemptRecord(
                number,
                started,
                str(began.get("host") or ""),
                took_s,
                own[-1][1] if own else None,
                worker_s,
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
