"""The page of a run, finished or not, from the content of its folder."""

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from typing import Any

import yaml

from trainers.config.parts.conditions import VALIDATION
from trainers.config.wording import counted, format_duration
from trainers.errors import ConfigError
from trainers.run_folder import layout
from trainers.run_folder.attempt_status import read_status
from trainers.run_folder.journal import Journal, State, accepted_metrics, deduplicate
from trainers.run_folder.layout import RunFolder, now, seconds_of
from trainers.scoring.comparison.systems import rows_of
from trainers.scoring.report.base_section import base_section
from trainers.scoring.report.charts import curves
from trainers.scoring.report.data_section import ClipSet, clip_sets, data_section
from trainers.scoring.report.rendering import clock, percent, rendered
from trainers.scoring.report.score_section import ScoreSection, Utterance, score_section


@dataclass(frozen=True)
class AttemptRecord:
    """An attempt of the run, as of its last status.

    Attributes:
        started: Start time, ISO 8601.
        workers: Number of workers in its last worker group; None if it had no group.
        worker_s: Total seconds of all workers, whose number changes in elastic runs; None if not known.
        reason: What it was doing, or how it ended, in one line.
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
class RunRecord:
    """A run as stored in its folder.

    Attributes:
        read: Time of reading, ISO 8601.
        metrics: Each loss and each score once, by step.
        quarantine: Rows that were left out, with split, id and reason.
        slices: Values of clips in `data.slice_columns`, by split, id and column.
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
    slices: Mapping[str, Mapping[str, Mapping[str, str]]]

    @classmethod
    def of(cls, folder: RunFolder) -> "RunRecord":
        """Reads a run folder; raises RayscribeError if it has no run, or a file is damaged."""
        journal = Journal(folder)
        state = journal.read()
        if state.number == 0:
            raise ConfigError(f"{folder.url}: no run has begun here: give the folder of a run")
        return cls(
            folder,
            now(),
            state,
            folder.read_yaml(layout.CONFIG) or {},
            folder.read_yaml(layout.OVERRIDES) or [],
            folder.read_json(layout.ENVIRONMENT) or {},
            _lines(deduplicate(accepted_metrics(folder, state))),
            _lines(folder.storage.read_bytes(layout.QUARANTINE) if folder.storage.exists(layout.QUARANTINE) else b""),
            _attempts(folder, state, _groups(journal)),
            _slices(folder, state),
        )

    @property
    def language(self) -> str | None:
        """Language of the speech, if the recipe names one."""
        found: str | None = (self.config.get("model") or {}).get("language")
        return found


def _lines(content: bytes) -> list[Any]:
    return [json.loads(line) for line in content.splitlines()]


def _slices(folder: RunFolder, state: State) -> dict[str, dict[str, dict[str, str]]]:
    key = f"{layout.ATTEMPTS}/{state.prepared}/{layout.SLICES}"
    found: dict[str, dict[str, dict[str, str]]] = {}
    for row in _lines(folder.storage.read_bytes(key)) if folder.storage.exists(key) else ():
        found.setdefault(row["split"], {})[row["id"]] = row["values"]
    return found


def _groups(journal: Journal) -> dict[int, list[tuple[float, int]]]:
    """Returns the worker groups of each attempt, each as its start (seconds since 1970) and number of workers."""
    found: dict[int, list[tuple[float, int]]] = {}
    for entry in journal.entries():
        if entry.get("kind") == "opened" and entry.get("workers"):
            found.setdefault(entry["attempt"], []).append((seconds_of(entry["at"]), entry["workers"]))
    return found


def worker_seconds(groups: Sequence[tuple[float, int]], began_s: float, ended_s: float) -> float:
    """Returns the total seconds of all workers of an attempt, whose first group counts from the attempt's start."""
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
        began = folder.read_json(f"{layout.ATTEMPTS}/{number}/{layout.ATTEMPT}") or {}
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


def _scores(record: RunRecord, sets: Sequence[ClipSet]) -> list[ScoreSection]:
    """Returns the scores of the run's result or, during training, the validation score of its newest checkpoint."""
    if (finished := record.state.finished) is not None:
        chosen = (finished.result.get("weights") or {}).get("name")
        best = str(chosen or finished.result.get("best_checkpoint") or "the result")
        folder = f"{finished.outputs}/{layout.EVALUATION}"
        return [found for split in ("test", VALIDATION) if (found := _score(record, sets, folder, split, best))]
    of_checkpoints = (
        _score(record, sets, f"{layout.CHECKPOINTS}/{checkpoint.name}", VALIDATION, checkpoint.name)
        for checkpoint in reversed(record.state.checkpoints)
    )
    return [*islice(filter(None, of_checkpoints), 1)]


# Total of all recordings in the page, before base64 encoding.
MAX_AUDIO_BYTES = 4_000_000


def write_report(folder: RunFolder) -> None:
    """Writes the page into the run folder; raises as `RunRecord.of`, and StorageError."""
    folder.storage.write_bytes(layout.REPORT, report_html(folder).encode())


