"""Prepares speech once, over all nodes: decode, mix to mono, resample, normalize the text, store as 16-bit FLAC.

Ray Data distributes blocks of rows to tasks; each task writes the shards of its block and returns a few numbers per
row. Without Ray, the same function runs over the same blocks in this process, with the same result.

A shard is finished when its file exists; the file is created once, and contains the result of each row. A task that is
run again, by Ray or by the run's next start, thus processes only unfinished shards.
"""

import hashlib
import io
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import DataPart
from trainers.config.secrets import resolve_secrets
from trainers.config.storage_location import StorageOptions
from trainers.config.wording import counted
from trainers.data.audio import SAMPLING_RATE_HZ, UTTERANCE_VALUES, decode, encode_flac
from trainers.data.prepared_set import (
    OPTIONAL,
    JoinedMember,
    JoinedSet,
    PreparedSet,
    find,
    finish,
    joined_key,
    shard_name,
)
from trainers.data.sources.data_source import SourceSplit
from trainers.data.sources.manifest import segment
from trainers.data.sources.packing import JOINED, PREVIOUS, SEGMENTS
from trainers.data.sources.recording_readers import RecordingReader, Row
from trainers.data.sources.row_files.row_file import FILE, ROW
from trainers.data.text import TextRules, normalize
from trainers.distributed.console import Event, ProgressCounter
from trainers.errors import AudioError, DataError, StorageError
from trainers.storage import Storage, open_storage

# Increased when the bytes that preparation writes change, so that sets of older versions are not reused.
FORMAT_VERSION = 1
ROWS_PER_SHARD = 256
MOST_SHARDS_PER_BLOCK = 8
# How often Ray Data updates its resource limits on the cluster. It starts with none, which is one task at a time, and
# by default updates after a second.
RESOURCES_EVERY_S = 0.1
# A recording whose length differs from its manifest's duration by more than any rounding belongs to a segment, was
# truncated undetectably, or is another recording.
FROM_DECLARED_S = 1.0

# The Arrow metadata of a data set with a column Audio(decode=False), from which datasets reads its features.
FEATURES: dict[str, dict[str, Any]] = {
    "id": {"dtype": "string", "_type": "Value"},
    "audio": {"sampling_rate": SAMPLING_RATE_HZ, "decode": False, "_type": "Audio"},
    "text": {"dtype": "string", "_type": "Value"},
    "speaker": {"dtype": "string", "_type": "Value"},
    "duration_s": {"dtype": "float64", "_type": "Value"},
}
_AUDIO = pa.struct([("bytes", pa.binary()), ("path", pa.string())])
SHARD_SCHEMA = pa.schema(
    [(name, _AUDIO if name == "audio" else pa.type_for_alias(kind["dtype"])) for name, kind in FEATURES.items()],
    metadata={"huggingface": json.dumps({"info": {"features": FEATURES}})},
)
# Key, in the metadata of a shard's schema, of the results of its rows, as JSON.
RESULTS = b"rayscribe"
RESULT_SCHEMA = pa.schema(
    [
        ("source_row", pa.int64()),
        ("id", pa.string()),
        ("shard", pa.int64()),
        ("row", pa.int64()),
        ("duration_s", pa.float64()),
        ("text", pa.string()),
        ("language", pa.string()),
        (SEGMENTS, pa.string()),
        (PREVIOUS, pa.string()),
        ("reason", pa.string()),
        ("stored_bytes", pa.int64()),
    ]
)


@dataclass(frozen=True)
class PrepareOptions(TextRules):
    """Options that determine, with the source, which bytes preparation writes."""

    sampling_rate_hz: int = SAMPLING_RATE_HZ
    version: int = FORMAT_VERSION
    rows_per_shard: int = ROWS_PER_SHARD

    @classmethod
    def of(cls, data: DataPart) -> "PrepareOptions":
        return cls(data.do_lower_case, data.do_remove_punctuation, data.chars_to_ignore)

    @property
    def hashed(self) -> dict[str, Any]:
        """The options to hash; newer options are included only if they are used."""
        return {name: value for name, value in asdict(self).items() if name != "chars_to_ignore" or value}


