"""What decides whether recordings are prepared again: their contents, their sizes and times, or the manifest alone."""

import hashlib
import io
import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from trainers.config.storage_location import StorageOptions, is_url
from trainers.errors import ConfigError
from trainers.storage import Storage, open_storage

Kind = Literal["auto", "content", "metadata", "manifest"]
# A request each: of more recordings, a part says whether they were replaced.
MOST_ASKED_FOR = 10_000
# Folder beside the prepared sets.
MEMORY = "recordings"
_PARALLEL_READS = 16


def settled_kind(kind: Kind, manifest: str) -> Kind:
    """What `auto` means for a manifest: `manifest` in a bucket, since asking it for each key is a choice."""
    if kind != "auto":
        return kind
    return "manifest" if is_url(manifest) else "content"


def marks_of(
    kind: Kind, paths: Sequence[str], manifest: str, storage_options: StorageOptions, memory: Storage | None
) -> list[Any]:
    """What of each recording is in the fingerprint; None for one that is not there or not asked for.

    Args:
        kind: `content`: its SHA-256; `metadata`: its size and time of change; `manifest`: nothing.
        paths: Path or URL of each recording.
        manifest: Path or URL of the manifest.
        storage_options: How s3:// is reached.
        memory: Where contents are remembered by size and time, so that they are read once. None: not.

    Raises:
        ConfigError: contents of recordings in a bucket are asked for.
    """
    if kind == "manifest":
        return []
    if kind == "metadata":
        return file_stats(paths, manifest, storage_options)
    if is_url(manifest):
        raise ConfigError(
            f"data.fingerprint is content, and {manifest} is in a bucket, of which every recording would be read to "
            "know whether it has changed: set it to metadata or manifest"
        )
    return _contents(list(paths), manifest, memory)


def file_stats(paths: Sequence[str], manifest: str, storage_options: StorageOptions) -> list[tuple[int, float] | None]:
    """Size and time of change of each recording.

    None for one that is not there; and of those in a bucket for one that does not lie below its manifest, or is not in
    the sample that is asked for.
    """
    storage = open_storage(manifest.rpartition("/")[0], storage_options) if is_url(manifest) else None
    asked = _asked_for(paths, storage.url() + "/") if storage is not None else {}

    def stat(path: str) -> tuple[int, float] | None:
        if "://" not in path:
            try:
                status = Path(path).stat()
            except OSError:
                return None
            return status.st_size, status.st_mtime
        if storage is None or path not in asked:
            return None
        entry = storage.entry(asked[path])
        return (entry.size_bytes, entry.modified_s) if entry is not None else None

    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        found = dict(zip(names := list(dict.fromkeys(paths)), pool.map(stat, names, chunksize=256), strict=True))
    return [found[path] for path in paths]


def remember(cache: Storage, key: str, marks: Mapping[str, str]) -> None:
    """Keeps the marks of a prepared set's recordings, so that a later start can say which of them have changed."""
    if not marks or cache.exists(_marks_key(key)):
        return
    table = pa.table({"audio": list(marks), "mark": list(marks.values())})
    cache.write_bytes(_marks_key(key), _parquet(table))


def changed_since(cache: Storage, key: str, marks: Mapping[str, str]) -> list[str]:
    """Recordings that have other marks than those of a prepared set; none where its marks were not kept."""
    if not cache.exists(_marks_key(key)):
        return []
    table = pq.read_table(io.BytesIO(cache.read_bytes(_marks_key(key))))
    known = dict(zip(table["audio"].to_pylist(), table["mark"].to_pylist(), strict=True))
    return [path for path, mark in marks.items() if known.get(path, mark) != mark]


def _contents(paths: list[str], manifest: str, memory: Storage | None) -> list[str | None]:
    name = f"{MEMORY}/contents-{hashlib.sha256(manifest.encode()).hexdigest()[:32]}.parquet"
    known: dict[tuple[str, int, int], str] = {}
    if memory is not None and memory.exists(name):
        table = pq.read_table(io.BytesIO(memory.read_bytes(name)))
        columns = (table[column].to_pylist() for column in ("audio", "size_bytes", "modified_ns", "sha256"))
        known = {(path, size, modified): digest for path, size, modified, digest in zip(*columns, strict=True)}
    read: dict[tuple[str, int, int], str] = {}

    def digest_of(path: str) -> str | None:
        try:
            status = Path(path).stat()
            stamp = (path, status.st_size, status.st_mtime_ns)
            found = known.get(stamp) or _sha256(path)
        except OSError:
            return None
        read[stamp] = found
        return found

    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        digests = dict(zip(names := list(dict.fromkeys(paths)), pool.map(digest_of, names), strict=True))
    if memory is not None and read.keys() - known.keys():
        stamps = list(read)
        table = pa.table(
            {
                "audio": [stamp[0] for stamp in stamps],
                "size_bytes": [stamp[1] for stamp in stamps],
                "modified_ns": [stamp[2] for stamp in stamps],
                "sha256": [read[stamp] for stamp in stamps],
            }
        )
        memory.write_bytes(name, _parquet(table))
    return [digests[path] for path in paths]


def _sha256(path: str) -> str:
    with Path(path).open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _asked_for(paths: Sequence[str], below: str) -> dict[str, str]:
    """Keys of the recordings that a bucket is asked for, each by itself: all, or evenly spread ones of very many."""
    keys = {path: path.removeprefix(below) for path in paths if path.startswith(below)}
    valid = [path for path, key in keys.items() if not {"", ".", ".."} & set(key.split("/"))]
    step = max(1, math.ceil(len(valid) / MOST_ASKED_FOR))
    return {path: keys[path] for path in valid[::step]}


def _marks_key(key: str) -> str:
    return f"{MEMORY}/{key}.parquet"


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()
