"""Joins consecutive segments of a recording into longer clips that know the times of their segments. Pure.

As in Whisper's training and in Distil-Whisper's (Gandhi et al. 2023, section 4), clips of up to 30 s with several
segments keep the ability to write timestamps, and to continue a text.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pyarrow as pa

from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.fingerprint import hash_of
from trainers.data.sources.row_files.row_file import FILE, ROW

# Columns of packed rows: the segments as JSON, each with text, start and end in seconds from the clip's beginning; and
# the text of the clip before it in the recording, if that ends where this one begins. Null for other rows.
SEGMENTS, PREVIOUS = "segments", "previous"
# A longer pause may have speech that no segment covers, of which the model would learn to write nothing.
MOST_PAUSE_S = 1.0
# By how much two segments may overlap, such as by rounding.
MOST_OVERLAP_S = 0.05

Row = Mapping[str, Any]


def packed(source: SourceSplit, longest_s: float) -> SourceSplit:
    """Returns a split whose consecutive segments are joined into clips of up to `longest_s`."""
    rows = [*pack(source.table.to_pylist(), longest_s)]
    schema = source.table.schema
    for name in (SEGMENTS, PREVIOUS):
        schema = schema.append(pa.field(name, pa.string()))
    table = pa.Table.from_pylist(rows, schema=schema)
    return replace(source, table=table, fingerprint=hash_of("packed", longest_s, MOST_PAUSE_S, source.fingerprint))


def pack(rows: Sequence[Row], longest_s: float) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table, with consecutive segments joined; a row that is not a segment stays as it is.

    Segments are joined in the order of their times, if they have one language and at most MOST_PAUSE_S between them. A
    joined row has the id of its first segment, and a speaker only if all have the same.
    """
    recordings: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        is_segment = row["offset_s"] is not None and row["duration_s"] is not None
        key = (row["audio"], row.get(FILE), row.get(ROW)) if is_segment else (row["row"],)
        recordings.setdefault(key, []).append(row)
    number = 0
    for own in recordings.values():
        for made in _packed_recording(own, longest_s):
            yield {**made, "row": number}
            number += 1


def _packed_recording(rows: Sequence[Row], longest_s: float) -> Iterator[dict[str, Any]]:
    if len(rows) == 1 and (rows[0]["offset_s"] is None or rows[0]["duration_s"] is None):
        yield {**rows[0], SEGMENTS: None, PREVIOUS: None}
        return
    ordered = sorted(rows, key=lambda row: (row["offset_s"], row["row"]))
    previous: dict[str, Any] | None = None
    clip: list[Row] = []
    for row in (*ordered, None):
        if row is not None and (not clip or _continues(clip, row, longest_s)):
            clip.append(row)
            continue
        made = _joined(clip)
        follows = previous is not None and 0 <= made["offset_s"] - _end_s(previous) <= MOST_PAUSE_S
        yield {**made, PREVIOUS: previous["text"] if previous is not None and follows else None}
        previous, clip = made, [row] if row is not None else []


def _end_s(row: Row) -> float:
    return float(row["offset_s"] + row["duration_s"])


def _continues(clip: Sequence[Row], row: Row, longest_s: float) -> bool:
    pause_s = row["offset_s"] - _end_s(clip[-1])
    fits = _end_s(row) - clip[0]["offset_s"] <= longest_s
    is_next = -MOST_OVERLAP_S <= pause_s <= MOST_PAUSE_S
    return bool(fits and is_next and row["language"] == clip[0]["language"])


def _joined(clip: Sequence[Row]) -> dict[str, Any]:
    first, speakers = clip[0], {row["speaker"] for row in clip}
    start_s = first["offset_s"]
    segments = [[row["text"], row["offset_s"] - start_s, _end_s(row) - start_s] for row in clip]
    return {
        **first,
        "text": " ".join(row["text"] for row in clip if row["text"]),
        "speaker": speakers.pop() if len(speakers) == 1 else None,
        "duration_s": max(map(_end_s, clip)) - start_s,
        SEGMENTS: json.dumps(segments, ensure_ascii=False),
    }