@dataclass(frozen=True)
class ShardTask:
    """Prepares blocks of rows; it is sent to the nodes with everything that a task needs in addition."""

    folder_url: str
    storage_options: StorageOptions
    options: PrepareOptions
    reader: RecordingReader

    def __call__(self, block: pa.Table) -> pa.Table:
        """Decodes and stores the rows of each unfinished shard in a block; returns the results of all rows."""
        pa.set_cpu_count(1)
        storage = open_storage(self.folder_url, self.storage_options)
        rows = block.to_pylist()
        finished = {shard: stored_results(storage, shard) for shard in dict.fromkeys(map(_shard, rows))}
        results = [result for of_shard in finished.values() for result in of_shard or ()]
        unfinished = [row for row in rows if finished[_shard(row)] is None]
        with_samples = decoded(unfinished, self.reader, self.options.sampling_rate_hz)
        for shard, of_shard in groupby(with_samples, key=lambda pair: _shard(pair[0])):
            results += self._write_shard(storage, shard, of_shard)
        return pa.Table.from_pylist(results, schema=RESULT_SCHEMA)

    def _write_shard(
        self, storage: Storage, shard: int, with_samples: Iterable[tuple[Row, np.ndarray | AudioError]]
    ) -> list[dict[str, Any]]:
        made = [
            (row, samples if isinstance(samples, AudioError) else self._clip(row, samples))
            for row, samples in with_samples
        ]
        stored: list[dict[str, Any]] = []
        results: list[dict[str, Any]] = []
        # Sorted, since rows of one recording were decoded together.
        for row, clip in sorted(made, key=lambda pair: int(pair[0]["row"])):
            result = {"source_row": row["row"], "stored_bytes": 0}
            result |= {name: row[name] for name in ("id", "shard", "language")} | self._packed(row)
            if isinstance(clip, AudioError):
                joined = f" (a clip of {row[JOINED]})" if row.get(JOINED) is not None else ""
                results.append({**result, "reason": f"{clip}{joined}"})
                continue
            results.append({**result, "row": len(stored), "duration_s": clip["duration_s"], "text": clip["text"]})
            stored.append(clip)
        schema = SHARD_SCHEMA.with_metadata({**SHARD_SCHEMA.metadata, RESULTS: json.dumps(results)})
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, schema) as writer:
            writer.write_table(pa.Table.from_pylist(stored, schema=schema))
        # A task that Ray believes lost may write the same shard at the same time.
        storage.create_exclusive(shard_name(shard), sink.getvalue())
        counted = stored_results(storage, shard)
        assert counted is not None
        return counted

    def _packed(self, row: Row) -> dict[str, str]:
        """Returns the values of SEGMENTS and PREVIOUS with normalized texts; empty for a row that is not packed."""
        found = {}
        if (segments := row.get(SEGMENTS)) is not None:
            times = [[normalize(text, self.options), *rest] for text, *rest in json.loads(segments)]
            found[SEGMENTS] = json.dumps(times, ensure_ascii=False)
        if (previous := row.get(PREVIOUS)) is not None:
            found[PREVIOUS] = normalize(previous, self.options)
        return found

    def _clip(self, row: Row, samples: np.ndarray) -> dict[str, Any]:
        return {
            "id": row["id"],
            "audio": {"bytes": encode_flac(samples, self.options.sampling_rate_hz), "path": None},
            "text": normalize(str(row["text"] or ""), self.options),
            "speaker": row["speaker"],
            "duration_s": len(samples) / self.options.sampling_rate_hz,
        }


def decoded(
    rows: Sequence[Row], reader: RecordingReader, rate_hz: int, *, most_values: int = UTTERANCE_VALUES
) -> Iterator[tuple[Row, np.ndarray | AudioError]]:
    """Yields each row with its samples, float32 (T,), or the error; decodes a recording once per shard.

    Rows of one shard are yielded together, those of one recording next to each other. For `most_values` see `decode`.
    """
    groups = _by_recording(rows)
    for group, source in zip(groups, reader.read([each[0] for each in groups]) if groups else (), strict=True):
        try:
            if isinstance(source, AudioError):
                raise source
            name = str(group[0]["audio"])
            recording = decode(source, name=name, sampling_rate_hz=rate_hz, most_values=most_values)
        except AudioError as error:
            yield from ((row, error) for row in group)
            continue
        for row in group:
            try:
                part: np.ndarray | AudioError = _part_of(row, recording, rate_hz)
            except AudioError as error:
                part = error
            yield row, part


def stored_results(storage: Storage, shard: int) -> list[dict[str, Any]] | None:
    """Returns the result of each row of a shard, from its file; None if the shard is not finished.

    Raises DataError if the file is damaged.
    """
    name = shard_name(shard)
    if (entry := storage.entry(name)) is None:
        return None
    try:
        # An Arrow stream begins with a four-byte marker and the length of its first message, the schema.
        length = int.from_bytes(storage.read_part(name, 4, 4), "little")
        schema = pa.ipc.read_schema(pa.BufferReader(storage.read_part(name, 0, 8 + length)))
        results: list[dict[str, Any]] = json.loads(schema.metadata[RESULTS])
    except (pa.ArrowException, LookupError, ValueError) as error:
        raise DataError(f"{storage.url(name)}: this shard is damaged ({error}): prepare again") from error
    results[0]["stored_bytes"] = entry.size_bytes
    return results


