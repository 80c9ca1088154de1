"""Prepares speech once, over all nodes: decode, mix to mono, resample, normalize the text, store as 16-bit FLAC.

Ray Data hands blocks of rows to tasks; each task writes one shard and gives back a few numbers a row. Without Ray the
same function runs over the same blocks in this process, and the folder is the same.
"""

import hashlib
import io
import json
import logging
import math
import os
import time
import uuid
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import DataPart
from trainers.config.secrets import resolve_secrets
from trainers.config.storage_location import StorageOptions, is_url
from trainers.data.audio import SAMPLING_RATE_HZ, decode, encode_flac
from trainers.data.prepared_set import PreparedSet, find, finish, shard_name
from trainers.data.sources import parquet_rows
from trainers.data.sources.located_files import read_location
from trainers.data.sources.opening import Source
from trainers.data.text import normalize
from trainers.distributed.console import Progress
from trainers.errors import AudioError, DataError, StorageError
from trainers.storage import Storage, open_storage

# Increased when the bytes that preparing writes change, so that sets of an older version are not used as new ones.
FORMAT_VERSION = 1
ROWS_PER_SHARD = 256
MOST_SHARDS_PER_BLOCK = 8
STALE_FOLDER_S = 24 * 3600
# Recordings of a bucket that are fetched at once, and held until it is their turn to be decoded.
FETCHED_AHEAD = 16

