"""The page of a run."""

import base64
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import yaml

from trainers.config.wording import counted, format_duration
from trainers.run_folder.layout import REPORT, RunFolder
from trainers.scoring.report.charts import curves
from trainers.scoring.report.data_section import data_section
from trainers.scoring.report.prepared_clips import ClipSet, clip_sets
from trainers.scoring.report.rendering import clock, percent, rendered
from trainers.scoring.report.run_record import RunRecord, SplitRecord
from trainers.scoring.report.score_section import ScoreSection, Utterance, score_section

# Of all recordings in the page together, before they are written as text.
MAX_AUDIO_BYTES = 4_000_000


def write_report(folder: RunFolder) -> None:
    """Writes the page into the run folder.

    Raises:
        RayscribeError: no run is in it, or a file of it is damaged; or it cannot be written.
    """
    folder.storage.write_bytes(REPORT, report_html(folder).encode())


def report_html(folder: RunFolder, price_per_hour: float | None = None) -> str:
    """The page of a run, as its folder is now; raises as `write_report`.

    `price_per_hour` is of one GPU, see `ScalingPart.price_per_gpu_hour`; None: that of the run's config, if it has one.
    """
    record = RunRecord.of(folder)
    if price_per_hour is None:
        price_per_hour = (record.config.get("scaling") or {}).get("price_per_gpu_hour")
    sets = clip_sets(folder, record.config, record.environment.get("data") or {})
    scores = [_scored(found, record, sets) for found in record.splits]
    hours = _device_hours(record)
    drawn = curves(record.metrics)
    sections = [("curves", "Curves")] if drawn else []
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


def _scored(found: SplitRecord, record: RunRecord, sets: Sequence[ClipSet]) -> ScoreSection:
    """A split's score, with speakers and recordings where its prepared set is on a disk of this machine."""
    prepared = next((each for each in sets if each.split == found.split), None)
    speakers = prepared.speakers() if prepared is not None else {}
    section = score_section(
        found.split,
        found.of,
        found.totals,
        found.rows,
        language=record.language,
        speakers=speakers,
        slices=record.slices.get(found.split, {}),
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
    """How far the run is, in one line."""
    result = record.state.finished
    if result is not None:
        return f"finished {clock(str(result.result.get('finished', '')))}, by attempt {result.attempt}"
    last = record.attempts[-1]
    reason = f": {last.reason}" if last.reason else ""
    return f"not finished · attempt {last.number}, {last.phase}{reason}"


def _numbers(
    record: RunRecord, scores: Sequence[ScoreSection], sets: Sequence[ClipSet]
) -> Iterator[tuple[str, str, str]]:
    """What a reader looks for first: label, value, and what belongs to it."""
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
    steps = [row["step"] for row in record.metrics]
    if steps:
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
    """What the run has taken so far, as far as it is known."""
    known = [value for value in hours if value is not None]
    if known:
        device = _device(record.config)
        yield f"{device}-hours", f"{sum(known):,.2f}", counted(len(record.attempts), "attempt")
        if price_per_hour is not None:
            yield "Cost", f"{sum(known) * price_per_hour:,.2f}", f"at {price_per_hour:g} per {device}-hour"


def _device_hours(record: RunRecord) -> list[float | None]:
    """Of each attempt the time of its workers, of each device that one holds."""
    resources = (record.config.get("scaling") or {}).get("resources_per_worker") or {}
    per_worker = resources.get(_device(record.config), 1.0)
    return [None if item.worker_s is None else item.worker_s * per_worker / 3600 for item in record.attempts]


def _device(config: Mapping[str, Any]) -> str:
    """What a worker holds one of."""
    scaling = config.get("scaling") or {}
    accelerator = scaling.get("accelerator")
    if accelerator == "hpu":
        return "HPU"
    return "GPU" if scaling.get("use_gpu") or accelerator not in (None, "cpu") else "Worker"


def _as_yaml(content: Any) -> str:
    return yaml.safe_dump(content, allow_unicode=True, sort_keys=False)
