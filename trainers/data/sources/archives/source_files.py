"""Reads files that list data, at paths, at URLs and in archives."""

import os
import posixpath
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.parts.data_part import Quoting
from trainers.config.storage_location import StorageOptions, is_hub_url, is_remote, is_web_url, without_password
from trainers.data.sources.archives.archive_index import COLUMNS, ArchiveIndex, ArchiveReader, open_index
from trainers.data.sources.archives.archive_path import SUFFIX, SUFFIXES, archives_in, is_archive, is_compressed
from trainers.data.sources.data_source import with_columns
from trainers.data.sources.located_files import hub_files, is_file, read_location, reason_of
from trainers.data.sources.manifest_fields import UTF_8, in_utf_8
from trainers.data.sources.recording_readers import FileReader, RecordingReader, without_location
from trainers.errors import DataError, NoAccessError, NotHereError
from trainers.storage import Storage, open_storage
from trainers.storage.hub_errors import read_from_hub

_PARALLEL_ARCHIVES = 8
# Maximum size of a corpus's table, which is read at once.
_MOST_TABLE_BYTES = 2 * 2**30
_LIKE_ARCHIVES = f"(?i){SUFFIX}/"


@dataclass(frozen=True)
class LocatedRows:
    """Rows, and the reader of their recordings. Rows of an archive have `archive_index`'s columns to locate them in it.

    `files` are the archives, and the recordings that are separate files.
    """

    table: pa.Table
    reader: RecordingReader
    files: list[str]


