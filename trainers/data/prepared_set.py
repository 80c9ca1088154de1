"""A prepared set: a folder of Arrow shards that `datasets.load_from_disk` opens, and how clips are read from it.

<cache>/<key>.json                  names the finished folder and the SHA-256 of its files but the shards, whose
                                    clips have FLAC's own checksums; made last, by exactly one writer
<cache>/<key>-<run>/                  of the run that prepares it, which goes on there when it is started again
    state.json dataset_info.json    what datasets.load_from_disk asks for
    shard-00000.arrow …             Arrow streams: id, audio (16-bit FLAC, not decoded), text, speaker, duration_s;
                                    each says in its schema what came of its rows
    index.parquet                   id, shard, row, duration_s, text: all that the batch plan needs; language, as the
                                    manifest has it, where clips have one
    labels-<hash>.bin               label ids of one tokenizer, see `models.labels`; added by the first training
    quarantine.jsonl                rows that could not be decoded: id, reason
    summary.json                    counts; rows = prepared + quarantined
    report.html                     the page of the set, see `rayscribe report`
"""

import hashlib
import io
import json
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
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


@dataclass(frozen=True)
class Summary:
    """Counts of one prepared set: rows of the manifest, of which some were quarantined; and bytes of all shards."""

    rows: int
    prepared: int
    quarantined: int
    duration_s: float
    stored_bytes: int


def shard_name(shard: int) -> str:
    """File name of a shard."""
    return f"shard-{shard:05d}.arrow"


@dataclass(frozen=True)
class PreparedSet:
    """A finished prepared folder.

    Attributes:
        url: Folder or URL.
        key: Hash of the manifest and of the preparing options.
        storage_options: How its storage is reached.
        sha256: Of its files, by name.
    """

    url: str
    key: str
    storage_options: StorageOptions = DEFAULT_STORAGE_OPTIONS
    sha256: Mapping[str, str] = field(default_factory=dict, compare=False)

    @property
    def parts(self) -> "tuple[PreparedSet, ...]":
        """The folders that it consists of: itself, unless it is a `JoinedSet`."""
        return (self,)

    @cached_property
    def storage(self) -> Storage:
        return open_storage(self.url, self.storage_options)

    @cached_property
    def index(self) -> pa.Table:
        """id, shard, row, duration_s, text and maybe language of each stored clip, in the manifest's order.

        Read once a node: what processes have in memory is one mapped file of the node.
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
        """A file that follows from the set, on this node's disk; it is kept next to the index for other nodes and runs.

        `name` says all that its content depends on besides the set; `make` writes it where there is none.
        """
        if not is_url(self.url) and (path := Path(self.url) / name).exists():
            return path

        def fetch(path: Path) -> None:
            if self.storage.exists(name):
                self.storage.download_file(name, path)
                return
            make(path)
            # Where the set is shared for reading only, each node makes its own.
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
        # Bytes: of a text, splitlines also ends lines where JSON does not, such as at U+2028.
        return [json.loads(line) for line in self._read("quarantine.jsonl").splitlines()]

    def _read(self, name: str) -> bytes:
        content = self.storage.read_bytes(name)
        self._check(name, hashlib.sha256(content).hexdigest())
        return content

    def _check(self, name: str, sha256: str) -> None:
        if self.sha256.get(name, sha256) != sha256:
            raise self.damaged(name, "its SHA-256 is not the one that was stored when it was prepared")

    def damaged(self, name: str, reason: object) -> DataError:
        """The error that a file of the set is damaged, and what to do."""
        return DataError(
            f"{self.storage.url(name)}: this file of a prepared set is damaged or missing ({reason}); "
            f"delete {self.url} and the .json of the same name next to it, and prepare again"
        )

    def reader(self, cache_bytes: int) -> "ClipReader":
        """What reads its clips; `cache_bytes` bounds the node's copy of shards from s3://."""
        return ClipReader(self, cache_bytes=cache_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        # Not its index, which the other process reads again.
        return PreparedSet, (self.url, self.key, self.storage_options, self.sha256)


def find(cache: Storage, key: str, storage_options: StorageOptions) -> PreparedSet | None:
    """The finished set with this key, or None; DataError where the file that names it is damaged."""
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
    """Reads stored clips of one set by their position in the index. One that goes to another process opens it anew.

    Args:
        prepared: The set.
        cache_bytes: Bound of the node's copy of shards from a bucket; unused for a folder.
    """

    def __init__(self, prepared: PreparedSet, *, cache_bytes: int):
        self._prepared, self._cache_bytes = prepared, cache_bytes
        index = prepared.index
        self._shards = index["shard"].to_numpy()
        self._rows = index["row"].to_numpy()
        self._samples = np.rint(index["duration_s"].to_numpy() * SAMPLING_RATE_HZ)
        # An evicted shard keeps its blocks on the disk while it is mapped, so no more are mapped than the bound holds.
        shard_bytes = max(1, prepared.summary.stored_bytes // max(1, len(set(self._shards.tolist()))))
        self._clips = lru_cache(max(1, min(OPEN_SHARDS, cache_bytes // shard_bytes)))(self._open)
        self._cache = ShardCache(prepared.storage, prepared.key, cache_bytes)

    def __reduce__(self) -> tuple[Any, ...]:
        return self._prepared.reader, (self._cache_bytes,)

    def read(self, position: int) -> np.ndarray:
        """int16 samples of shape (T,) of the clip at this position of the index."""
        shard = int(self._shards[position])
        try:
            samples = decode_flac(self._clips(shard)[int(self._rows[position])].as_py())
        except (AudioError, LookupError, OSError, pa.ArrowException) as error:
            raise self._prepared.damaged(shard_name(shard), error) from error
        # FLAC's frames have checksums, its header has none.
        if samples.shape != (self._samples[position],):
            raise self._prepared.damaged(shard_name(shard), f"a clip of {self._samples[position]:g} samples has others")
        return samples

    def prefetch(self, positions: np.ndarray) -> None:
        """Fetches in the background the shards that hold these positions, in their order."""
        shards = self._shards[positions]
        for shard in dict.fromkeys(shards.tolist()):
            self._cache.prefetch(shard_name(shard))

    def _open(self, shard: int) -> pa.Array:
        table = pa.ipc.open_stream(self._cache.open(shard_name(shard))).read_all()
        # Arrow reads beyond a buffer where an offset is wrong.
        table["audio"].validate(full=True)
        return table["audio"].combine_chunks().field("bytes")
