"""Prepared clips as a page shows them: durations, characters, and what was left out by reason. Pure."""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.config.wording import format_bytes, format_duration
from trainers.data.prepared_set import PreparedSet
from trainers.run_folder.layout import now, version_of
from trainers.scoring.report.charts import durations
from trainers.scoring.report.prepared_clips import ClipSet
from trainers.scoring.report.rendering import rendered

MOST_CHARACTERS = 200
REASONS = 50
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")
# A set is a split of any number of runs.
NAME = "this set"


@dataclass(frozen=True)
class ReasonCount:
    """Rows of a split that were left out for one reason, whatever the numbers in it."""

    split: str
    reason: str
    rows: int
    first: str


def data_section(sets: Sequence[ClipSet], quarantine: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What the template data_section.html.j2 shows of prepared sets, and of rows with split, id and reason."""
    return {
        "clip_sets": [_described(found) for found in sets],
        "data_charts": [durations(found.split, found.durations_s) for found in sets if found.durations_s],
        "most_characters": MOST_CHARACTERS,
        "quarantine": _reasons(quarantine),
    }


def _described(found: ClipSet) -> dict[str, Any]:
    quantiles_s = np.percentile(found.durations_s, [0, 50, 100]).tolist() if found.durations_s else []
    return {
        "split": found.split,
        "rows": found.rows,
        "clips": len(found.durations_s),
        "quarantined": found.quarantined,
        "total_s": sum(found.durations_s),
        "quantiles_s": quantiles_s,
        "characters": found.characters.most_common(),
        "key": found.prepared.key,
    }


def _reasons(quarantine: Sequence[Mapping[str, Any]]) -> list[ReasonCount]:
    """Rows that were left out by split and reason, the most frequent first."""
    found: dict[tuple[str, str], list[Mapping[str, Any]]] = {}
    for row in quarantine:
        reason = str(row.get("reason", "")).replace(str(row.get("id", "")) or "\0", "…")
        found.setdefault((str(row.get("split", "")), _NUMBER.sub("…", reason)), []).append(row)
    counts = [
        ReasonCount(split, reason if len(rows) > 1 else str(rows[0].get("reason", "")), len(rows), str(rows[0]["id"]))
        for (split, reason), rows in found.items()
    ]
    return sorted(counts, key=lambda item: -item.rows)[:REASONS]


def prepared_html(prepared: PreparedSet) -> str:
    """The page of one prepared set.

    Raises:
        RayscribeError: a file of it is missing or damaged.
    """
    clips = ClipSet.of(NAME, prepared)
    return rendered(
        "prepared.html.j2",
        title=prepared.url.rpartition("/")[2],
        url=prepared.url,
        read=now(),
        version=version_of("rayscribe") or "",
        sections=[("data", "Data")],
        numbers=[*_numbers(clips)],
        duration=format_duration,
        **data_section([clips], [{"split": NAME, **row} for row in prepared.quarantine]),
    )


def _numbers(clips: ClipSet) -> Iterator[tuple[str, str, str]]:
    stored = format_bytes(clips.prepared.summary.stored_bytes)
    yield "Audio", format_duration(sum(clips.durations_s)), f"{stored} of 16-bit FLAC"
    yield "Clips", f"{len(clips.durations_s):,}", f"of {clips.rows:,} rows"
    yield "Quarantined", f"{clips.quarantined:,}", ""
    yield "Characters", f"{clips.characters.total():,}", f"{len(clips.characters):,} different"