def _shard(row: Row) -> int:
    return int(row["shard"])


def _by_recording(rows: Sequence[Row]) -> list[list[Row]]:
    """Groups rows whose recording is decoded once: a shard's segments of a recording, and every other row alone."""
    groups: dict[tuple[object, ...], list[Row]] = {}
    for row in rows:
        # Two recordings in a file of many recordings may have the same name.
        recording = (row["row"],) if row["offset_s"] is None else (row["audio"], row.get(FILE), row.get(ROW))
        groups.setdefault((_shard(row), *recording), []).append(row)
    return list(groups.values())


def _part_of(row: Row, recording: np.ndarray, rate_hz: int) -> np.ndarray:
    """Returns the samples that a row selects from a complete recording."""
    if row["offset_s"] is not None:
        return segment(recording, rate_hz, row["offset_s"], row["duration_s"])
    declared_s, length_s = row["duration_s"], len(recording) / rate_hz
    if declared_s and abs(length_s - declared_s) > FROM_DECLARED_S:
        is_longer = length_s > declared_s
        fix = "give segments an offset (0: from the beginning)" if is_longer else "fetch the recording again"
        raise AudioError(
            f"is {length_s:.2f} s long, where the manifest's duration is {declared_s:g} s: correct the duration, or "
            f"{fix}"
        )
    return recording


Runner = Callable[[list[pa.Table], ShardTask], Iterator[pa.Table]]


