"""The transcript of a recording, and its formats: text, lines of JSON, and the subtitles SubRip and WebVTT. Pure."""

import html
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from trainers.storage.json_files import to_jsonl

if TYPE_CHECKING:
    from trainers.models.recognizer import Word

# As is usual in broadcasting: two lines of 42 characters, shown for a few seconds.
LINE_CHARACTERS, CUE_LINES, CUE_S = 42, 2, 7.0
# The length of a pause between words that ends a cue, and the shortest duration of a cue. Seconds.
CUE_PAUSE_S, LEAST_CUE_S = 1.0, 0.001


@dataclass(frozen=True)
class Segment:
    """A part of a recording that was recognized in one piece. Times are seconds from the recording's start.

    Attributes:
        words: Its words with timestamps; None if the model has no word timestamps.
    """

    start_s: float
    end_s: float
    text: str
    avg_logprob: float
    words: "tuple[Word, ...] | None" = None

    def to_json_dict(self) -> dict[str, Any]:
        words = {} if self.words is None else {"words": [_rounded(word._asdict()) for word in self.words]}
        times = {"start_s": self.start_s, "end_s": self.end_s, "avg_logprob": self.avg_logprob}
        return {"text": self.text, **_rounded(times), **words}


@dataclass(frozen=True)
class Transcript:
    """The transcript of a recording, or why it has none.

    Attributes:
        id: Id of its row, or its path as in the request.
        duration_s: Length of the recording; 0 if it could not be read.
        language: Language of its row; None for the model's language.
        problem: Why it was not transcribed; None if it was.
    """

    id: str
    audio: str
    duration_s: float = 0.0
    language: str | None = None
    segments: tuple[Segment, ...] = ()
    problem: str | None = None

    @property
    def text(self) -> str:
        return " ".join(segment.text for segment in self.segments if segment.text)

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the content of a JSON line: with `error` if transcription failed, else with `text` and `segments`."""
        known: dict[str, Any] = {"id": self.id, "audio": self.audio}
        if self.problem is not None:
            return {**known, "error": self.problem}
        language = {} if self.language is None else {"language": self.language}
        segments = [segment.to_json_dict() for segment in self.segments]
        length = _rounded({"duration_s": self.duration_s})
        return {**known, "text": self.text, **length, **language, "segments": segments}


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rounds floats to four decimals; for times, to a tenth of a millisecond."""
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}


class Cue(NamedTuple):
    """A text of subtitles. Times are seconds from the recording's start."""

    start_s: float
    end_s: float
    text: str


def to_txt(transcript: Transcript) -> str:
    """Formats a transcript as text, one line per segment."""
    return "".join(f"{segment.text}\n" for segment in transcript.segments if segment.text)


def to_srt(transcript: Transcript) -> str:
    """Formats a transcript as SubRip."""
    return "\n".join(
        f"{number}\n{_clock(cue.start_s, ',')} --> {_clock(cue.end_s, ',')}\n{_lines(cue.text)}\n"
        for number, cue in enumerate(cues_of(transcript), 1)
    )


def to_vtt(transcript: Transcript) -> str:
    """Formats a transcript as WebVTT, https://www.w3.org/TR/webvtt1/."""
    cues = (
        f"\n{_clock(cue.start_s, '.')} --> {_clock(cue.end_s, '.')}\n{_lines(html.escape(cue.text, quote=False))}\n"
        for cue in cues_of(transcript)
    )
    return f"WEBVTT\n{''.join(cues)}"


def to_line(transcript: Transcript) -> str:
    """Formats a transcript as a JSON line."""
    return to_jsonl([transcript.to_json_dict()], transcript.id)


FORMATS: Mapping[str, Callable[[Transcript], str]] = {"txt": to_txt, "srt": to_srt, "vtt": to_vtt, "jsonl": to_line}


def cues_of(transcript: Transcript) -> list[Cue]:
    """Returns the cues of a transcript: parts of segments with word timestamps, else entire segments."""
    found = [cue for segment in transcript.segments if segment.text for cue in _cues(segment)]
    return [cue._replace(end_s=max(cue.end_s, cue.start_s + LEAST_CUE_S)) for cue in found]


def _cues(segment: Segment) -> Iterator[Cue]:
    if not segment.words:
        yield Cue(segment.start_s, segment.end_s, segment.text)
        return
    groups = [*_groups(segment.words)]
    begin = place = 0
    # Not all languages have spaces between words, so the text is split where the words of a group begin.
    for group, behind in zip(groups, [*groups[1:], None], strict=True):
        for word in group:
            place = max(place, segment.text.find(word.text, place)) + len(word.text)
        end = len(segment.text) if behind is None else max(place, segment.text.find(behind[0].text, place))
        yield Cue(group[0].start_s, group[-1].end_s, segment.text[begin:end].strip())
        begin = place = end


def _groups(words: "Sequence[Word]") -> "Iterator[list[Word]]":
    group: list[Word] = []
    for word in words:
        characters = sum(len(each.text) + 1 for each in group) + len(word.text)
        is_full = characters > LINE_CHARACTERS * CUE_LINES or (group and word.end_s - group[0].start_s > CUE_S)
        if group and (is_full or word.start_s - group[-1].end_s > CUE_PAUSE_S):
            yield group
            group = []
        group.append(word)
    yield group


def _lines(text: str) -> str:
    return "\n".join(textwrap.wrap(text, LINE_CHARACTERS, break_long_words=False, break_on_hyphens=False)) or text


def _clock(seconds: float, mark: str) -> str:
    """Formats a time as `01:02:03,456`, with `mark` before the milliseconds and at least two digits of hours."""
    minutes, milliseconds = divmod(round(seconds * 1000), 60_000)
    return f"{minutes // 60:02d}:{minutes % 60:02d}:{milliseconds // 1000:02d}{mark}{milliseconds % 1000:03d}"
