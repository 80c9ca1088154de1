"""Joins consecutive segments of a recording into longer clips that know the times of their segments. Pure.

As in Whisper's training and in Distil-Whisper's (Gandhi et al. 2023, section 4), clips of up to 30 s with several
segments keep the ability to write timestamps, and to continue a text.
"""

import json
import re
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cache
from typing import Any

import pyarrow as pa

from trainers.config.parts.data_part import DataPart
from trainers.config.wording import counted
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.fingerprint import hash_of
from trainers.data.sources.row_files.row_file import FILE, ROW
from trainers.data.text import TextRules, normalize

# Columns of packed rows: the segments as JSON, each with text, start and end in seconds from the clip's beginning; and
# the text of the clip before it in the recording, if that ends where this one begins. Null for other rows.
SEGMENTS, PREVIOUS = "segments", "previous"
# Column with the rows that a clip joins, for messages; null if it is a single row. Not part of the prepared set.
JOINED = "joined"
# A longer pause may have speech that no segment covers, of which the model would learn to write nothing.
MOST_PAUSE_S = 1.0
# By how much two segments may overlap, such as by rounding.
MOST_OVERLAP_S = 0.05
# Length of Whisper's context, and the label tokens that it takes for a clip, of which four are around the text, and
# two are the times of each segment.
CONTEXT_S, MOST_TOKENS = 30.0, 448
TOKENS_AROUND, TOKENS_OF_TIMES = 4, 2
# Estimated tokens of a character, by the first code point of a range. For scripts that Whisper's tokenizer has few
# merges for, this is the number of bytes, which is their maximum; for all others, more than measured for sentences of
# the Universal Declaration of Human Rights in 30 languages (0.2 for English, 0.5 for Serbian, 1.0 for Hindi, 1.2 for
# Chinese).
TOKENS_OF_CHARACTER = (
    # Latin; Latin with marks; IPA, combining marks; Greek, Cyrillic; Armenian; Hebrew, Arabic.
    *((0x0, 0.5), (0x80, 1.0), (0x250, 2.0), (0x370, 1.0), (0x530, 2.0), (0x590, 1.0)),
    # Arabic letters of Kurdish, Uyghur and others, apart from one of Persian; Syriac and others.
    *((0x6C0, 2.0), (0x6CC, 1.0), (0x6CD, 2.0), (0x700, 3.0)),
    # Devanagari; Bengali and others; Tamil; Telugu and others; Thai; Lao, Burmese, Georgian, Khmer and others.
    *((0x900, 1.3), (0x980, 3.0), (0xB80, 1.3), (0xC00, 3.0), (0xE00, 1.3), (0xE80, 3.0)),
    # Vietnamese; polytonic Greek; punctuation; symbols; Chinese and Japanese; others; Korean; others; full-width forms.
    *((0x1E00, 1.3), (0x1F00, 3.0), (0x2000, 1.3), (0x2100, 3.0), (0x3000, 1.3), (0xA000, 3.0)),
    *((0xAC00, 1.3), (0xD7B0, 3.0), (0xFF00, 1.3), (0x10000, 4.0)),
)
# Scripts without spaces between words: Thai, Lao, Tibetan, Burmese, Khmer, Chinese and Japanese.
_UNSPACED = re.compile(
    "[\u0e00-\u0fff\u1000-\u109f\u1780-\u17ff\u3000-\u30ff\u3400-\u9fff\uf900-\ufaff\uff00-\uff9f\U00020000-\U0003ffff]"
)

Row = Mapping[str, Any]


def packed(source: SourceSplit, data: DataPart, longest_s: float) -> SourceSplit:
    """Returns a split whose consecutive segments are joined into clips of up to `longest_s`."""
    rules = TextRules(data.do_lower_case, data.do_remove_punctuation, data.chars_to_ignore)

    rows = [*pack(source.table.to_pylist(), longest_s, lambda text: not normalize(text, rules))]
    schema = source.table.schema
    for name in (SEGMENTS, PREVIOUS, JOINED):
        schema = schema.append(pa.field(name, pa.string()))
    table = pa.Table.from_pylist(rows, schema=schema)
    decided_by = (longest_s, MOST_PAUSE_S, MOST_TOKENS, TOKENS_OF_CHARACTER)
    fingerprint = hash_of("packed", *decided_by, source.fingerprint)
    return replace(source, table=table, fingerprint=fingerprint, unpacked=source.table)


