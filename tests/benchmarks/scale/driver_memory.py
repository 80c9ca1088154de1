"""The driver's memory while a data set is prepared: python -m tests.benchmarks.scale.driver_memory [--format arrow].

Prepares sets of two sizes on a Ray of this machine, each with a driver of its own, and compares the drivers' peaks. The
recordings are short; what passes through a driver would show all the same: the larger set's are 100 times as many.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import ray
import soundfile

from tests.benchmarks.scale.figures import Figure, peak_gb, print_figures
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import prepare, run_on_ray
from trainers.data.sources.known_sources import open_sources
from trainers.storage import open_storage

GOAL = 1.2
ROWS_PER_FILE, ROWS_PER_SHARD = 10_000, 1_000
SAMPLES = 8000
SCHEMA = pa.schema(
    [("audio", pa.struct([("bytes", pa.binary()), ("path", pa.string())])), ("text", pa.string())],
    metadata={
        "huggingface": json.dumps(
            {"info": {"features": {"audio": {"_type": "Audio"}, "text": {"dtype": "string", "_type": "Value"}}}}
        )
    },
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks.scale.driver_memory", description=__doc__)
    parser.add_argument("--rows", type=int, nargs=2, default=[1_000, 100_000])
    parser.add_argument("--format", choices=WRITERS, default="parquet")
    parser.add_argument("--drive", type=Path, help=argparse.SUPPRESS)
    chosen = parser.parse_args(arguments)
    if chosen.drive:
        print(_drive(chosen.drive, chosen.format))
        return 0
    measured = [_measure(rows, chosen.format) for rows in chosen.rows]
    (few, less), (many, more) = ((rows, gigabytes) for rows, (gigabytes, _) in zip(chosen.rows, measured, strict=True))
    print(f"recordings of {measured[1][1] / 1e6:,.0f} MB in all in the larger set\n")
    print_figures(
        [
            Figure(f"memory of the driver, {few:,} rows, GB", less, digits=3),
            Figure(f"memory of the driver, {many:,} rows, GB", more, digits=3),
            Figure("times as much", more / less, most=GOAL),
        ]
    )
    return 0


def _measure(rows: int, kind: str) -> tuple[float, int]:
    """Gigabytes of the driver at its peak, and the bytes of all recordings."""
    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as temporary:
        folder = Path(temporary)
        samples = np.random.default_rng(1).integers(-9000, 9000, SAMPLES).astype(np.int16)
        sink = io.BytesIO()
        soundfile.write(sink, samples, 16_000, format="WAV", subtype="PCM_16")
        (folder / "set" / "train").mkdir(parents=True)
        WRITERS[kind](folder / "set" / "train", sink.getvalue(), rows)
        command = [sys.executable, "-m", "tests.benchmarks.scale.driver_memory", "--drive", temporary, "--format", kind]
        environment = {**os.environ, "HF_HOME": f"{temporary}/huggingface"}
        result = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, env=environment)
        return float(result.stdout.splitlines()[-1]), rows * len(sink.getvalue())


def _write_parquet(folder: Path, recording: bytes, rows: int) -> None:
    for first, table in _tables(recording, rows):
        path = folder / f"train-{first:08d}.parquet"
        pq.write_table(table, path, row_group_size=100, use_dictionary=False, compression="none")


def _write_arrow(folder: Path, recording: bytes, rows: int) -> None:
    """As `DatasetDict.save_to_disk` writes it."""
    names = []
    for first, table in _tables(recording, rows):
        names.append(f"data-{first:08d}.arrow")
        with pa.ipc.new_stream(str(folder / names[-1]), SCHEMA) as writer:
            writer.write_table(table, max_chunksize=100)
    (folder / "state.json").write_text(json.dumps({"_data_files": [{"filename": name} for name in names]}))
    (folder.parent / "dataset_dict.json").write_text(json.dumps({"splits": ["train"]}))


def _write_audiofolder(folder: Path, recording: bytes, rows: int) -> None:
    for number in range(rows):
        (folder / f"{number}.wav").write_bytes(recording)
    lines = "".join(f"{number}.wav,a word or two\n" for number in range(rows))
    (folder / "metadata.csv").write_text(f"file_name,text\n{lines}")


def _write_json(folder: Path, recording: bytes, rows: int) -> None:
    clips = folder.parents[1] / "clips"
    clips.mkdir()
    with (folder / "train.jsonl").open("w") as file:
        for number in range(rows):
            path = clips / f"{number}.wav"
            path.write_bytes(recording)
            file.write(json.dumps({"audio": str(path), "text": "a word or two"}) + "\n")


def _write_manifest(folder: Path, recording: bytes, rows: int) -> None:
    for number in range(rows):
        (folder / f"{number}.wav").write_bytes(recording)
    lines = "".join(f"{number}.wav,a word or two\n" for number in range(rows))
    (folder / "train.csv").write_text(f"path,text\n{lines}")


def _write_webdataset(folder: Path, recording: bytes, rows: int) -> None:
    for first in range(0, rows, ROWS_PER_SHARD):
        with tarfile.open(folder / f"{first // ROWS_PER_SHARD}.tar", "w") as archive:
            for number in range(first, min(first + ROWS_PER_SHARD, rows)):
                _add(archive, f"{number:08d}.wav", recording)
                _add(archive, f"{number:08d}.txt", b"a word or two")


def _write_archive(folder: Path, recording: bytes, rows: int) -> None:
    lines = "".join(f"{number}.wav,a word or two\n" for number in range(rows))
    with tarfile.open(folder / "corpus.tar.gz", "w:gz", compresslevel=1) as archive:
        _add(archive, "train.csv", f"path,text\n{lines}".encode())
        for number in range(rows):
            _add(archive, f"{number}.wav", recording)


def _add(archive: tarfile.TarFile, name: str, content: bytes) -> None:
    info = tarfile.TarInfo(name)
    info.size = len(content)
    archive.addfile(info, io.BytesIO(content))


def _tables(recording: bytes, rows: int) -> Iterator[tuple[int, pa.Table]]:
    row = {"audio": {"bytes": recording, "path": None}, "text": "a word or two"}
    for first in range(0, rows, ROWS_PER_FILE):
        yield first, pa.Table.from_pylist([row] * min(ROWS_PER_FILE, rows - first), schema=SCHEMA)


# Writes a split into a folder: so many rows of the same recording.
Writer = Callable[[Path, bytes, int], None]
WRITERS: Mapping[str, Writer] = {
    "parquet": _write_parquet,
    "arrow": _write_arrow,
    "audiofolder": _write_audiofolder,
    "json": _write_json,
    "manifest": _write_manifest,
    "webdataset": _write_webdataset,
    "archive": _write_archive,
}
# Where the rows of those are that are no data set of `datasets`: below their folder, of so many shards.
LOCATIONS: Mapping[str, Callable[[Path, int], str]] = {
    "manifest": lambda folder, shards: f"{folder}/train.csv",
    "webdataset": lambda folder, shards: f"webdataset:{folder}/{{0..{shards - 1}}}.tar",
    "archive": lambda folder, shards: f"{folder}/corpus.tar.gz/train.csv",
}


def _data_of(folder: Path, kind: str) -> DataPart:
    if kind in LOCATIONS:
        split = folder / "set" / "train"
        location = LOCATIONS[kind](split, len(list(split.glob("*.tar"))))
        return DataPart(train=location, validation="/nowhere.csv")
    part = {"name": str(folder / "set"), "validation_split": "none", "test_split": None}
    return DataPart.model_validate({"dataset": part, "audio_column_name": "audio", "text_column_name": "text"})


def _drive(folder: Path, kind: str) -> float:
    """Prepares as a driver does; gives its memory at its peak, in gigabytes."""
    data = _data_of(folder, kind)
    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, object_store_memory=200_000_000)
    try:
        cache = open_storage(str(folder / "prepared"), StorageOptions())
        (source,) = open_sources(data, storage_options=StorageOptions(), splits=("train",), fingerprint_cache=cache)
        made = prepare(
            source,
            data,
            cache_url=str(folder / "prepared"),
            storage_options=StorageOptions(),
            run="test",
            runner=run_on_ray,
            log=lambda line: None,
        )
        assert made.summary.prepared == len(source.table)
        return peak_gb()
    finally:
        ray.shutdown()


if __name__ == "__main__":
    sys.exit(main())
