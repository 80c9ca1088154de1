"""Transcripts as subtitles, read again by parsers that others keep."""

import io
from itertools import pairwise

import srt
import webvtt
from hypothesis import given
from hypothesis import strategies as st

from trainers.models.recognizer import Word
from trainers.pipeline.transcription.transcript import (
    CUE_LINES,
    CUE_S,
    LINE_CHARACTERS,
    Segment,
    Transcript,
    cues_of,
    to_srt,
    to_txt,
    to_vtt,
)

TEXT = st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=50)


@st.composite
def transcripts(draw: st.DrawFn) -> Transcript:
    """Segments one after another, with times of words, without, and some of them empty."""
    segments, now_s = [], draw(st.floats(0, 8000))
    for _ in range(draw(st.integers(0, 4))):
        start_s, words = now_s, []
        for text in draw(st.lists(TEXT, max_size=30)):
            begin_s = now_s + draw(st.floats(0, 2))
            now_s = begin_s + draw(st.floats(0, 3))
            words.append(Word(text, begin_s, now_s))
        timed = tuple(words) if draw(st.booleans()) else None
        segments.append(Segment(start_s, now_s, " ".join(word.text for word in words), -0.5, timed))
        now_s += draw(st.floats(0, 2))
    return Transcript("id", "/id.wav", now_s, segments=tuple(segments))


@given(transcripts())
def test_parsers_read_the_same_cues_from_both(transcript: Transcript) -> None:
    cues = cues_of(transcript)
    from_srt = list(srt.parse(to_srt(transcript), ignore_errors=False))
    from_vtt = list(iter(webvtt.from_buffer(io.StringIO(to_vtt(transcript)))))
    assert [item.index for item in from_srt] == list(range(1, len(cues) + 1))
    assert len(from_vtt) == len(cues)
    for cue, one, other in zip(cues, from_srt, from_vtt, strict=True):
        assert one.content.split() == cue.text.split()
        assert abs(one.start.total_seconds() - cue.start_s) <= 0.00051
        assert one.start < one.end
        assert other.start_time.to_tuple() == _clock_of(one.start.total_seconds())
        assert other.end_time.to_tuple() == _clock_of(one.end.total_seconds())


def _clock_of(seconds: float) -> tuple[int, int, int, int]:
    rest, milliseconds = divmod(round(seconds * 1000), 1000)
    return rest // 3600, rest // 60 % 60, rest % 60, milliseconds


@given(transcripts())
def test_no_word_is_lost_and_no_cue_is_too_full(transcript: Transcript) -> None:
    cues = cues_of(transcript)
    assert " ".join(cue.text for cue in cues).split() == transcript.text.split()
    timed = [segment for segment in transcript.segments if segment.words]
    for cue in (cue for segment in timed for cue in cues_of(Transcript("", "", segments=(segment,)))):
        is_one_word = " " not in cue.text
        assert len(cue.text) <= LINE_CHARACTERS * CUE_LINES or is_one_word
        assert cue.end_s - cue.start_s <= CUE_S + 0.001 or is_one_word
    assert all(before.start_s <= after.start_s for before, after in pairwise(cues))


def test_what_marks_up_a_cue_is_text() -> None:
    segment = Segment(3725.5, 3726.0, "a <b> & --> c", 0.0)
    transcript = Transcript("x", "/x.wav", segments=(segment,))
    assert to_vtt(transcript) == "WEBVTT\n\n01:02:05.500 --> 01:02:06.000\na &lt;b&gt; &amp; --&gt; c\n"
    assert to_srt(transcript) == "1\n01:02:05,500 --> 01:02:06,000\na <b> & --> c\n"


def test_words_of_languages_without_spaces_are_parts_of_the_text() -> None:
    words = tuple(Word(text, start, start + 1.0) for start, text in enumerate(["日本", "語", "です", "。"]))
    segment = Segment(0.0, 30.0, "日本語です。", 0.0, words)
    late = Segment(
        0.0, 30.0, "日本語です。", 0.0, (*words[:2], Word("です", 9.0, 10.0), words[3]._replace(start_s=10.0))
    )
    assert [cue.text for cue in cues_of(Transcript("", "", segments=(segment,)))] == ["日本語です。"]
    assert [cue.text for cue in cues_of(Transcript("", "", segments=(late,)))] == ["日本語", "です。"]


def test_plain_text_has_a_line_a_segment() -> None:
    texts = ["one two", "", "three"]
    found = Transcript("", "", segments=tuple(Segment(0.0, 1.0, text, 0.0) for text in texts))
    assert (to_txt(found), found.text) == ("one two\nthree\n", "one two three")
