"""Output files that an interrupted command can continue: a file that grows, or a folder written shard by shard.

<file>              transcripts so far; at the end, those of all recordings in their order
.<file>.progress    a line with the request's identity, and a line for each recognized part; removed at the end

<folder>/
    transcripts/part-00000.jsonl …   a line for each row: its transcript or its error; a shard's file
                                     is written once and atomically, so that each row has one line
    <name>.srt, .vtt or .txt         of each recording, if such a format is requested; written before its shard
    quarantine.jsonl                 the rows without a transcript
    request.json                     the identity of the request
    result.json                      totals; written last
"""

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import pyarrow as pa

from trainers.config.storage_location import StorageOptions
from trainers.data.sources.archives.source_files import LocatedRows
from trainers.data.sources.fingerprint import hash_of_places, marks_of_files
from trainers.data.sources.recording_readers import Row
from trainers.errors import ConfigError, DataError, ResumeError
from trainers.models.recognizer import Word
from trainers.pipeline.transcription.transcriber import Part, TranscribeTask
from trainers.pipeline.transcription.transcript import FORMATS, Segment, Transcript
from trainers.pipeline.transcription.transcription_request import KEPT, progress_of
from trainers.storage import Storage, open_storage
from trainers.storage.json_files import to_json, to_jsonl

SHARDS, QUARANTINE, REQUEST, RESULT = "transcripts", "quarantine.jsonl", "request.json", "result.json"
ROWS_PER_SHARD = 32
# The outcome of each row.
OUTCOMES = pa.schema(
    [
        ("id", pa.string()),
        ("audio", pa.string()),
        ("duration_s", pa.float64()),
        ("error", pa.string()),
        ("has_words", pa.bool_()),
    ]
)


@dataclass(frozen=True)
class TranscriptionFolder:
    """The output folder, a path or URL; sent to the nodes.

    Attributes:
        format: Format of the file of each recording; with jsonl, only the shards are written.
    """

    url: str
    storage_options: StorageOptions
    format: str

    @property
    def storage(self) -> Storage:
        return open_storage(self.url, self.storage_options)

    def begin(self, request: Mapping[str, Any], names: Iterable[str]) -> None:
        """Writes the request, or checks that the folder has the same one; `names` are the output names of its rows.

        Raises:
            ConfigError: the folder has no request, but has a file that would be replaced or mistaken for an output.
            ResumeError: the folder belongs to another request; the message has the differences.
        """
        if not self.storage.exists(REQUEST):
            self._refuse_files(names)
        content = to_json(request, self.storage.url(REQUEST), indent=2)
        if self.storage.create_exclusive(REQUEST, f"{content}\n".encode()):
            return
        known = json.loads(self.storage.read_bytes(REQUEST))
        refuse_others(known, request, f"--out {self.url}", "use another folder, or delete this one")

    def _refuse_files(self, names: Iterable[str]) -> None:
        own = {RESULT, QUARANTINE, *map(shard_key, self.finished())}
        if self.format != "jsonl":
            own |= {f"{name}.{self.format}" for name in names}
        if found := self.storage.list_some(own):
            raise ConfigError(
                f"--out {self.url}: {min(found)} already exists, and is not from this command: use another folder, or "
                "move the file"
            )

    def finished(self) -> set[int]:
        """Returns the numbers of the shards that exist."""
        keys = (entry.key for entry in self.storage.list_files(SHARDS))
        return {int(key.rpartition("-")[2].removesuffix(".jsonl")) for key in keys if key.endswith(".jsonl")}

    def is_finished(self, shard: int) -> bool:
        return self.storage.exists(shard_key(shard))

    def write(self, shard: int, rows: Sequence[Row], transcripts: Iterable[Transcript]) -> None:
        """Writes the transcripts of a shard's rows, unless another process has."""
        by_id = {transcript.id: transcript for transcript in transcripts}
        found = [by_id[row["id"]] for row in rows]
        if self.format != "jsonl":
            for row, transcript in zip(rows, found, strict=True):
                if transcript.problem is None:
                    text = FORMATS[self.format](transcript)
                    self.storage.write_bytes(f"{row['name']}.{self.format}", text.encode())
        lines = to_jsonl((transcript.to_json_dict() for transcript in found), shard_key(shard))
        self.storage.create_exclusive(shard_key(shard), lines.encode())

    def outcomes(self, shard: int) -> pa.Table:
        """Returns the OUTCOMES of an existing shard's rows; raises DataError if its file is damaged."""
        try:
            lines = self.storage.read_bytes(shard_key(shard)).decode().removesuffix("\n").split("\n")
            rows = [json.loads(line) for line in lines]
            for row in rows:
                row["has_words"] = all("words" in segment for segment in row["segments"]) if "segments" in row else None
            return pa.Table.from_pylist(rows, schema=OUTCOMES)
        except (ValueError, pa.ArrowException) as error:
            where = self.storage.url(shard_key(shard))
            raise DataError(f"{where}: is damaged ({error}): delete it, and its rows are transcribed again") from error

    def finish(self, result: Mapping[str, Any], quarantine: Iterable[Mapping[str, Any]]) -> None:
        self.storage.write_bytes(QUARANTINE, to_jsonl(quarantine, QUARANTINE).encode())
        self.storage.write_bytes(RESULT, f"{to_json(result, RESULT, indent=2)}\n".encode())