@dataclass
class SourceFiles:
    """Reads files that list data, and caches the index of each archive, also for other processes in `cache`.

    `encoding` and `quoting` are those of texts and of fields of CSV.
    """

    storage_options: StorageOptions
    cache: Storage | None
    encoding: str = UTF_8
    quoting: Quoting = "csv"
    _indexes: dict[str, ArchiveIndex] = field(default_factory=dict)
    _are_files: dict[str, bool] = field(default_factory=dict)

    def read(self, location: str) -> bytes | None:
        """Returns the text of a file at a path or URL, or of a member of an archive, in UTF-8; None if it is missing.

        Compressed content is returned unchanged.

        Raises:
            NotHereError: The file cannot be read on this machine.
            DataError: The file has another encoding, or its archive is damaged.
            StorageError: The bucket or server is not available.
        """
        try:
            if found := self._in_archive(location):
                content = found[0].content(found[1], _MOST_TABLE_BYTES)
            else:
                content = read_location(location, self.storage_options)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise NotHereError(f"{without_password(location)}: {reason_of(error)}") from None
        return None if content is None else in_utf_8(without_password(location), content, self.encoding)

    def names_in(self, folder: str) -> list[str]:
        """Returns the names of the files in a folder, at a path or a URL, sorted; empty if there is no such folder."""
        if is_web_url(folder):
            raise DataError(f"{without_password(folder)}: a web server lists no folders: name the files, as {{0..9}}")
        if is_remote(folder):
            return [key for key in self._keys_below(folder.rstrip("/")) if "/" not in key]
        path = Path(folder)
        return sorted(each.name for each in path.iterdir() if each.is_file()) if path.is_dir() else []

    def files_below(self, root: str, ending: str) -> list[str]:
        """Returns paths and URLs of all files with a suffix below a folder, a URL or a path in an archive, sorted."""
        may_be = [*archives_in(root), *([(root, "")] if is_archive(root) else [])]
        found = next((each for each in may_be if self.is_archive_file(each[0])), None)
        if found is not None:
            archive, folder = found
            prefix = f"{folder.rstrip('/')}/" if folder else ""
            names = [name for name in self._index(archive).members if name.startswith(prefix)]
            return sorted(f"{archive}/{name}" for name in names if name.endswith(ending))
        root = root.rstrip("/")
        if is_web_url(root):
            raise DataError(f"{without_password(root)}: a web server lists no folders: name its files")
        if is_remote(root):
            return [f"{root}/{key}" for key in self._keys_below(root) if key.endswith(ending)]
        return sorted(_files_below(Path(root), ending))

    def _keys_below(self, url: str) -> list[str]:
        if not is_hub_url(url):
            return sorted(entry.key for entry in open_storage(url, self.storage_options).list_files())
        try:
            return read_from_hub(lambda: hub_files(url), url)
        except OSError as error:
            raise NotHereError(f"{url}: {reason_of(error)}") from None

    def indexes(self, locations: Iterable[str]) -> list[ArchiveIndex]:
        """Opens archives, several in parallel; raises as `open_index`, and DataError if a name is not an archive's."""
        names = list(locations)
        for name in names:
            if not is_archive(name):
                endings = ", ".join(SUFFIXES)
                raise DataError(
                    f"{without_password(name)}: its extension is none of {endings}: convert it to a tar file"
                )
        with ThreadPoolExecutor(_PARALLEL_ARCHIVES) as pool:
            return list(pool.map(self._index, names))

    def root_of(self, path: str, wanted: str, name: str | None = None) -> str:
        """Returns the folder with a file, which is the path itself, or for an archive its only folder with the file.

        `name` is the folder's name: the last part of the path, or else that of a folder directly below the path. Raises
        DataError if no folder, or more than one, has the file.
        """
        if not is_archive(path) or not self.is_archive_file(path):
            path = path.rstrip("/")
            return path if name in (None, posixpath.basename(path)) else f"{path}/{name}"
        members = self._index(path).members
        folders = [member.removesuffix(wanted).rstrip("/") for member in members if f"/{member}".endswith(f"/{wanted}")]
        folders = [folder for folder in folders if name in (None, posixpath.basename(folder))]
        if not folders:
            raise DataError(f"{path}: there is no {wanted} in the archive: use another")
        if len(folders) > 1:
            raise DataError(f"{path}: {wanted} is in {', '.join(sorted(folders))}: name one, as {path}/{folders[0]}")
        return f"{path}/{folders[0]}".rstrip("/")

    def locate(self, table: pa.Table, problems: Mapping[str, str]) -> LocatedRows:
        """Locates the recordings of a table of ROW_SCHEMA; rows in compressed archives are sorted by their offset.

        `problems` are reasons why rows have no recording, by id.
        """
        files = FileReader(self.storage_options)
        paths = table["audio"].to_pylist()
        if not problems and not pc.any(pc.match_substring_regex(table["audio"], _LIKE_ARCHIVES)).as_py():
            return LocatedRows(table, files, paths)
        problems = dict(problems)
        rows: list[tuple[str | None, int | None, int | None, str | None, int | None]] = []
        used: dict[str, ArchiveIndex] = {}
        for name, path in zip(table["id"].to_pylist(), paths, strict=True):
            try:
                found = self._in_archive(path)
            except NoAccessError as error:
                found, problems[name] = None, without_location(error)
            if found is None:
                rows.append((None, None, None, problems.get(name), None))
                continue
            index, member_name = found
            used[index.location] = index
            member = index.members.get(member_name)
            problem = problems.get(name) or (member.problem if member is not None else "no such member of the archive")
            place = (member.offset, member.size) if member is not None else (0, 0)
            rows.append((index.location, *place, problem or None, member.checksum if member is not None else None))
        for values, column in zip(zip(*rows, strict=True), COLUMNS, strict=True):
            table = table.append_column(column, pa.array(values, column.type))
        if any(map(is_compressed, used)):
            table = _in_order(table)
        states = {name: index.state for name, index in used.items()}
        own = [path for path, row in zip(paths, rows, strict=True) if row[0] is None]
        return LocatedRows(table, ArchiveReader(states, files), [*used, *own])

    def _in_archive(self, location: str) -> tuple[ArchiveIndex, str] | None:
        for archive, name in archives_in(location):
            if self.is_archive_file(archive):
                return self._index(archive), name
        return None

    def is_archive_file(self, location: str) -> bool:
        """Returns True if the path is an archive, not a folder with such a name."""
        if location not in self._are_files:
            self._are_files[location] = is_file(location, self.storage_options)
        return self._are_files[location]

    def _index(self, location: str) -> ArchiveIndex:
        if location not in self._indexes:
            self._indexes[location] = open_index(location, self.storage_options, self.cache)
        return self._indexes[location]


def file_of(path: str, storage_options: StorageOptions) -> str:
    """Returns the archive that a path or URL leads into, or the path itself if it leads into none."""
    return next((archive for archive, _ in archives_in(path) if is_file(archive, storage_options)), path)


def _files_below(root: Path, ending: str) -> Iterator[str]:
    """Yields files below a folder, following links to folders. Raises NotHereError if a folder cannot be read."""

    def refuse(error: OSError) -> None:
        raise NotHereError(f"{error.filename}: {reason_of(error)}") from None

    seen: set[str] = set()
    for folder, folders, names in os.walk(root, followlinks=True, onerror=refuse):
        seen.add(os.path.realpath(folder))
        folders[:] = [each for each in folders if os.path.realpath(f"{folder}/{each}") not in seen]
        yield from (f"{folder}/{name}" for name in names if name.endswith(ending))


def _in_order(table: pa.Table) -> pa.Table:
    """Sorts rows by their offset, so that an archive is read sequentially."""
    places = pa.table({"archive": table["archive"].cast(pa.string()), "offset": table["archive_offset"]})
    ordered = table.take(pc.sort_indices(places, [("archive", "ascending"), ("offset", "ascending")]))
    return with_columns(ordered, row=pa.array(np.arange(len(table), dtype=np.int64)))