# What a data set with a column Audio(decode=False) looks like in Arrow; datasets reads its features from here.
FEATURES = {
    "id": {"dtype": "string", "_type": "Value"},
    "audio": {"sampling_rate": SAMPLING_RATE_HZ, "decode": False, "_type": "Audio"},
    "text": {"dtype": "string", "_type": "Value"},
    "speaker": {"dtype": "string", "_type": "Value"},
    "duration_s": {"dtype": "float64", "_type": "Value"},
}
SHARD_SCHEMA = pa.schema(
    [
        ("id", pa.string()),
        ("audio", pa.struct([("bytes", pa.binary()), ("path", pa.string())])),
        ("text", pa.string()),
        ("speaker", pa.string()),
        ("duration_s", pa.float64()),
    ],
    metadata={"huggingface": json.dumps({"info": {"features": FEATURES}})},
)
RESULT_SCHEMA = pa.schema(
    [
        ("source_row", pa.int64()),
        ("id", pa.string()),
        ("shard", pa.int64()),
        ("row", pa.int64()),
        ("duration_s", pa.float64()),
        ("text", pa.string()),
        ("reason", pa.string()),
        ("stored_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True)
class PrepareOptions:
    """What determines, beside the source, which bytes preparing writes."""

    do_lower_case: bool
    do_remove_punctuation: bool
    chars_to_ignore: tuple[str, ...] = ()
    sampling_rate_hz: int = SAMPLING_RATE_HZ
    version: int = FORMAT_VERSION
    rows_per_shard: int = ROWS_PER_SHARD

    @classmethod
    def of(cls, data: DataPart) -> "PrepareOptions":
        """The options that a config asks for."""
        return cls(data.do_lower_case, data.do_remove_punctuation, data.chars_to_ignore)

    @property
    def hashed(self) -> dict[str, Any]:
        """What is hashed of them; what came later counts only where it is used."""
        return {name: value for name, value in asdict(self).items() if name != "chars_to_ignore" or value}


@dataclass(frozen=True)
class ShardTask:
    """Everything that a task needs besides its block of rows; travels to the nodes."""

    folder_url: str
    storage_options: StorageOptions
    options: PrepareOptions

    def __call__(self, block: pa.Table) -> pa.Table:
        """Decodes and stores the rows of each shard in the block.

        Args:
            block: Rows of `sources.Source.table` with a column `shard`.

        Returns:
            One row each, see RESULT_SCHEMA; `reason` says why a row was not stored.
        """
        pa.set_cpu_count(1)
        storage = open_storage(self.folder_url, self.storage_options)
        rows = block.to_pylist()
        with_recordings = zip(rows, self._recordings(rows), strict=True)
        results = [
            result
            for _, of_shard in groupby(with_recordings, key=lambda pair: pair[0]["shard"])
            for result in self._write_shard(storage, of_shard)
        ]
        return pa.Table.from_pylist(results, schema=RESULT_SCHEMA)

    def _write_shard(
        self, storage: Storage, with_recordings: Iterable[tuple[dict[str, Any], Callable[[], bytes]]]
    ) -> list[dict[str, Any]]:
        stored: list[dict[str, Any]] = []
        results: list[dict[str, Any]] = []
        for row, fetch in with_recordings:
            result = {"source_row": row["row"], "id": row["id"], "shard": row["shard"], "stored_bytes": 0}
            try:
                clip = self._clip(row, fetch())
            except AudioError as error:
                results.append({**result, "reason": str(error)})
                continue
            results.append({**result, "row": len(stored), "duration_s": clip["duration_s"], "text": clip["text"]})
            stored.append(clip)
        if stored:
            data = _arrow_stream(pa.Table.from_pylist(stored, schema=SHARD_SCHEMA))
            storage.write_bytes(shard_name(results[0]["shard"]), data)
            results[0]["stored_bytes"] = len(data)
        return results

    def _recordings(self, rows: Sequence[Mapping[str, Any]]) -> Iterator[Callable[[], bytes]]:
        """Of each row, what gives its recording, or raises; those of a bucket are fetched ahead, several at a time."""
        with_bytes: Iterable[Mapping[str, Any]] = rows
        if parquet_rows.FILE in rows[0]:
            recordings = parquet_rows.read_recordings(rows)
            with_bytes = ({**row, "audio_bytes": read} for row, read in zip(rows, recordings, strict=True))
        with ThreadPoolExecutor(FETCHED_AHEAD, thread_name_prefix="recordings") as pool:
            ahead: deque[Callable[[], bytes]] = deque()
            for row in with_bytes:
                ahead.append(self._recording(row, pool))
                if len(ahead) > FETCHED_AHEAD:
                    yield ahead.popleft()
            yield from ahead

    def _recording(self, row: Mapping[str, Any], pool: Executor) -> Callable[[], bytes]:
        source, location = row.get("audio_bytes"), str(row["audio"])
        if isinstance(source, bytes):
            return lambda: source
        if is_url(location):
            return pool.submit(_read_recording, location, self.storage_options).result
        return partial(_read_recording, location, self.storage_options)

    def _clip(self, row: Mapping[str, Any], recording: bytes) -> dict[str, Any]:
        samples = decode(recording, name=str(row["audio"]), sampling_rate_hz=self.options.sampling_rate_hz)
        return {
            "id": row["id"],
            "audio": {"bytes": encode_flac(samples, self.options.sampling_rate_hz), "path": None},
            "text": normalize(str(row["text"] or ""), self.options),
            "speaker": row["speaker"],
            "duration_s": len(samples) / self.options.sampling_rate_hz,
        }


Runner = Callable[[list[pa.Table], ShardTask], Iterator[pa.Table]]


def run_here(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
    """Runs the task over all blocks in this process."""
    yield from map(task, blocks)


def run_on_ray(
    blocks: list[pa.Table], task: ShardTask, task_resources: Mapping[str, float] | None = None
) -> Iterator[pa.Table]:
    """Runs the task over all blocks with Ray Data, on all nodes of the cluster.

    Args:
        blocks: Rows of the source.
        task: What to do with a block.
        task_resources: Custom resources that each Ray task reserves beside its CPU.
    """
    # Only here, so that the core runs on a machine without Ray.
    import ray.data  # noqa: PLC0415

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    with_secrets = partial(_with_secrets, task)
    rows = ray.data.from_arrow(blocks).map_batches(
        with_secrets,
        batch_size=None,
        batch_format="pyarrow",
        zero_copy_batch=True,
        resources=dict(task_resources or {}),
    )
    yield from rows.iter_batches(batch_size=None, batch_format="pyarrow")


def _with_secrets(task: ShardTask, block: pa.Table) -> pa.Table:
    """The task on a node, whose own secrets, such as a bucket's, are set first."""
    resolve_secrets(os.environ)
    return task(block)


def prepared_key(source: Source, data: DataPart) -> str:
    """Hash of everything that decides which bytes preparing a split writes: 32 hexadecimal digits."""
    options = PrepareOptions.of(data)
    return hashlib.sha256(json.dumps([source.fingerprint, options.hashed]).encode()).hexdigest()[:32]


def prepare(
    source: Source,
    data: DataPart,
    *,
    cache_url: str,
    storage_options: StorageOptions,
    runner: Runner,
    log: Callable[[str], None],
) -> PreparedSet:
    """Prepares one split, or finds it prepared.

    Args:
        source: What to prepare.
        data: The config's data part.
        cache_url: Where prepared sets are kept.
        storage_options: How s3:// and its like are reached.
        runner: `run_on_ray` or `run_here`.
        log: Called with lines of progress.

    Raises:
        DataError: more than `data.max_bad_fraction` of the rows cannot be decoded, or all; with the worst reasons.
        StorageError: the cache cannot be written.
    """
    cache = open_storage(cache_url, storage_options)
    options = PrepareOptions.of(data)
    key = prepared_key(source, data)
    found = find(cache, key, storage_options)
    if source.note:
        log(f"prepare {source.split}: {source.note}")
    if found is None:
        folder = f"{key}-{uuid.uuid4().hex[:8]}"
        task = ShardTask(cache.url(folder), storage_options, options)
        try:
            results = _run(source, data, runner, task, log)
        except BaseException:
            cache.delete_tree(folder)
            raise
        finish(cache, folder, key, *_split_results(results))
        _drop_stale(cache, key)
        found = find(cache, key, storage_options)
        assert found is not None
    else:
        log(f"prepare {source.split}: already prepared, {found.summary.prepared} clips in {found.url}")
    _check_bad(source, data, found.summary.quarantined, found.summary.rows, found.quarantine)
    return found


def blocks_of(table: pa.Table, rows_per_shard: int, shards_per_block: int = 1) -> list[pa.Table]:
    """Cuts a table into blocks of whole shards; which rows form a shard depends on neither cluster nor blocks."""
    shards = np.arange(len(table), dtype=np.int64) // rows_per_shard
    numbered = table.append_column("shard", pa.array(shards))
    rows = rows_per_shard * shards_per_block
    return [numbered.slice(first, rows) for first in range(0, len(table), rows)]


def _run(source: Source, data: DataPart, runner: Runner, task: ShardTask, log: Callable[[str], None]) -> pa.Table:
    rows_per_shard = task.options.rows_per_shard
    # A task reads a group of a Parquet file from its first row on, so several shards of a large one are one task's.
    shards_per_block = min(MOST_SHARDS_PER_BLOCK, math.ceil(source.rows_at_once / rows_per_shard))
    blocks = blocks_of(source.table, rows_per_shard, shards_per_block)
    progress = Progress(f"prepare {source.split}", total=len(source.table), unit="clips", log=log)
    parts: list[pa.Table] = []
    bad: list[dict[str, str]] = []
    for part in runner(blocks, task):
        parts.append(part)
        bad += [{"id": row["id"], "reason": row["reason"]} for row in part.to_pylist() if row["reason"] is not None]
        progress.advance(len(part), note=f"{len(bad)} quarantined" if bad else "")
        _check_bad(source, data, len(bad), len(source.table), bad)
    progress.done()
    return pa.concat_tables(parts)


def _split_results(results: pa.Table) -> tuple[pa.Table, list[dict[str, str]], int]:
    """Index rows in the manifest's order, quarantined rows, and bytes stored."""
    ordered = results.sort_by("source_row")
    bad = ordered.filter(ordered["reason"].is_valid())
    good = ordered.filter(ordered["reason"].is_null()) if len(bad) else ordered
    stored_bytes: int = pc.sum(ordered["stored_bytes"]).as_py()
    return (
        good.select(["id", "shard", "row", "duration_s", "text"]),
        bad.select(["id", "reason"]).to_pylist(),
        stored_bytes,
    )


def _check_bad(source: Source, data: DataPart, bad: int, rows: int, quarantine: list[dict[str, str]]) -> None:
    if bad <= data.max_bad_fraction * rows and bad < rows:
        return
    worst = Counter(row["reason"] for row in quarantine).most_common(5)
    reasons = "\n".join(f"  - {count} × {reason}" for reason, count in worst)
    examples = ", ".join(row["id"] for row in quarantine[:3])
    raise DataError(
        f"{source.origin}: {bad} of {rows} recordings cannot be decoded, more than data.max_bad_fraction "
        f"{data.max_bad_fraction} allows (e.g. {examples}):\n{reasons}\n"
        f"fix or remove them, or raise data.max_bad_fraction"
    )


def _read_recording(location: str, storage_options: StorageOptions) -> bytes:
    try:
        return read_location(location, storage_options, one_of_many=True)
    except FileNotFoundError:
        raise AudioError("no such file") from None
    except IsADirectoryError:
        raise AudioError("is a folder, not a recording") from None
    except PermissionError:
        raise AudioError("permission denied") from None
    except OSError as error:
        # A transient error, such as a file server that restarts, is not a property of the recording.
        raise StorageError(
            f"{location}: cannot be read: {error.strerror or error}; prepare again when it can"
        ) from error


def _arrow_stream(table: pa.Table) -> bytes:
    sink = io.BytesIO()
    with pa.ipc.new_stream(sink, table.schema) as writer:
        writer.write_table(table.combine_chunks())
    return sink.getvalue()


def _drop_stale(cache: Storage, key: str) -> None:
    """Deletes folders of the same key that a killed writer left more than STALE_FOLDER_S ago."""
    claimed = json.loads(cache.read_bytes(f"{key}.json"))["folder"]
    for folder in cache.list_folders():
        if not folder.startswith(f"{key}-") or folder == claimed:
            continue
        entries = cache.list_files(folder)
        if not entries or max(entry.modified_s for entry in entries) < time.time() - STALE_FOLDER_S:
            cache.delete_tree(folder)
