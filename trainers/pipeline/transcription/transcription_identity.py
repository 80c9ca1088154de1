"""What decides about transcripts, by which a later start knows whether those that are there are its own."""

import hashlib
import json
from collections.abc import Mapping
from typing import Any

import pyarrow as pa

from trainers.data.sources.archives.source_files import LocatedRows
from trainers.data.sources.fingerprint import hash_of_places, marks_of_files
from trainers.errors import ResumeError
from trainers.pipeline.transcription.transcriber import TranscribeTask
from trainers.pipeline.transcription.transcription_request import KEPT
from trainers.storage.json_files import to_json


def identity_of(task: TranscribeTask, rows: LocatedRows, transcript_format: str) -> dict[str, Any]:
    """By name, as JSON would have it: model with its content, rows, recordings, cutting, and all fields that decide."""
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
    """Refuses, with a ResumeError, transcripts of another request, or of a model that has been replaced since."""
    if names := [name for name in {**known, **wanted} if known.get(name) != wanted.get(name)]:
        raise ResumeError(f"{what}: holds transcripts of another request ({', '.join(names)} differ): {fix}")


def _hash_of_rows(table: pa.Table) -> str:
    """Hash of which rows there are, in which order, and where their recordings are: 16 hexadecimal digits."""
    rows = json.dumps(table.select(["id", "audio", "offset_s", "duration_s", "language"]).to_pylist())
    return hashlib.sha256(rows.encode()).hexdigest()[:16]
