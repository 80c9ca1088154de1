"""A folder of transcripts that is written a shard at a time, and can be continued.

transcripts/part-00000.jsonl …   a line for each row: its transcript or its error; a shard's file
                                 is written once and atomically, so that each row has one line
<name>.srt, .vtt or .txt         of each recording, if such a format is requested; written before its shard
quarantine.jsonl                 the rows without a transcript
request.json                     the identity of the request
result.json                      totals; written last
"""

import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import pyarrow as pa

from trainers.config.storage_location import StorageOptions
from trainers.data.sources.archives.source_files import LocatedRows
from trainers.data.sources.fingerprint import hash_of_places, marks_of_files
from trainers.data.sources.recording_readers import Row
from trainers.errors import ConfigError, DataError, ResumeError
from trainers.pipeline.transcription.subtitles import FORMATS
from trainers.pipeline.transcription.transcriber import TranscribeTask
from trainers.pipeline.transcription.transcript import Transcript
from trainers.pipeline.transcription.transcription_request import KEPT
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
    """The folder; sent to the nodes.

    Attributes:
        url: Its path or URL.
        storage_options: Options for access to buckets.
        format: Format of a file for each recording. jsonl: only the shards are written.
    """

    url: str
    storage_options: StorageOptions
    format: str

    @property
    def storage(self) -> Storage:
        return open_storage(self.url, self.storage_options)

    def begin(self, request: Mapping[str, Any], names: Iterable[str]) -> None:
        """Writes the request, or checks that the folder has the same one; `names` are those of its recordings.

        Raises:
            ConfigError: the folder has no request, but a file that would be replaced or mistaken for its own.
            ResumeError: the folder is of another request; names what differs.
        """
        if not self.storage.exists(REQUEST):
            self._refuse_files(names)
        content = to_json(request, self.storage.url(REQUEST), indent=2)
        if self.storage.create_exclusive(REQUEST, f"{content}\n".encode()):
            return
        known = json.loads(self.storage.read_bytes(REQUEST))
        refuse_others(known, request, f"--out {self.url}", "name another folder, or delete this one")

    def _refuse_files(self, names: Iterable[str]) -> None:
        own = {RESULT, QUARANTINE, *map(shard_key, self.finished())}
        if self.format != "jsonl":
            own |= {f"{name}.{self.format}" for name in names}
        if found := self.storage.list_some(own):
            raise ConfigError(
                f"--out {self.url}: {min(found)} is there already, and not of this request: name another folder, or "
                "move it away"
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
        """Returns the outcomes of the rows of an existing shard.

        Raises:
            DataError: the shard's file is damaged.
        """
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


def identity_of(task: TranscribeTask, rows: LocatedRows, transcript_format: str) -> dict[str, Any]:
    """Returns what determines the transcripts, by name, as JSON; a later start compares it with that of the folder."""
    settings = task.config.model_dump(mode="json", include=set(KEPT) - {"run"})
    fields = {
        f"{part}.{name}": value
        for part, content in settings.items()
        for name, value in content.items()
        if name in (KEPT[part] or content)
    }
    content = {
        "model": task.model,
        **(task.contents or {}),
        "rows": _hash_of_rows(rows.table),
        "recordings": hash_of_places(rows.files, marks_of_files(rows.files, task.config.run.storage_options))[:16],
        "format": transcript_format,
        "max_segment_s": task.cutting.max_segment_s,
        "pause_s": task.cutting.pause_s,
        "words": task.words,
        "setting": task.setting.to_json_dict() if task.setting is not None else None,
        **fields,
    }
    return dict(json.loads(to_json(content, "the request")))


def refuse_others(known: Mapping[str, Any], wanted: Mapping[str, Any], what: str, fix: str) -> None:
    """Raises ResumeError for transcripts of another request, or of a model that has been replaced since."""
    if names := [name for name in {**known, **wanted} if known.get(name) != wanted.get(name)]:
        raise ResumeError(f"{what}: holds transcripts of another request ({', '.join(names)} differ): {fix}")


def _hash_of_rows(table: pa.Table) -> str:
    """Returns a hash of the rows, their order, and the places of their recordings: 16 hexadecimal digits."""
    rows = json.dumps(table.select(["id", "audio", "offset_s", "duration_s", "language"]).to_pylist())
    return hashlib.sha256(rows.encode()).hexdigest()[:16]