def report_html(folder: RunFolder, price_per_hour: float | None = None) -> str:
    """Returns the page of a run in its current state; raises as `write_report`.

    `price_per_hour` is for one GPU, see `ScalingPart.price_per_gpu_hour`; None for that of the run's config, if any.
    """
    record = RunRecord.of(folder)
    if price_per_hour is None:
        price_per_hour = (record.config.get("scaling") or {}).get("price_per_gpu_hour")
    sets = clip_sets(folder, record.config, record.environment.get("data") or {})
    scores = _scores(record, sets)
    hours = _device_hours(record)
    drawn = curves(record.metrics)
    sections = [("curves", "Curves")] if drawn else []
    finished = record.state.finished
    base = base_section(finished.result, record.language) if finished is not None else None
    sections += [("base", "Before and after")] if base is not None else []
    sections += [(f"score-{score.split}", f"Score on {score.split}") for score in scores]
    return rendered(
        "report.html.j2",
        title=folder.name,
        url=folder.url,
        read=record.read,
        version=(record.environment.get("packages") or {}).get("rayscribe") or "",
        standing=_standing(record),
        sections=[*sections, ("data", "Data"), ("attempts", "Attempts"), ("config", "Config")],
        numbers=[*_numbers(record, scores, sets), *_spent(record, hours, price_per_hour)],
        scores=scores,
        base=base,
        charts=drawn,
        **data_section(sets, record.quarantine),
        attempts=[*zip(record.attempts, hours, strict=True)],
        device=_device(record.config),
        price_per_hour=price_per_hour,
        overrides=record.overrides,
        config=_as_yaml(record.config),
        environment=_as_yaml(record.environment),
        duration=format_duration,
    )


def _score(record: RunRecord, sets: Sequence[ClipSet], below: str, split: str, of: str) -> ScoreSection | None:
    """Returns a split's score in the run's folder `below`; None if the split has no score there.

    Has speakers and recordings if its prepared set is on a disk of this machine. `of` is the scored checkpoint.
    """
    key = f"{below}/{split}.jsonl"
    if not record.folder.storage.exists(key):
        return None
    prepared = next((each for each in sets if each.split == split), None)
    section = score_section(
        split,
        of,
        record.folder.read_json(f"{below}/{split}.json") or {},
        rows_of(record.folder, key),
        language=record.language,
        speakers=prepared.speakers() if prepared is not None else {},
        slices=record.slices.get(split, {}),
    )
    if prepared is None:
        return section
    recordings = prepared.recordings({item.id for item in section.worst})
    return replace(section, worst=[*_with_audio(section.worst, recordings)])


def _with_audio(utterances: Sequence[Utterance], recordings: Mapping[str, bytes]) -> Iterator[Utterance]:
    left = MAX_AUDIO_BYTES
    for item in utterances:
        flac = recordings.get(item.id, b"")
        if flac and len(flac) <= left:
            left -= len(flac)
            yield replace(item, audio=f"data:audio/flac;base64,{base64.b64encode(flac).decode()}")
        else:
            yield item


def _standing(record: RunRecord) -> str:
    """Returns the state of the run in one line."""
    if (result := record.state.finished) is not None:
        return f"finished {clock(str(result.result.get('finished', '')))}, by attempt {result.attempt}"
    last = record.attempts[-1]
    reason = f": {last.reason}" if last.reason else ""
    return f"not finished · attempt {last.number}, {last.phase}{reason}"


def _numbers(
    record: RunRecord, scores: Sequence[ScoreSection], sets: Sequence[ClipSet]
) -> Iterator[tuple[str, str, str]]:
    """Yields the most important numbers, each as label, value and note."""
    for score in scores:
        best = score.rates[0]
        rate = percent(best.rate)
        by = best.by_utterance
        name, bounds = f"{best.metric.upper()} on {score.split}", f"{by.low:.2f} to {by.high:.2f}%" if by else ""
        full = score.totals.get("full_context")
        if full is None:
            yield name, rate, bounds
            continue
        yield f"{name}, short context", rate, bounds
        yield f"{name}, full context", percent(full.get(best.metric)), f"padded to {full['context_s']:g} s"
    if steps := [row["step"] for row in record.metrics]:
        best_step = record.state.finished.result.get("best_step") if record.state.finished is not None else None
        yield "Steps", f"{max(steps):,}", "" if best_step is None else f"the best checkpoint is of step {best_step:,}"
    trained = next((found for found in sets if found.split == "train"), None)
    if trained is not None:
        left_out = {str(row.get("id")) for row in record.quarantine if row.get("split") == "train"}
        clips = zip(trained.prepared.index["id"].to_pylist(), trained.durations_s, strict=True)
        durations_s = [duration_s for id_, duration_s in clips if id_ not in left_out]
        audio = format_duration(sum(durations_s))
        yield "Training audio", audio, counted(len(durations_s), "clip")


def _spent(
    record: RunRecord, hours: Sequence[float | None], price_per_hour: float | None
) -> Iterator[tuple[str, str, str]]:
    """Yields the resources that the run has used so far, if known."""
    if known := [value for value in hours if value is not None]:
        device = _device(record.config)
        yield f"{device}-hours", f"{sum(known):,.2f}", counted(len(record.attempts), "attempt")
        if price_per_hour is not None:
            yield "Cost", f"{sum(known) * price_per_hour:,.2f}", f"at {price_per_hour:g} per {device}-hour"


def _device_hours(record: RunRecord) -> list[float | None]:
    """Returns each attempt's device-hours (its workers' hours times devices per worker), None if not known."""
    resources = (record.config.get("scaling") or {}).get("resources_per_worker") or {}
    per_worker = resources.get(_device(record.config), 1.0)
    return [None if item.worker_s is None else item.worker_s * per_worker / 3600 for item in record.attempts]


def _device(config: Mapping[str, Any]) -> str:
    """Returns the kind of device whose hours are counted."""
    scaling = config.get("scaling") or {}
    accelerator = scaling.get("accelerator") or ("gpu" if scaling.get("use_gpu") else "cpu")
    return {"hpu": "HPU", "cpu": "Worker"}.get(accelerator, "GPU")


def _as_yaml(content: Any) -> str:
    return yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
