"""Segments of a recording are joined into clips that know their times."""

import json
from collections.abc import Sequence
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources import packing
from trainers.data.sources.data_source import ROW_SCHEMA, SourceSplit
from trainers.data.sources.packing import MOST_PAUSE_S, pack
from trainers.data.sources.recording_readers import FileReader


def segment(number: int, start_s: float, end_s: float, **fields: Any) -> dict[str, Any]:
    usual = {"audio": "talk.wav", "speaker": "ana", "language": None}
    return {
        "row": number,
        "id": f"talk-{number}",
        "text": f"text {number}",
        "offset_s": start_s,
        "duration_s": end_s - start_s,
        **usual,
        **fields,
    }


def packed(*rows: dict[str, Any], longest_s: float = 30) -> list[dict[str, Any]]:
    return [*pack(rows, longest_s)]


def test_segments_are_joined_in_the_order_of_their_times() -> None:
    (clip,) = packed(segment(0, 12, 20), segment(1, 2.5, 8), segment(2, 8.5, 11.5))
    assert (clip["id"], clip["offset_s"], clip["duration_s"]) == ("talk-1", 2.5, 17.5)
    assert clip["text"] == "text 1 text 2 text 0"
    assert json.loads(clip["segments"]) == [["text 1", 0, 5.5], ["text 2", 6.0, 9.0], ["text 0", 9.5, 17.5]]
    assert clip["previous"] is None


def test_a_clip_that_follows_has_the_text_before_it() -> None:
    clips = packed(segment(0, 0, 20), segment(1, 20, 35), segment(2, 40, 45))
    assert [(clip["text"], clip["previous"]) for clip in clips] == [
        ("text 0", None),
        ("text 1", "text 0"),
        # After a pause of five seconds, of which nothing is known.
        ("text 2", None),
    ]
    assert [clip["row"] for clip in clips] == [0, 1, 2]


@pytest.mark.parametrize(
    ("second", "clips"),
    [
        ({}, 1),
        ({"audio": "other.wav"}, 2),
        ({"language": "sr"}, 2),
        ({"offset_s": 5 + MOST_PAUSE_S + 0.1}, 2),
        # Overlaps with the first.
        ({"offset_s": 4.0}, 2),
        ({"offset_s": 4.98}, 1),
        ({"duration_s": 26.0}, 2),
        # To the end of the recording, which is not known.
        ({"duration_s": None}, 2),
    ],
)
def test_only_what_belongs_together_is_joined(second: dict[str, Any], clips: int) -> None:
    assert len(packed(segment(0, 0, 5), {**segment(1, 5, 10), **second})) == clips


@pytest.mark.parametrize("lone", [{"text": ""}, {"duration_s": 0.0}])
def test_segments_without_a_text_or_a_duration_are_not_joined(lone: dict[str, Any]) -> None:
    rows = (segment(0, 0, 1), segment(1, 1, 2), {**segment(2, 2, 3), **lone}, segment(3, 3, 4), segment(4, 4, 5))
    clips = [*pack(rows, 30, lambda text: not text)]
    texts = ["text 0 text 1", lone.get("text", "text 2"), "text 3 text 4"]
    assert [clip["text"] for clip in clips] == texts
    # The model would learn to write nothing for speech that is not transcribed.
    assert [clip["previous"] for clip in clips][1:] == [texts[0], texts[1] or None]


def test_a_text_is_empty_after_the_normalization_of_the_config() -> None:
    table = pa.Table.from_pylist([segment(0, 0, 1), segment(1, 1, 2, text=" ... "), segment(2, 2, 3)], ROW_SCHEMA)
    source = SourceSplit("train", "here", table, FileReader(StorageOptions()), "key")
    kinds: list[dict[str, Any]] = [
        {},
        {"do_remove_punctuation": True},
        {"do_remove_punctuation": True, "empty_text": "train"},
    ]
    made = [packing.packed(source, DataPart.model_validate({"demo": {}, **kind}), 30) for kind in kinds]
    # Also if it is trained on, since a segment of speech may lack its transcript.
    assert [len(each.table) for each in made] == [1, 3, 3]


@pytest.mark.parametrize(("language", "previous"), [(None, "text 0"), ("sr", None)])
def test_rounded_times_are_contiguous(language: str | None, previous: str | None) -> None:
    # 1.1 + 2.2 is more than 3.3.
    first, second = segment(0, 1.1, 3.3, duration_s=2.2), segment(1, 3.3, 4, language=language)
    assert [clip["previous"] for clip in packed(first, second, longest_s=2.5)] == [None, previous]


@pytest.mark.parametrize(
    ("text", "longest_s", "clips"),
    [
        # 30 seconds of English and of Serbian are few tokens; in Georgian and Burmese, a letter has up to three.
        ("every word of it " * 8, 30, 1),
        ("свака реч " * 10, 30, 1),
        ("ყოველი სიტყვა " * 6, 30, 3),
        ("လူတိုင်းသည်" * 6, 30, 2),
        # Models with a longer context have no such limit.
        ("ყოველი სიტყვა " * 6, 60, 1),
    ],
)
def test_clips_have_at_most_as_many_tokens_as_whisper_takes(text: str, longest_s: float, clips: int) -> None:
    assert len(packed(*(segment(at, at * 9, at * 9 + 9, text=text) for at in range(3)), longest_s=longest_s)) == clips


@pytest.mark.parametrize(
    ("texts", "joined"),
    [
        (["今日は。", "天気です"], "今日は。天気です"),
        (["มนุษย์", "ทั้งหลาย"], "มนุษย์ทั้งหลาย"),
        (["用 iPhone", "很好"], "用 iPhone 很好"),
        ([" one ", "two"], "one two"),
    ],
)
def test_texts_are_joined_as_their_scripts_are_written(texts: Sequence[str], joined: str) -> None:
    (clip,) = packed(*(segment(at, at, at + 1, text=text) for at, text in enumerate(texts)))
    assert clip["text"] == joined


def test_complete_recordings_stay_as_they_are() -> None:
    rows = [segment(number, 0, 5, offset_s=None) for number in range(3)]
    others = dict.fromkeys(("segments", "previous", "joined"))
    assert packed(*rows) == [{**row, **others} for row in rows]


def test_speakers_are_kept_if_they_are_one() -> None:
    assert packed(segment(0, 0, 5), segment(1, 5, 10))[0]["speaker"] == "ana"
    assert packed(segment(0, 0, 5), segment(1, 5, 10, speaker="bo"))[0]["speaker"] is None


@given(st.lists(st.tuples(st.floats(0, 2), st.floats(0.1, 40)), max_size=30), st.floats(1, 30))
def test_no_segment_is_lost_doubled_or_moved(gaps: Sequence[tuple[float, float]], longest_s: float) -> None:
    at, rows = 0.0, []
    for number, (gap_s, length_s) in enumerate(gaps):
        rows.append(segment(number, at + gap_s, at + gap_s + length_s))
        at += gap_s + length_s
    clips = packed(*rows, longest_s=longest_s)
    found = [
        (text, clip["offset_s"] + start_s, clip["offset_s"] + end_s)
        for clip in clips
        for text, start_s, end_s in json.loads(clip["segments"])
    ]
    assert [text for text, _, _ in found] == [row["text"] for row in rows]
    for (_, start_s, end_s), row in zip(found, rows, strict=True):
        assert start_s == pytest.approx(row["offset_s"])
        assert end_s == pytest.approx(row["offset_s"] + row["duration_s"])
    for clip in clips:
        assert clip["duration_s"] <= longest_s + 1e-6 or len(json.loads(clip["segments"])) == 1
