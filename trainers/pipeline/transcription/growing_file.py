"""A file of transcripts that grows while recordings are recognized, and can be continued.

<file>              transcripts so far; at the end, those of all recordings in their order
.<file>.progress    a line with the request's identity, and a line for each recognized part; removed at the end
"""

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from trainers.errors import ConfigError, ResumeError
from trainers.models.recognizer import Word
from trainers.pipeline.transcription.subtitles import FORMATS
from trainers.pipeline.transcription.transcriber import Part
from trainers.pipeline.transcription.transcript import Segment, Transcript
from trainers.pipeline.transcription.transcription_folder import refuse_others
from trainers.pipeline.transcription.transcription_request import progress_of
from trainers.storage.json_files import to_json


class GrowingFile:
    """The file and its progress; allows one writer.

    Attributes:
        parts: The recognized part of each recording, by its id.
    """

    def __init__(self, path: Path, transcript_format: str):
        """Reads and writes nothing yet."""
        self._path, self._format = path, transcript_format
        self._progress = progress_of(path)
        self.parts: dict[str, Part] = {}
        self._known: list[bytes] = []
        self._has_begun = False

    def open(self, identity: Mapping[str, Any]) -> None:
        """Reads what an earlier start of the same request has written; writes nothing yet.

        Raises:
            ConfigError: the progress cannot be read.
            ResumeError: the progress is damaged, or of another request; names what differs, and what to delete.
        """
        with _naming(self._path):
            lines = self._progress.read_bytes().splitlines(keepends=True) if self._progress.exists() else []
            # The last line may be incomplete if the process was killed while it wrote.
            self._known = [line for line in lines if line.endswith(b"\n")] or [_line(identity)]
        fix = f"name another file, or delete {self._progress}"
        with self._naming_damage(1):
            begun = dict(json.loads(self._known[0]))
        refuse_others(begun, identity, f"--out {self._path}", fix)
        for number, line in enumerate(self._known[1:], start=2):
            with self._naming_damage(number):
                self._take(_part_of(json.loads(line)))

    @property
    def transcripts(self) -> dict[str, Transcript]:
        """The transcript of each recording that was begun, by its id."""
        return {name: part.transcript for name, part in self.parts.items()}

    def add(self, parts: Sequence[Part]) -> None:
        """Adds recognized parts, which are kept from then on; raises ConfigError if the file cannot be written."""
        with _naming(self._path):
            if not self._has_begun:
                self._replace(self._progress, b"".join(self._known))
                self._write([part for part in self.parts.values() if part.is_last], anew=True)
                self._has_begun = True
            with self._progress.open("ab") as file:
                file.write(b"".join(_line(asdict(part)) for part in parts))
                file.flush()
                os.fsync(file.fileno())
            for part in parts:
                self._take(part)
            self._write([self.parts[part.transcript.id] for part in parts if part.is_last], anew=False)

    def finish(self, text: str) -> None:
        """Replaces the file by its final text, and removes the progress; raises as `add`."""
        with _naming(self._path):
            self._replace(self._path, text.encode())
            self._progress.unlink(missing_ok=True)

    def _take(self, part: Part) -> None:
        before = self.parts.get(part.transcript.id)
        if before is not None:
            segments = (*before.transcript.segments, *part.transcript.segments)
            part = replace(part, transcript=replace(part.transcript, segments=segments))
        self.parts[part.transcript.id] = part

    def _write(self, finished: Sequence[Part], *, anew: bool) -> None:
        """Writes complete lines: of finished recordings in jsonl, of all parts in other formats."""
        if self._format != "jsonl":
            text = "".join(FORMATS[self._format](part.transcript) for part in self.parts.values())
            self._replace(self._path, text.encode())
            return
        with self._path.open("wb" if anew else "ab") as file:
            file.write("".join(FORMATS["jsonl"](part.transcript) for part in finished).encode())

    def _replace(self, path: Path, content: bytes) -> None:
        """Replaces a file atomically, so that a killed process leaves the previous one."""
        new = self._path.with_name(f".{self._path.name}.part")
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    @contextmanager
    def _naming_damage(self, number: int) -> Iterator[None]:
        """Reads a line of the progress in a block whose errors name the file."""
        try:
            yield
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ResumeError(
                f"--out {self._path}: {self._progress} is damaged (line {number}: {error}): delete it, and all is "
                "transcribed again"
            ) from None


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Converts file system errors of a block to a ConfigError that names the option."""
    try:
        yield
    except OSError as error:
        raise ConfigError(f"--out {path}: {error.strerror or error}: name a file that can be written") from None


def _line(content: Mapping[str, Any]) -> bytes:
    return f"{to_json(content, 'the progress')}\n".encode()


def _part_of(content: Mapping[str, Any]) -> Part:
    transcript = content["transcript"]
    segments = tuple(
        Segment(**{**each, "words": None if each["words"] is None else tuple(Word(*word) for word in each["words"])})
        for each in transcript["segments"]
    )
    return Part(Transcript(**{**transcript, "segments": segments}), content["is_last"])
