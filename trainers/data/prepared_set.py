"""Defines a prepared set, a folder of Arrow shards that `datasets.load_from_disk` opens, and the reader of its clips.

A `JoinedSet` has several: the members of a mix, each prepared separately and reused in any other mix.

<cache>/<key>.json                  names the finished folder and the SHA-256 of its files, except shards, whose
                                    clips have FLAC's own checksums; written last, by exactly one writer
<cache>/<key>-<run>/                  written by the run that prepares it, which continues there after a restart
    state.json dataset_info.json    read by datasets.load_from_disk
    shard-00000.arrow …             Arrow streams: id, audio (16-bit FLAC, not decoded), text, speaker, duration_s;
                                    the schema has the result of each row
    index.parquet                   id, shard, row, duration_s, text: all that the batch plan needs; language from
                                    the manifest, if clips have one; segments and previous of packed clips, see
                                    `sources.packing`
    labels-<hash>.bin               label ids of one tokenizer, see `models.labels`; added by the first training
    quarantine.jsonl                rows that could not be decoded: id, reason
    summary.json                    counts; rows = prepared + quarantined
    report.html                     the page of the set, see `rayscribe report`
"""

import hashlib
import io
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS, StorageOptions, is_url
from trainers.data.audio import SAMPLING_RATE_HZ, decode_flac
from trainers.data.node_cache import NodeCache, ShardCache
from trainers.errors import AudioError, DataError, StorageError
from trainers.storage import Storage, open_storage, sha256_of
from trainers.storage.json_files import to_jsonl

OPEN_SHARDS = 256
INDEX_ROWS_AT_ONCE = 131_072
SUMMARY = "summary.json"
# Columns of an index that only some sets have.
OPTIONAL = ("language", "segments", "previous")


@dataclass(frozen=True)
class Summary:
    """Counts of a prepared set: rows of the manifest, prepared and quarantined; total duration; bytes of all shards."""

    rows: int
    prepared: int
    quarantined: int
    duration_s: float
    stored_bytes: int


def shard_name(shard: int) -> str:
    """Returns the file name of a shard."""
    return f"shard-{shard:05d}.arrow"


