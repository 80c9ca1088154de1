from collections.abc import Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from trainers.config.parts.data_part import DataPart
from trainers.data.frame_count import Convolution, FrameCount
from trainers.data.selection import Bounds, TrainingRows, not_scored, select_scored, select_training
from trainers.errors import DataError


def index_of(*clips: tuple[float, str]) -> pa.Table:
    count = len(clips)
    return pa.table(
        {
            "id": [f"clip-{number}" for number in range(count)],
            "shard": pa.array([number // 2 for number in range(count)], pa.int64()),
            "row": pa.array([number % 2 for number in range(count)], pa.int64()),
            "duration_s": pa.array([duration_s for duration_s, _ in clips], pa.float64()),
            "text": [text for _, text in clips],
        }
    )


def data(**changes: Any) -> DataPart:
    return DataPart(train="train.csv", validation="valid.csv", **changes)


def selected(
    index: pa.Table, context_s: float = 30.0, lengths: Sequence[int] | None = None, **changes: Any
) -> TrainingRows:
    tokens = np.array(lengths if lengths is not None else [1] * len(index))
    return select_training(index, tokens, data(**changes), Bounds(context_s, 10))


def scored(
    index: pa.Table, *, context_s: float, split: str, lengths: Sequence[int] | None = None, **changes: Any
) -> list[int]:
    tokens = np.array(lengths if lengths is not None else [1] * len(index))
    rows: list[int] = select_scored(index, tokens, data(**changes), Bounds(context_s, 10), split).tolist()
    return rows


def test_labels_must_fit_at_the_fastest_speed() -> None:
    # Ten outputs a second.
    frames = FrameCount((Convolution(kernel=1600, stride=1600),))
    durations_s = np.array([1.0, float("nan")])
    assert Bounds(30.0, 100, frames).label_room(durations_s).tolist() == [10, np.inf]
    assert Bounds(30.0, 100, frames, fastest=1.25).label_room(durations_s).tolist() == [8, np.inf]
    assert Bounds(30.0, 100, fastest=1.25).label_room(durations_s).tolist() == [100, 100]


class TestTraining:
    def test_clips_within_the_bounds_stay_at_their_places(self) -> None:
        rows = selected(index_of((1, "a"), (0.05, "b"), (2, "c"), (31, "d"), (3, "e")))
        assert rows.selection.rows.tolist() == [0, 2, 4]
        assert rows.selection.durations_s.tolist() == [1, 2, 3]
        assert rows.selection.shards.tolist() == [0, 1, 2]

    def test_each_clip_left_out_has_its_reason(self) -> None:
        index = index_of((1, "a"), (0.05, "b"), (31, "d"), (1, ""), (0.01, ""))
        assert selected(index).left_out == [
            {"id": "clip-1", "reason": "shorter than data.min_duration_s 0.1 s"},
            {"id": "clip-4", "reason": "shorter than data.min_duration_s 0.1 s"},
            {"id": "clip-2", "reason": "longer than 30 s (data.max_duration_s)"},
            {"id": "clip-3", "reason": "empty transcript"},
        ]

    def test_selected_and_left_out_are_everything_once(self) -> None:
        index = index_of((0.05, ""), (50, ""), (1, "a"), (2, ""), (0.2, "b"))
        rows = selected(index)
        ids = [index["id"][int(row)].as_py() for row in rows.selection.rows] + [row["id"] for row in rows.left_out]
        assert sorted(ids) == index["id"].to_pylist()

    def test_clips_without_a_text_may_be_trained_on(self) -> None:
        index = index_of((1, "a"), (0.05, ""), (1, ""))
        rows = selected(index, empty_text="train")
        assert rows.selection.rows.tolist() == [0, 2]
        assert [row["id"] for row in rows.left_out] == ["clip-1"]

    def test_bounds_themselves_are_within(self) -> None:
        index = index_of((0.1, "a"), (3.0, "b"))
        assert selected(index, max_duration_s=3.0).selection.rows.tolist() == [0, 1]

    @pytest.mark.parametrize(
        ("bounds", "reason"),
        [
            ({"max_duration_s": 5.0}, "longer than 5 s (data.max_duration_s)"),
            ({"max_duration_s": 30.0, "context_s": 4.0}, "longer than 4 s (the model)"),
        ],
    )
    def test_the_tighter_bound_is_the_reason(self, bounds: dict[str, Any], reason: str) -> None:
        assert selected(index_of((6, "a"), (1, "b")), **bounds).left_out == [{"id": "clip-0", "reason": reason}]

    def test_nothing_left_is_refused_with_the_counts(self) -> None:
        with pytest.raises(DataError) as caught:
            selected(index_of((0.05, "a"), (40, "b"), (41, "c"), (1, "")))
        message = str(caught.value)
        assert "none of 4 clips is left to train on" in message
        assert "1 shorter than data.min_duration_s" in message
        assert "2 longer than 30 s" in message
        assert "1 empty transcript" in message

    def test_a_transcript_that_the_model_cannot_hold_is_left_out(self) -> None:
        rows = selected(index_of((1, "a"), (31, "b"), (1, "c")), lengths=[10, 11, 11])
        assert rows.selection.rows.tolist() == [0]
        assert rows.left_out == [
            {"id": "clip-1", "reason": "longer than 30 s (data.max_duration_s)"},
            {"id": "clip-2", "reason": "more than 10 label tokens (the model)"},
        ]


class TestScoring:
    def test_a_clip_longer_than_the_model_is_refused_by_name(self) -> None:
        with pytest.raises(DataError) as caught:
            scored(index_of((1, "a"), (3.2, "b")), context_s=3.0, split="test")
        assert "test: 1 clip is longer than the model's 3 s: clip-1 (3.2 s)" in str(caught.value)
        assert "cut them" in str(caught.value)

    def test_many_are_named_shortly(self) -> None:
        with pytest.raises(DataError, match=r"9 clips .*clip-4 \(9\.0 s\), …;"):
            scored(index_of(*[(9, "a")] * 9), context_s=3.0, split="test")

    def test_one_transcript_is_enough_for_a_score(self) -> None:
        assert scored(index_of((1, ""), (1, "a"), (0.01, "")), context_s=3.0, split="test") == [0, 1, 2]

    @pytest.mark.parametrize("text", ["", "  "])
    def test_without_any_there_is_none(self, text: str) -> None:
        with pytest.raises(DataError, match="all 2 transcripts are empty"):
            scored(index_of((1, text), (1, "")), context_s=3.0, split="validation")

    def test_labels_longer_than_the_model_s_are_refused_by_name(self) -> None:
        with pytest.raises(DataError, match=r"test: 1 transcript .* the model's 10: clip-1 \(11\); shorten or split"):
            scored(index_of((1, "a"), (1, "b")), context_s=3.0, split="test", lengths=[10, 11])

    def test_what_is_too_long_is_skipped_on_request(self) -> None:
        index = index_of((1, "a"), (3.2, "b"), (1, "c"), (1, "d"))
        lengths = [10, 1, 11, 1]
        assert scored(index, context_s=3.0, split="test", lengths=lengths, too_long_eval="skip") == [0, 3]

    def test_nothing_left_to_score_is_refused(self) -> None:
        with pytest.raises(DataError, match="test: none of 1 clips fits into the model's 3 s and 10 label tokens"):
            scored(index_of((9, "a")), context_s=3.0, split="test", too_long_eval="skip")


def test_clips_with_fewer_outputs_than_labels_are_left_out_and_said_why() -> None:
    every_tenth_s = FrameCount((Convolution(1600, 1600),))
    index = index_of((1.0, "a"), (1.0, "b"), (0.55, "c"))
    rows = select_training(index, np.array([10, 11, 6]), data(), Bounds(30.0, 100, every_tenth_s))
    assert rows.selection.rows.tolist() == [0]
    assert [(row["id"], "than the model gives outputs" in row["reason"]) for row in rows.left_out] == [
        ("clip-1", True),
        ("clip-2", True),
    ]
    room = Bounds(30.0, 100, every_tenth_s).label_room(np.array([np.nan, 30.0, 0.05]))
    assert room.tolist() == [np.inf, 100, 0]


def test_what_is_too_short_for_the_model_is_left_out_with_a_reason() -> None:
    index = index_of((1, "a"), (0.01, "b"), (0.015, "c"), (3.2, "d"))
    bounds, lengths = Bounds(3.0, 10, least_samples=240), np.ones(4, np.int64)
    rows = select_scored(index, lengths, data(too_long_eval="skip"), bounds, "test")
    assert rows.tolist() == [0, 2]
    assert not_scored(index, rows, bounds) == [
        {"id": "clip-1", "reason": "shorter than 0.015 s (the model)"},
        {"id": "clip-3", "reason": "longer than the model takes, or its transcript is"},
    ]
    # Faster, it is shorter.
    faster = Bounds(3.0, 10, fastest=1.1, least_samples=240)
    trained = select_training(index, lengths, data(min_duration_s=0.0, max_duration_s=9.0), faster)
    assert trained.selection.rows.tolist() == [0]
    assert [row["reason"] for row in trained.left_out][:2] == ["shorter than 0.015 s (the model)"] * 2