def packing_line(source: SourceSplit) -> str | None:
    """Returns a line for people on how many segments of a split were joined; None if it is not packed."""
    if source.unpacked is None:
        return None
    others = source.table[SEGMENTS].null_count
    segments, clips = counted(len(source.unpacked) - others, "segment"), counted(len(source.table) - others, "clip")
    return f"{source.split}: {segments} joined into {clips}"


def pack(
    rows: Sequence[Row], longest_s: float, is_empty: Callable[[str], bool] = lambda text: not text
) -> Iterator[dict[str, Any]]:
    """Yields the rows of a table, with consecutive segments joined; a row that is not a segment stays as it is.

    Segments are joined in the order of their times, if they have one language and at most MOST_PAUSE_S between them. A
    clip of up to CONTEXT_S also has at most MOST_TOKENS, as estimated, since a clip with more could not be trained on.
    Segments without a duration, and those with a text that `is_empty`, stay rows of their own. A joined
    row has the id of its first segment, and a speaker only if all have the same.
    """
    recordings: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        is_segment = row["offset_s"] is not None and row["duration_s"] is not None
        key = (row["audio"], row.get(FILE), row.get(ROW)) if is_segment else (row["row"],)
        recordings.setdefault(key, []).append(row)
    number = 0
    for own in recordings.values():
        for made in _packed_recording(own, longest_s, is_empty):
            yield {**made, "row": number}
            number += 1


def _packed_recording(
    rows: Sequence[Row], longest_s: float, is_empty: Callable[[str], bool]
) -> Iterator[dict[str, Any]]:
    if len(rows) == 1 and (rows[0]["offset_s"] is None or rows[0]["duration_s"] is None):
        yield {**rows[0], SEGMENTS: None, PREVIOUS: None, JOINED: None}
        return
    clips: list[list[Row]] = []
    is_alone = True
    for row in sorted(rows, key=lambda row: (row["offset_s"], row["row"])):
        was_alone, is_alone = is_alone, row["duration_s"] <= 0 or is_empty(row["text"])
        if was_alone or is_alone or not (_follows(clips[-1][-1], row) and _fits(clips[-1], row, longest_s)):
            clips.append([])
        clips[-1].append(row)
    made = [_joined(clip) for clip in clips]
    for number, (clip, own) in enumerate(zip(clips, made, strict=True)):
        follows = number > 0 and _follows(clips[number - 1][-1], clip[0])
        yield {**own, PREVIOUS: made[number - 1]["text"] or None if follows else None}


def _end_s(row: Row) -> float:
    return float(row["offset_s"] + row["duration_s"])


def _follows(before: Row, row: Row) -> bool:
    is_next = -MOST_OVERLAP_S <= row["offset_s"] - _end_s(before) <= MOST_PAUSE_S
    return bool(is_next and row["language"] == before["language"])


def _fits(clip: Sequence[Row], row: Row, longest_s: float) -> bool:
    if longest_s <= CONTEXT_S and sum(_tokens(each["text"]) for each in (*clip, row)) > MOST_TOKENS - TOKENS_AROUND:
        return False
    return bool(_end_s(row) - clip[0]["offset_s"] <= longest_s)


def _tokens(text: str) -> float:
    return TOKENS_OF_TIMES + sum(map(_tokens_of, text))


@cache
def _tokens_of(character: str) -> float:
    return TOKENS_OF_CHARACTER[bisect_right(TOKENS_OF_CHARACTER, (ord(character), 4.0)) - 1][1]


def _joined(clip: Sequence[Row]) -> dict[str, Any]:
    first, speakers = clip[0], {row["speaker"] for row in clip}
    start_s = first["offset_s"]
    segments = [[row["text"], row["offset_s"] - start_s, _end_s(row) - start_s] for row in clip]
    return {
        **first,
        "text": _joined_text([row["text"].strip() for row in clip]),
        "speaker": speakers.pop() if len(speakers) == 1 else None,
        "duration_s": max(map(_end_s, clip)) - start_s,
        SEGMENTS: json.dumps(segments, ensure_ascii=False),
        JOINED: f"{len(clip)} rows from {first['id']} to {clip[-1]['id']}" if len(clip) > 1 else None,
    }


def _joined_text(texts: Sequence[str]) -> str:
    """Returns the texts with a space between each two, unless both are written without spaces there."""
    joined = ""
    for text in filter(None, texts):
        is_unspaced = _UNSPACED.match(joined[-1:]) and _UNSPACED.match(text)
        joined += text if is_unspaced or not joined else f" {text}"
    return joined
