"""Computes fingerprints, of contents or of locations and metadata, which decide if recordings are prepared again."""

import hashlib
import io
import json
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import pyarrow.parquet as pq

from trainers.config.parts.data_location import SHIPPED
from trainers.config.parts.data_part import FingerprintKind
from trainers.config.storage_location import StorageOptions, is_remote, is_url
from trainers.data.sources.located_files import describe
from trainers.errors import NoAccessError, StorageError
from trainers.storage import Storage, open_storage, sha256_of

T = TypeVar("T")

# Maximum number of files on web servers and the Hub, which take one request each.
_MOST_ASKED_FOR = 10_000
# Folder next to the prepared sets.
FOLDER = "recordings"
_PARALLEL_READS = 16
# More threads would wait for each other. Each gets a group of recordings, since a hand-over takes as long as one file.
_PARALLEL_HASHES, _HASHED_AT_ONCE = 4, 64
# Columns of the table of known contents.
_CONTENTS = ("audio", "size_bytes", "modified_ns", "changed_ns", "sha256")
# Maximum number of files in buckets, which are listed a thousand per request, at each start.
_MOST_LISTED = 200_000
# Ray unpacks the same package into another folder in each of its sessions; several packages may have the same
# recordings.
_UNPACKED = re.compile(rf"^/.*/working_dir_files/(?=_ray_pkg_)(?:[^/]+/(?={SHIPPED}/))?")


def fingerprint_recordings(
    kind: FingerprintKind,
    paths: Sequence[str],
    manifest: str,
    storage_options: StorageOptions,
    fingerprint_cache: Storage | None,
) -> list[Any]:
    """Returns the part of the fingerprint for each recording; None if it does not exist or is not examined.

    It is the SHA-256 for `content`, and size and modification time for `metadata`; for both, it is size and ETag if the
    recording is in a bucket or on a server. For `manifest`, the list is empty. `fingerprint_cache` stores hashes of
    contents by size and times, so that files are read once.
    """
    if kind == "manifest":
        return []
    here = [path for path in paths if not is_remote(path)]
    known: Mapping[str, Any] = (
        _asked(here, _size_and_time) if kind == "metadata" else _contents(here, manifest, fingerprint_cache)
    )
    return [known.get(path, each) for path, each in zip(paths, _listed(paths, storage_options), strict=True)]


def hash_of(*parts: object) -> str:
    """Returns a hash of bytes, and of values as JSON."""
    digest = hashlib.sha256()
    for part in parts:
        digest.update(part if isinstance(part, bytes) else json.dumps(part, default=str).encode())
        digest.update(b"\0")
    return digest.hexdigest()


def hash_of_places(paths: Sequence[str], fingerprints: Sequence[Any]) -> str:
    """Returns one hash of the locations and fingerprints of all recordings of a manifest."""
    digest = hashlib.sha256()
    for path, each in zip(paths, fingerprints or [None] * len(paths), strict=True):
        digest.update(json.dumps([_UNPACKED.sub("", path), each]).encode() + b"\n")
    return digest.hexdigest()


def _size_and_time(path: str) -> tuple[int, float] | None:
    try:
        status = Path(path).stat()
    except OSError:
        return None
    return status.st_size, status.st_mtime


def marks_of_files(paths: Sequence[str], storage_options: StorageOptions) -> list[Any]:
    """Returns the size of each file, with its times or ETag, which change when the file does; reads no file.

    The value is None if a file does not exist, or is not examined, see `_listed`.
    """
    here = (path for path in paths if not is_remote(path))
    found = _asked(here, lambda path: _mark(path, storage_options) if Path(path).is_file() else None)
    listed = _listed(paths, storage_options)
    return [found.get(path, each) for path, each in zip(paths, listed, strict=True)]


def store_fingerprints(cache: Storage, key: str, fingerprints: Mapping[str, str]) -> None:
    """Stores the fingerprints of a prepared set's recordings, so that a later start can report which have changed."""
    if not fingerprints or cache.exists(name := _stored_name(key)):
        return
    cache.write_bytes(name, _parquet(pa.table({"audio": list(fingerprints), "mark": list(fingerprints.values())})))


def changed_since(cache: Storage, key: str, fingerprints: Mapping[str, str]) -> list[str]:
    """Returns recordings whose fingerprints differ from those of a prepared set; empty if those were not stored."""
    if not cache.exists(name := _stored_name(key)):
        return []
    table = pq.read_table(io.BytesIO(cache.read_bytes(name)))
    known = dict(zip(table["audio"].to_pylist(), table["mark"].to_pylist(), strict=True))
    return [path for path, each in fingerprints.items() if known.get(path, each) != each]


