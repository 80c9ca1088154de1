"""Data source `tar`: each split is a tar file of recordings (a.flac, …) with a transcript next to each (a.txt)."""

import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import pyarrow as pa
from rayscribe.trainers.config.parts.part import Part
from rayscribe.trainers.config.validation import refuse, validated
from rayscribe.trainers.data.sources.data_source import SPLITS, DataSource, SourceSplit, table_of
from rayscribe.trainers.data.sources.fingerprint import hash_of
from rayscribe.trainers.data.sources.recording_readers import Row
from rayscribe.trainers.errors import AudioError, DataError, StorageError
from rayscribe.trainers.storage import Storage

AUDIO = (".flac", ".wav")


class TarOptions(Part):
    """`data.source.options`: a tar file for each split, which every node must be able to read."""

    train: str
    validation: str
    test: str | None = None


@dataclass(frozen=True)
class TarReader:
    """Reads recordings where they lie in the file; it travels to the nodes, so that it holds nothing open."""

    path: str

    def read(self, rows: Sequence[Row]) -> Iterator[bytes | AudioError]:
        """Gives the recording of each row."""
        try:
            with Path(self.path).open("rb") as file:
                for row in rows:
                    file.seek(row["first_byte"])
                    yield file.read(row["size_bytes"])
        except OSError as error:
            raise StorageError(f"{self.path}: {error.strerror}: put it where every node can read it") from error


class TarSource(DataSource):
    """The tar files of a config."""

    @property
    def splits(self) -> tuple[str, ...]:
        return tuple(split for split in SPLITS if getattr(self._options, split) is not None)

    def open(self, split: str, fingerprint_cache: Storage | None) -> SourceSplit:
        path = getattr(self._options, split)
        try:
            with tarfile.open(path, "r:") as archive:
                members = {member.name: member for member in archive if member.isfile()}
                names = [name for name in members if PurePosixPath(name).suffix in AUDIO]
                texts = [_text(archive, members, name) for name in names]
        except (OSError, tarfile.TarError) as error:
            raise DataError(f"data.source.options.{split}: {path}: {error}: name a tar file") from error
        table = table_of({"id": name, "audio": name, "text": text} for name, text in zip(names, texts, strict=True))
        starts = pa.array([members[name].offset_data for name in names], pa.int64())
        sizes = pa.array([members[name].size for name in names], pa.int64())
        status = Path(path).stat()
        return SourceSplit(
            split,
            path,
            table.append_column("first_byte", starts).append_column("size_bytes", sizes),
            TarReader(path),
            # A file that was replaced is prepared again.
            hash_of(path, status.st_size, status.st_mtime, names, texts),
            node_files=[path],
        )

    @property
    def _options(self) -> TarOptions:
        assert self.data.source is not None
        options, problems = validated(TarOptions, self.data.source.options)
        refuse(problems, "data.source.options")
        assert options is not None
        return options


def _text(archive: tarfile.TarFile, members: dict[str, tarfile.TarInfo], recording: str) -> str:
    name = str(PurePosixPath(recording).with_suffix(".txt"))
    file = archive.extractfile(members[name]) if name in members else None
    if file is None:
        raise DataError(f"{archive.name!r}: {recording} has no transcript {name}: add it, or remove the recording")
    return file.read().decode("utf-8").strip()
