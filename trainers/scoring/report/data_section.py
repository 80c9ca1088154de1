"""Prepared clips as a page shows them: durations, characters, and what was left out by reason. Pure."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from trainers.scoring.report.charts import durations
from trainers.scoring.report.prepared_clips import ClipSet

MOST_CHARACTERS = 200
REASONS = 50
_NUMBER = re.compile(r"\d+(?:[.,]\d+)*")


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