def _listed(paths: Sequence[str], storage_options: StorageOptions) -> list[tuple[int, str] | None]:
    """Returns size and ETag of each recording in a bucket, from one listing of each bucket.

    The value is None for missing and for local files, and for all if there are more than _MOST_LISTED or listing is
    not allowed.
    Files on web servers and the Hub are requested one by one.
    """
    keys: dict[str, dict[str, str]] = {}
    for path in dict.fromkeys(paths):
        scheme, _, rest = path.partition("://")
        bucket, _, key = rest.partition("/")
        if is_url(path) and _is_key(key):
            keys.setdefault(f"{scheme}://{bucket}", {})[path] = key
    found: dict[str, tuple[int, str]] = _of_servers(paths, storage_options)
    if sum(map(len, keys.values())) <= _MOST_LISTED:
        for bucket, of_bucket in keys.items():
            try:
                entries = open_storage(bucket, storage_options).list_some(set(of_bucket.values())) or {}
            except NoAccessError:
                # These recordings are quarantined when they are read.
                entries = {}
            for path, key in of_bucket.items():
                if (entry := entries.get(key)) is not None:
                    found[path] = entry.size_bytes, entry.etag
    return [found.get(path) for path in paths]


def _of_servers(paths: Sequence[str], storage_options: StorageOptions) -> dict[str, tuple[int, str]]:
    """Returns size and ETag of files on web servers and the Hub, one request each; empty beyond a limit."""
    names = {path for path in paths if is_remote(path) and not is_url(path)}
    asked = _asked(names, lambda path: _mark(path, storage_options)) if len(names) <= _MOST_ASKED_FOR else {}
    return {path: found for path, found in asked.items() if found is not None}


def _mark(path: str, storage_options: StorageOptions) -> tuple[int, str] | None:
    try:
        entry = describe(path, storage_options)
    except OSError:
        return None
    return entry.size_bytes, entry.etag


def _asked(paths: Iterable[str], ask: Callable[[str], T]) -> dict[str, T]:
    """Returns the result of `ask` for each path, several in parallel."""
    names = list(dict.fromkeys(paths))
    with ThreadPoolExecutor(_PARALLEL_READS) as pool:
        return dict(zip(names, pool.map(ask, names), strict=True))


def _contents(paths: list[str], manifest: str, fingerprint_cache: Storage | None) -> dict[str, str | None]:
    name = _stored_name(f"contents-{hashlib.sha256(manifest.encode()).hexdigest()[:32]}")
    known: dict[tuple[str, int, int, int], str] = {}
    if fingerprint_cache is not None and fingerprint_cache.exists(name):
        table = pq.read_table(io.BytesIO(fingerprint_cache.read_bytes(name)))
        columns = (table[column].to_pylist() for column in _CONTENTS)
        known = {(*stamp,): digest for *stamp, digest in zip(*columns, strict=True)}
    read: dict[tuple[str, int, int, int], str] = {}

    def digest_of(path: str) -> str | None:
        try:
            status = Path(path).stat()
            # A copy may keep the modification time of its content; the system sets the change time.
            stamp = (path, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
            found = known.get(stamp) or sha256_of(path)
        except (OSError, StorageError):
            return None
        read[stamp] = found
        return found

    names = list(dict.fromkeys(paths))
    groups = [names[start : start + _HASHED_AT_ONCE] for start in range(0, len(names), _HASHED_AT_ONCE)]
    with ThreadPoolExecutor(_PARALLEL_HASHES) as pool:
        hashed = pool.map(lambda group: [digest_of(path) for path in group], groups)
        digests = dict(zip(names, chain.from_iterable(hashed), strict=True))
    if fingerprint_cache is not None and read.keys() - known.keys():
        rows = [dict(zip(_CONTENTS, (*stamp, digest), strict=True)) for stamp, digest in read.items()]
        fingerprint_cache.write_bytes(name, _parquet(pa.Table.from_pylist(rows)))
    return digests


def _is_key(key: str) -> bool:
    return not {"", ".", ".."} & set(key.split("/"))


def _stored_name(key: str) -> str:
    return f"{FOLDER}/{key}.parquet"


def _parquet(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()
