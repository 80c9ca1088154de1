"""The transcript of a recording. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trainers.models.recognizer import Word


@dataclass(frozen=True)
class Segment:
    """A part of a recording that was recognized at once. Seconds from the recording's beginning.

    Attributes:
        avg_logprob: See `Recognition`.
        words: Its words with their times. None: the model does not give them.
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
        id: Id of its row, or its path as given.
        audio: Path or URL of the recording.
        duration_s: Length of the recording. 0: it could not be read.
        language: Language of its row. None: the model's.
        problem: Why it was not transcribed. None: it was.
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
        """Returns the content of a line of JSON: with `error` if it failed, else with `text` and `segments`."""
        known: dict[str, Any] = {"id": self.id, "audio": self.audio}
        if self.problem is not None:
            return {**known, "error": self.problem}
        language = {} if self.language is None else {"language": self.language}
        segments = [segment.to_json_dict() for segment in self.segments]
        length = _rounded({"duration_s": self.duration_s})
        return {**known, "text": self.text, **length, **language, "segments": segments}


def _rounded(values: Mapping[str, Any]) -> dict[str, Any]:
    """Rounds numbers to the fourth decimal: a tenth of a millisecond."""
    return {name: round(value, 4) if isinstance(value, float) else value for name, value in values.items()}