@dataclass(frozen=True)
class PreparedSet:
    """A finished prepared folder.

    Attributes:
        url: Folder or URL.
        key: Hash of the manifest and the preparation options.
        storage_options: Options of access to its storage.
        sha256: SHA-256 of its files, by name.
    """

    url: str
    key: str
    storage_options: StorageOptions = DEFAULT_STORAGE_OPTIONS
    sha256: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def parts(self) -> "tuple[PreparedSet, ...]":
        """The set's folders: itself, unless it is a `JoinedSet`."""
        return (self,)

    @cached_property
    def storage(self) -> Storage:
        return open_storage(self.url, self.storage_options)

    @cached_property
    def index(self) -> pa.Table:
        """id, shard, row, duration_s, text and possibly language of each stored clip, in the manifest's order.

        Read once per node: processes map one file of the node into memory.
        """
        path = self._node.once("index.arrow", self._decompress_index)
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    def _decompress_index(self, path: Path) -> None:
        local = path.with_suffix(".parquet")
        self.storage.download_file("index.parquet", local)
        self._check("index.parquet", sha256_of(local))
        parquet = pq.ParquetFile(local)
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, parquet.schema_arrow) as writer:
            for batch in parquet.iter_batches(INDEX_ROWS_AT_ONCE):
                writer.write_batch(batch)
        local.unlink()

    def file(self, name: str, make: Callable[[Path], None]) -> Path:
        """Returns a file derived from the set, on this node's disk; it is stored with the set for other nodes and runs.

        `name` must identify everything else that the content depends on; `make` writes the file if there is none.
        """
        if not is_url(self.url) and (path := Path(self.url) / name).exists():
            return path

        def fetch(path: Path) -> None:
            if self.storage.exists(name):
                self.storage.download_file(name, path)
                return
            make(path)
            # If the set is shared read-only, each node makes its own file.
            with suppress(StorageError):
                self.storage.upload_file(path, name)

        return self._node.once(name, fetch)

    @cached_property
    def _node(self) -> NodeCache:
        return NodeCache(self.url, self.key)

    @cached_property
    def summary(self) -> Summary:
        return Summary(**json.loads(self._read(SUMMARY)))

    @cached_property
    def quarantine(self) -> list[dict[str, str]]:
        """Rows that could not be decoded: id and reason."""
        # Split as bytes, since splitlines of a str also splits at characters that JSON allows, such as U+2028.
        return [json.loads(line) for line in self._read("quarantine.jsonl").splitlines()]

    def _read(self, name: str) -> bytes:
        content = self.storage.read_bytes(name)
        self._check(name, hashlib.sha256(content).hexdigest())
        return content

    def _check(self, name: str, sha256: str) -> None:
        if self.sha256.get(name, sha256) != sha256:
            raise self.damaged(name, "its SHA-256 is not the one that was stored when it was prepared")

    def damaged(self, name: str, reason: object) -> DataError:
        """Returns the error for a damaged file of the set, with the fix."""
        return DataError(
            f"{self.storage.url(name)}: this file of a prepared set is damaged or missing ({reason}); "
            f"delete {self.url} and the .json of the same name next to it, and prepare again"
        )

    def reader(self, cache_bytes: int) -> "ClipReader":
        """Returns the reader of its clips; `cache_bytes` limits the node's copy of shards from a bucket."""
        return ClipReader(self, cache_bytes=cache_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        # The index is not pickled, since the other process reads it again.
        return PreparedSet, (self.url, self.key, self.storage_options, self.sha256)


def find(cache: Storage, key: str, storage_options: StorageOptions) -> PreparedSet | None:
    """Returns the finished set with this key, or None; raises DataError if the file that names it is damaged."""
    pointer = f"{key}.json"
    if not cache.exists(pointer):
        return None
    try:
        claim = json.loads(cache.read_bytes(pointer))
        return PreparedSet(cache.url(claim["folder"]), key, storage_options, claim["sha256"])
    except (ValueError, LookupError, AttributeError) as error:
        raise DataError(f"{cache.url(pointer)}: the file is damaged; delete it, and prepare again") from error


def finish(
    cache: Storage,
    folder: str,
    key: str,
    results: pa.Table,
    quarantine: list[dict[str, str]],
    stored_bytes: int,
) -> None:
    """Writes index, counts and the files that make the folder a data set; then claims the key, unless another has."""
    storage = cache.sub(folder)
    shards = sorted(results["shard"].unique().to_pylist())
    summary = Summary(
        rows=len(results) + len(quarantine),
        prepared=len(results),
        quarantined=len(quarantine),
        duration_s=round(sum(results["duration_s"].to_pylist()), 3),
        stored_bytes=stored_bytes,
    )
    state: dict[str, object] = {
        "_data_files": [{"filename": shard_name(shard)} for shard in shards],
        "_fingerprint": key[:16],
        "_format_columns": None,
        "_format_kwargs": {},
        "_format_type": None,
        "_output_all_columns": False,
        "_split": None,
    }
    sink = io.BytesIO()
    pq.write_table(results, sink, compression="zstd")
    files = {
        "index.parquet": sink.getvalue(),
        "quarantine.jsonl": to_jsonl(quarantine, "quarantine.jsonl").encode(),
        "dataset_info.json": b"{}",
        "state.json": json.dumps(state, indent=1).encode(),
        SUMMARY: json.dumps(asdict(summary), indent=1).encode(),
    }
    for name, content in files.items():
        storage.write_bytes(name, content)
    sha256 = {name: hashlib.sha256(content).hexdigest() for name, content in files.items()}
    claim = json.dumps({"folder": folder, **asdict(summary), "sha256": sha256}, indent=1)
    cache.create_exclusive(f"{key}.json", claim.encode())


class ClipReader:
    """Reads stored clips of one set by their position in the index. An unpickled reader opens its files again.

    `cache_bytes` limits the node's copy of shards from a bucket; unused for a folder.
    """

    def __init__(self, prepared: PreparedSet, *, cache_bytes: int):
        self._prepared, self._cache_bytes = prepared, cache_bytes
        index = prepared.index
        self._shards = index["shard"].to_numpy()
        self._rows = index["row"].to_numpy()
        self._samples = np.rint(index["duration_s"].to_numpy() * SAMPLING_RATE_HZ)
        # An evicted shard stays on the disk while it is mapped, so the limit applies to mapped shards, too.
        shard_bytes = max(1, prepared.summary.stored_bytes // max(1, len(set(self._shards.tolist()))))
        self._clips = lru_cache(max(1, min(OPEN_SHARDS, cache_bytes // shard_bytes)))(self._open)
        self._cache = ShardCache(prepared.storage, prepared.key, cache_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._prepared.reader, (self._cache_bytes,)

    def read(self, position: int) -> np.ndarray:
        """Returns int16 samples, shape (T,), of the clip at this position of the index."""
        shard = int(self._shards[position])
        try:
            samples = decode_flac(self._clips(shard)[int(self._rows[position])].as_py())
        except (AudioError, LookupError, OSError, pa.ArrowException) as error:
            raise self._prepared.damaged(shard_name(shard), error) from error
        # FLAC's frames have checksums, but its header does not.
        if samples.shape != (self._samples[position],):
            raise self._prepared.damaged(shard_name(shard), f"a clip of {self._samples[position]:g} samples has others")
        return samples

    def prefetch(self, positions: np.ndarray) -> None:
        """Downloads in the background the shards with these positions, in their order."""
        shards = self._shards[positions]
        for shard in dict.fromkeys(shards.tolist()):
            self._cache.prefetch(shard_name(shard))

    def _open(self, shard: int) -> pa.Array:
        table = pa.ipc.open_stream(self._cache.open(shard_name(shard))).read_all()
        # Validated, since Arrow reads beyond a buffer if an offset is wrong.
        table["audio"].validate(full=True)
        return table["audio"].combine_chunks().field("bytes")


def _column_or_nulls(index: pa.Table, name: str) -> pa.Array | pa.ChunkedArray:
    return index[name] if name in index.column_names else pa.nulls(len(index), pa.string())


@dataclass(frozen=True)
class JoinedMember:
    """One set of a mix.

    Attributes:
        name: Its name in the config. Ids of its clips begin with the name: `name/id`.
        language: Language of its clips that have none; None for the config's language.
    """

    name: str
    language: str | None
    prepared: PreparedSet

    def languages(self) -> pa.ChunkedArray:
        """Returns the language of each clip; null for the config's language."""
        index = self.prepared.index
        if "language" not in index.column_names:
            return pa.chunked_array([pa.repeat(pa.scalar(self.language, pa.string()), len(index))])
        return index["language"] if self.language is None else pc.fill_null(index["language"], self.language)


@dataclass(frozen=True)
class JoinedSet(PreparedSet):
    """Prepared sets, one after another; its URL is that of the cache that contains them.

    Positions are numbered over all sets. The index also has the number of each clip's `member`.
    """

    members: tuple[JoinedMember, ...] = ()

    @classmethod
    def of(cls, members: Sequence[JoinedMember]) -> "JoinedSet":
        """Joins one or more sets."""
        first = members[0].prepared
        return cls(
            first.url.rpartition("/")[0],
            joined_key([(each.name, each.language, each.prepared.key) for each in members]),
            first.storage_options,
            members=tuple(members),
        )

    @property
    def parts(self) -> tuple[PreparedSet, ...]:
        return tuple(member.prepared for member in self.members)

    @cached_property
    def index(self) -> pa.Table:
        """See `PreparedSet.index`; shards are numbered separately in each member."""
        path = self._node.once("index.arrow", self._write_index)
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    def _write_index(self, path: Path) -> None:
        languages = [member.languages() for member in self.members]
        has_languages = any(each.null_count < len(each) for each in languages)
        others = [
            name
            for name in OPTIONAL
            if name != "language" and any(name in member.prepared.index.column_names for member in self.members)
        ]
        first_shard, tables = 0, []
        for number, (member, of_each) in enumerate(zip(self.members, languages, strict=True)):
            index = member.prepared.index
            columns = {
                "id": pc.binary_join_element_wise(member.name, index["id"], "/"),
                "shard": pc.add(index["shard"], first_shard),
                **{name: index[name] for name in ("row", "duration_s", "text")},
                **({"language": of_each} if has_languages else {}),
                **{name: _column_or_nulls(index, name) for name in others},
                "member": pa.repeat(pa.scalar(number, pa.int32()), len(index)),
            }
            tables.append(pa.table(columns))
            first_shard += pc.max(index["shard"]).as_py() + 1
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)

    @cached_property
    def summary(self) -> Summary:
        counts = [vars(part.summary) for part in self.parts]
        return Summary(**{name: sum(each[name] for each in counts) for name in counts[0]})

    @cached_property
    def quarantine(self) -> list[dict[str, str]]:
        return [
            {**row, "id": f"{member.name}/{row['id']}"} for member in self.members for row in member.prepared.quarantine
        ]

    def reader(self, cache_bytes: int) -> "JoinedReader":
        return JoinedReader(self, cache_bytes=cache_bytes)

    @property
    def member_names(self) -> list[str]:
        """The name of each clip's member."""
        names = [member.name for member in self.members]
        return [names[number] for number in self.index["member"].to_pylist()]

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedSet.of, (self.members,)


class JoinedReader(ClipReader):
    """Reads clips of joined sets by their position in the joined index."""

    def __init__(self, joined: JoinedSet, *, cache_bytes: int):
        self._prepared, self._cache_bytes = joined, cache_bytes
        self._readers = [part.reader(cache_bytes) for part in joined.parts]
        self._first = first_positions(joined.parts)

    def read(self, position: int) -> np.ndarray:
        member = int(np.searchsorted(self._first, position, side="right")) - 1
        return self._readers[member].read(int(position - self._first[member]))

    def prefetch(self, positions: np.ndarray) -> None:
        of_each = np.searchsorted(self._first, positions, side="right") - 1
        for member in np.unique(of_each):
            self._readers[member].prefetch(positions[of_each == member] - self._first[member])


def first_positions(parts: Sequence[PreparedSet]) -> np.ndarray:
    """Returns the position in the joined index at which each part begins, int64."""
    sizes: Iterator[int] = accumulate((len(part.index) for part in parts[:-1]), initial=0)
    return np.fromiter(sizes, np.int64)


def joined_key(members: Sequence[tuple[str, str | None, str]]) -> str:
    """Returns a hash of the names, languages and keys of joined sets: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(["mix", *members]).encode()).hexdigest()[:32]
