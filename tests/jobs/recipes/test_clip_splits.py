"""Validation and test clips: of speakers that are not trained on, always the same, whatever else is there."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jobs.recipes.clip_splits import TEST, TRAIN, VALIDATION, Clip, Splitting, draw, shared_texts, split_clips


def clips_of(speakers: int, each: int) -> list[Clip]:
    """Clips of different texts."""
    return [
        Clip(f"{speaker}/{number}.wav", f"text {speaker} {number}", f"speaker {speaker}")
        for speaker in range(speakers)
        for number in range(each)
    ]


def members(clips: Sequence[Clip], made: Splitting, split: str | None) -> list[Clip]:
    return [clip for clip, of in zip(clips, made.splits, strict=True) if of == split]


@given(st.lists(st.integers(1, 6), min_size=10, max_size=20), st.randoms())
def test_no_speaker_is_in_two_splits_and_the_order_of_clips_changes_nothing(
    sizes: list[int], shuffling: random.Random
) -> None:
    clips = [clip for speaker, size in enumerate(sizes) for clip in clips_of(speaker + 1, size)[-size:]]
    made = split_clips(clips)
    speakers = [{clip.speaker for clip in members(clips, made, split)} for split in (TRAIN, VALIDATION, TEST)]
    assert all(speakers)
    assert sum(map(len, speakers)) == len(sizes)
    assert made.notes == (f"no speaker is in two splits ({len(sizes)} speakers)",)
    assert len(members(clips, made, TRAIN)) >= len(clips) / 2
    mixed = shuffling.sample(clips, len(clips))
    again = split_clips(mixed)
    assert dict(zip(mixed, again.splits, strict=True)) == dict(zip(clips, made.splits, strict=True))


def test_a_tenth_is_held_out_for_each_split() -> None:
    clips = clips_of(100, 10)
    made = split_clips(clips)
    assert [made.splits.count(split) for split in (TRAIN, VALIDATION, TEST)] == [800, 100, 100]


def test_a_speaker_of_one_clip_is_no_split_where_others_are_not_too_large() -> None:
    clips = [*clips_of(5, 14), Clip("x.wav", "x", "speaker x")]
    made = split_clips(clips)
    assert [made.splits.count(split) for split in (TRAIN, VALIDATION, TEST)] == [43, 14, 14]
    assert made.notes == ("no speaker is in two splits (6 speakers)",)


@pytest.mark.parametrize(
    ("speakers", "said"),
    [
        (1, "only one speaker, in all splits, so that scores do not tell how new voices are recognized"),
        (2, "only 2 speakers, in all splits"),
        (3, "only 3 speakers, in all splits"),
    ],
)
def test_too_few_speakers_are_in_all_splits_which_is_said(speakers: int, said: str) -> None:
    clips = clips_of(speakers, 30 // speakers)
    made = split_clips(clips)
    assert [made.splits.count(split) for split in (TRAIN, VALIDATION, TEST)] == [24, 3, 3]
    assert said in made.notes[0]


def test_where_speakers_are_not_known_folders_stay_together() -> None:
    clips = [Clip(f"{n}.wav", f"text {n}", folder=f"day {n % 10}") for n in range(100)]
    made = split_clips(clips)
    folders = [{clip.folder for clip in members(clips, made, split)} for split in (TRAIN, VALIDATION, TEST)]
    assert list(map(len, folders)) == [8, 1, 1]
    assert made.notes == ("speakers are not known: no folder is in two splits",)


@pytest.mark.parametrize("speaker", [None, "ana"])
def test_where_speakers_are_not_known_segments_of_a_recording_stay_together(speaker: str | None) -> None:
    clips = [Clip(f"{n}", f"text {n}", speaker, recording=f"{n % 10}.wav") for n in range(100)]
    made = split_clips(clips)
    recordings = [{clip.recording for clip in members(clips, made, split)} for split in (TRAIN, VALIDATION, TEST)]
    assert list(map(len, recordings)) == [8, 1, 1]
    assert made.notes[0].endswith("; no recording is in two splits")


def test_without_speakers_and_folders_no_text_is_in_two_splits() -> None:
    clips = [Clip(f"{n}.wav", f"Text  {n % 60}" if n < 60 else f"text {n % 60}") for n in range(100)]
    made = split_clips(clips)
    texts = [{clip.text.split()[1] for clip in members(clips, made, split)} for split in (TRAIN, VALIDATION, TEST)]
    assert sum(map(len, texts)) == 60
    assert made.notes == ("speakers are not known; no text is in two splits",)


def test_where_all_say_the_same_few_words_clips_are_drawn_one_by_one() -> None:
    clips = [Clip(f"{n}.wav", str(n % 10)) for n in range(100)]
    made = split_clips(clips)
    assert [made.splits.count(split) for split in (VALIDATION, TEST)] == [10, 10]
    assert "texts are few, and the same in all splits" in made.notes[0]
    assert "clips of train with a text that is also in validation or test: 70 of 80" in made.notes


def test_the_few_texts_of_train_that_are_held_out_are_left_out_of_it() -> None:
    clips = clips_of(10, 10)
    held_out = members(clips, split_clips(clips), TEST)[0].text
    train = members(clips, split_clips(clips), TRAIN)[0]
    clips[clips.index(train)] = Clip(train.name, held_out.upper(), train.speaker)
    made = split_clips(clips)
    assert [clip.name for clip in members(clips, made, None)] == [train.name]
    assert "left out of train, clips with a text of validation or test: 1" in made.notes


def test_clips_without_a_speaker_are_trained_on() -> None:
    clips = [*clips_of(10, 10), *(Clip(f"{n}.wav", f"more {n}") for n in range(20))]
    made = split_clips(clips)
    assert set(made.splits[100:]) == {TRAIN}
    assert "clips without a speaker, all in train: 20" in made.notes


@pytest.mark.parametrize("count", [3, 4, 10, 11])
def test_each_split_of_few_clips_has_one(count: int) -> None:
    made = split_clips([Clip(f"{n}.wav", f"text {n}") for n in range(count)])
    assert {*made.splits} == {TRAIN, VALIDATION, TEST}


def test_a_test_set_that_is_there_is_not_drawn() -> None:
    clips = clips_of(10, 10)
    assert {*split_clips(clips, wanted=[VALIDATION]).splits} == {TRAIN, VALIDATION}


def test_some_of_many_are_drawn_by_their_names_alone() -> None:
    names = [f"{n}.wav" for n in range(100)]
    drawn = draw(names, 10)
    assert (len(drawn), drawn) == (10, sorted(drawn))
    assert {names[n] for n in drawn} == {names[::-1][n] for n in draw(names[::-1], 10)}
    assert draw(names[:3], 10) == [0, 1, 2]


def test_texts_are_compared_without_case_and_spaces() -> None:
    assert shared_texts(["A  b", "c"], ["a b", "d"]) == 1