def run_in_process(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
    """Yields the result of the task for each block, run in this process."""
    yield from map(task, blocks)


def run_on_ray(
    blocks: list[pa.Table], task: ShardTask, task_resources: Mapping[str, float] | None = None
) -> Iterator[pa.Table]:
    """Yields the results of the task over all blocks, run with Ray Data on all nodes of the cluster.

    Each Ray task reserves `task_resources` in addition to its CPU.
    """
    # Imported lazily, so that the core runs on a machine without Ray.
    import ray.data  # noqa: PLC0415
    from ray.data._internal.execution.resource_manager import ResourceManager  # noqa: PLC0415

    logging.getLogger("ray.data").setLevel(logging.ERROR)
    context = ray.data.DataContext.get_current()
    context.enable_progress_bars = False
    context.print_on_execution_start = False
    ResourceManager.GLOBAL_LIMITS_UPDATE_INTERVAL_S = RESOURCES_EVERY_S  # type: ignore[assignment]
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
    """Runs the task on a node, after setting the node's own secrets, such as those for a bucket."""
    resolve_secrets(os.environ)
    return task(block)


def prepared_key(source: SourceSplit, data: DataPart) -> str:
    """Returns a hash of everything that determines the bytes of a prepared split: 32 hexadecimal digits."""
    if source.members:
        return joined_key([(each.name, each.language, prepared_key(each.source, data)) for each in source.members])
    options = PrepareOptions.of(data)
    return hashlib.sha256(json.dumps([source.fingerprint, options.hashed]).encode()).hexdigest()[:32]


def prepare(
    source: SourceSplit,
    data: DataPart,
    *,
    cache_url: str,
    storage_options: StorageOptions,
    run: str,
    runner: Runner,
    log: Callable[[Event], None],
) -> PreparedSet:
    """Prepares one split, or finds it prepared; prepares each member of a mix separately.

    Finished shards of an interrupted preparation are reused by the next start of the same `run`, unless too many rows
    were bad; then these are read again, since they may have been corrected.

    Raises:
        DataError: More than `data.max_bad_fraction` of the rows, or all, cannot be decoded; it has the main reasons.
        StorageError: The cache cannot be written.
    """
    if source.members:
        how: dict[str, Any] = {"cache_url": cache_url, "storage_options": storage_options, "run": run}
        sets = [prepare(each.source, data, **how, runner=runner, log=log) for each in source.members]
        return JoinedSet.of(
            [JoinedMember(each.name, each.language, made) for each, made in zip(source.members, sets, strict=True)]
        )
    cache = open_storage(cache_url, storage_options)
    options = PrepareOptions.of(data)
    key = prepared_key(source, data)
    found = find(cache, key, storage_options)
    if found is None:
        folder = f"{key}-{hashlib.sha256(run.encode()).hexdigest()[:8]}"
        if finished := sum(entry.key.endswith(".arrow") for entry in cache.list_files(folder)):
            log(f"prepare {source.split}: {counted(finished, 'shard')} of an earlier start reused")
        task = ShardTask(cache.url(folder), storage_options, options, source.reader)
        try:
            results = _run(source, data, runner, task, log)
            finish(cache, folder, key, *_split_results(results))
        except BaseException as error:
            found = find(cache, key, storage_options)
            unused = isinstance(error, DataError) if found is None else found.url != cache.url(folder)
            if unused:
                with suppress(StorageError):
                    cache.delete_tree(folder)
            # The writer that finishes first removes the files of all others, whose errors then do not matter.
            if not isinstance(error, Exception) or found is None:
                raise
        _drop_unclaimed(cache, key)
        found = find(cache, key, storage_options)
        assert found is not None
    else:
        log(f"prepare {source.split}: already prepared, {counted(found.summary.prepared, 'clip')} in {found.url}")
    _check_bad(source, data, found.summary.quarantined, found.summary.rows, found.quarantine)
    _tell_of_empty_texts(source, data, found, log)
    return found


def blocks_of(table: pa.Table, rows_per_shard: int, shards_per_block: int = 1) -> list[pa.Table]:
    """Splits a table into blocks of complete shards; the rows of a shard depend on neither cluster nor blocks."""
    shards = np.arange(len(table), dtype=np.int64) // rows_per_shard
    numbered = table.append_column("shard", pa.array(shards))
    rows = rows_per_shard * shards_per_block
    return [numbered.slice(first, rows) for first in range(0, len(table), rows)]


def _run(
    source: SourceSplit, data: DataPart, runner: Runner, task: ShardTask, log: Callable[[Event], None]
) -> pa.Table:
    rows_per_shard = task.options.rows_per_shard
    # A task reads a group of a Parquet file from its first row on, so one task has several shards of a large group.
    shards_per_block = min(MOST_SHARDS_PER_BLOCK, math.ceil(source.rows_at_once / rows_per_shard))
    blocks = blocks_of(source.table, rows_per_shard, shards_per_block)
    counter = ProgressCounter(f"prepare {source.split}", total=len(source.table), unit="clips", show=log)
    parts: list[pa.Table] = []
    bad: list[dict[str, str]] = []
    for part in runner(blocks, task):
        parts.append(part)
        bad += [{"id": row["id"], "reason": row["reason"]} for row in part.to_pylist() if row["reason"] is not None]
        counter.advance(len(part), note=f"{len(bad)} quarantined" if bad else "")
        _check_bad(source, data, len(bad), len(source.table), bad)
    counter.done()
    return pa.concat_tables(parts)


def _split_results(results: pa.Table) -> tuple[pa.Table, list[dict[str, str]], int]:
    """Returns index rows in the manifest's order, quarantined rows, and the number of bytes stored."""
    ordered = results.sort_by("source_row")
    bad = ordered.filter(ordered["reason"].is_valid())
    good = ordered.filter(ordered["reason"].is_null()) if len(bad) else ordered
    stored_bytes: int = pc.sum(ordered["stored_bytes"]).as_py()
    known = [name for name in OPTIONAL if ordered[name].null_count < len(ordered)]
    return (
        good.select(["id", "shard", "row", "duration_s", "text", *known]),
        bad.select(["id", "reason"]).to_pylist(),
        stored_bytes,
    )


def _check_bad(source: SourceSplit, data: DataPart, bad: int, rows: int, quarantine: list[dict[str, str]]) -> None:
    if bad <= data.max_bad_fraction * rows and bad < rows:
        return
    worst = Counter(row["reason"] for row in quarantine).most_common(5)
    reasons = "\n".join(f"  - {count} × {reason}" for reason, count in worst)
    examples = ", ".join(row["id"] for row in quarantine[:3])
    raise DataError(
        f"{source.origin}: {bad} of {rows} recordings cannot be decoded, more than data.max_bad_fraction "
        f"{data.max_bad_fraction} allows (e.g. {examples}):\n{reasons}\n"
        f"fix them, take them out of {source.origin}, or raise data.max_bad_fraction"
    )


def _tell_of_empty_texts(source: SourceSplit, data: DataPart, found: PreparedSet, log: Callable[[Event], None]) -> None:
    texts = found.index["text"]
    if empty := pc.sum(pc.equal(texts, "")).as_py():
        of_all = f"{empty:,} of {counted(len(texts), 'clip')}"
        if source.is_training and data.empty_text == "train":
            log(f"{source.split}: {of_all} have no text, and teach the model to write nothing (data.empty_text)")
            return
        fate = "left out of training" if source.is_training else "scored: each word recognized in them is an error"
        log(
            f"warning: {source.split}: {of_all} have no text and are {fate}; "
            f"write their texts into {source.origin}, or take them out"
        )


def _drop_unclaimed(cache: Storage, key: str) -> None:
    """Deletes the files of other writers of the same set: of killed ones, and of slower ones, which are never read."""
    claimed = json.loads(cache.read_bytes(f"{key}.json"))["folder"]
    for folder in cache.list_folders(start=f"{key}-"):
        if folder != claimed:
            # A slower writer may still be writing to the folder, and removes it at the end.
            with suppress(StorageError):
                cache.delete_tree(folder)