def shard_key(shard: int) -> str:
    """Returns the key of a shard in the folder."""
    return f"{SHARDS}/part-{shard:05d}.jsonl"


def identity_of(task: TranscribeTask, rows: LocatedRows) -> dict[str, Any]:
    """Returns everything that determines the transcripts, by name, as JSON content; later starts compare it."""
    settings = task.config.model_dump(mode="json", include=set(KEPT) - {"run"})
    fields = {
        f"{part}.{name}": value
        for part, content in settings.items()
        for name, value in content.items()
        if name in (KEPT[part] or content)
    }
    # The hash of these columns also identifies the order of the rows.
    columns = rows.table.select(["id", "audio", "offset_s", "duration_s", "language"])
    content = {
        "model": task.model,
        **(task.contents or {}),
        "rows": hashlib.sha256(json.dumps(columns.to_pylist()).encode()).hexdigest()[:16],
        "recordings": hash_of_places(rows.files, marks_of_files(rows.files, task.config.run.storage_options))[:16],
        "format": task.request.chosen_format,
        "max_segment_s": task.request.max_segment_s,
        "pause_s": task.request.pause_s,
        "words": task.request.words,
        "setting": task.setting.to_json_dict() if task.setting is not None else None,
        **fields,
    }
    return dict(json.loads(to_json(content, "the request")))


def refuse_others(known: Mapping[str, Any], wanted: Mapping[str, Any], what: str, fix: str) -> None:
    """Raises ResumeError if the identities of two requests differ; `what` and `fix` are parts of the message."""
    if names := [name for name in {**known, **wanted} if known.get(name) != wanted.get(name)]:
        raise ResumeError(f"{what}: holds transcripts of another request ({', '.join(names)} differ): {fix}")


class GrowingFile:
    """The output file and its progress file; allows one writer.

    Attributes:
        parts: The recognized part of each recording, by its id.
    """

    def __init__(self, path: Path, transcript_format: str):
        self._path, self._format = path, transcript_format
        self._progress = progress_of(path)
        self.parts: dict[str, Part] = {}
        self._known: list[bytes] = []
        self._has_begun = False

    def open(self, identity: Mapping[str, Any]) -> None:
        """Reads what an earlier start of the same request has written; writes nothing yet.

        Raises:
            ResumeError: the progress is damaged or from another request; the message has the difference and fix.
        """
        with _naming(self._path):
            lines = self._progress.read_bytes().splitlines(keepends=True) if self._progress.exists() else []
            # The last line may be incomplete if the process was killed while it wrote.
            self._known = [line for line in lines if line.endswith(b"\n")] or [_line(identity)]
        fix = f"use another file, or delete {self._progress}"
        with self._naming_damage(1):
            begun = dict(json.loads(self._known[0]))
        refuse_others(begun, identity, f"--out {self._path}", fix)
        for number, line in enumerate(self._known[1:], start=2):
            with self._naming_damage(number):
                self._take(_part_of(json.loads(line)))

    @property
    def transcripts(self) -> dict[str, Transcript]:
        """The transcript so far of each recording that was begun, by its id."""
        return {name: part.transcript for name, part in self.parts.items()}

    def add(self, parts: Sequence[Part]) -> None:
        """Adds recognized parts to both files; raises ConfigError if a file cannot be written."""
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
        """Replaces the file by its final text, and removes the progress file; raises as `add`."""
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
        """Appends finished recordings as JSON lines; other formats are rewritten with all parts."""
        if self._format != "jsonl":
            text = "".join(FORMATS[self._format](part.transcript) for part in self.parts.values())
            self._replace(self._path, text.encode())
            return
        with self._path.open("wb" if anew else "ab") as file:
            file.write("".join(FORMATS["jsonl"](part.transcript) for part in finished).encode())

    def _replace(self, path: Path, content: bytes) -> None:
        """Replaces a file atomically, so that a killed process leaves the previous content."""
        new = self._path.with_name(f".{self._path.name}.part")
        with new.open("wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        new.replace(path)

    @contextmanager
    def _naming_damage(self, number: int) -> Iterator[None]:
        """Converts errors of a block that reads a line of the progress file to a ResumeError with the fix."""
        try:
            yield
        except (ValueError, TypeError, LookupError, AttributeError) as error:
            raise ResumeError(
                f"--out {self._path}: {self._progress} is damaged (line {number}: {error}): delete it, and all is "
                "transcribed again"
            ) from None


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """Converts file system errors of a block to a ConfigError about --out."""
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
