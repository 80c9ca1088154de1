"""Fetches inputs of a program from buckets and web servers, once per node; for a manifest, also its recordings."""

import fcntl
import hashlib
import os
import shutil
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path, PurePosixPath
from typing import IO, TypeVar
from uuid import uuid4

from trainers.config.storage_location import (
    StorageOptions,
    is_remote,
    is_url,
    is_web_url,
    unreadable_url,
    without_password,
)
from trainers.data.sources.located_files import describe, prefix_of, read_location, reason_of
from trainers.data.sources.manifest_fields import DATA_ROOT, absolute, base_of
from trainers.distributed.console import ProgressCounter
from trainers.distributed.console.plain_lines import as_lines
from trainers.errors import DataError, StorageError
from trainers.scripts.inputs.manifests import SUFFIXES, NamedPaths, read_paths
from trainers.storage import Entry, open_storage
from trainers.storage.base import clean_key
from trainers.storage.full_disk import naming_full_disk
from trainers.storage.own_folder import make_once
from trainers.storage.web_files import download_web_file

PARALLEL = 16
# If a bucket has more recordings than this, it is listed instead, with a thousand entries per request.
MOST_ASKED_FOR = 1000
UNUSED_S = 3 * 24 * 3600.0
_USED = ".used"
# Folders that this process holds until it ends, since a program may read its inputs for longer than UNUSED_S.
_held: dict[Path, IO[str]] = {}
T = TypeVar("T")

PROGRESS_S = 10.0
# Number of items that are passed to the threads together.
_AT_ONCE = 10_000


def location_of(path: str, manifest: str, prefixes: Mapping[str, str]) -> str:
    """Returns the path or URL of a recording that the manifest at a URL names.

    Relative paths, and those below SpeechBrain's `{data_root}`, are resolved against the manifest's folder, unless one
    of `prefixes`, such as `{data_root}` itself, is replaced.

    Raises:
        ValueError: a recording cannot be read from there; the message has the reason.
    """
    location = path
    if prefix_of(path, prefixes) is None:
        location = absolute(base_of(manifest.partition("?")[0]), DATA_ROOT.sub("", path))
    prefix = prefix_of(location, prefixes)
    if prefix is not None:
        location = prefixes[prefix] + location[len(prefix) :]
    if (reason := unreadable_url(location)) is not None:
        raise ValueError(reason)
    if is_url(location):
        try:
            clean_key(_split(location)[1])
        except StorageError as error:
            raise ValueError(str(error)) from None
    return location


def place_of(url: str) -> str:
    """Returns a unique relative path for a recording at a URL, with the same folders and name.

    Raises:
        ValueError: the URL contains `..`.
    """
    path, _, query = url.replace("://", "/", 1).partition("?")
    parts = [part for part in path.split("/") if part not in ("", ".")]
    if ".." in parts:
        raise ValueError("its URL has '..' in it: write the URL without")
    if query:
        parts.insert(-1, hashlib.sha256(query.encode(errors="surrogateescape")).hexdigest()[:8])
    return "/".join(parts)


def entries_of(urls: Collection[str], options: StorageOptions) -> dict[str, Entry]:
    """Returns size and version of each recording that exists, by URL.

    Raises:
        StorageError: a bucket or a server does not respond.
    """
    of_buckets: dict[str, dict[str, str]] = {}
    for url in filter(is_url, urls):
        bucket, key = _split(url)
        of_buckets.setdefault(bucket, {})[key] = url
    found: dict[str, Entry | None] = {}
    for bucket, keys in of_buckets.items():
        entries = open_storage(bucket, options).list_some(set(keys)) if len(keys) > MOST_ASKED_FOR else None
        if entries is not None:
            found |= {url: entries.get(key) for key, url in keys.items()}
    asked = [url for url in urls if url not in found]

    def ask(url: str) -> Entry | None:
        try:
            return describe(url, options)
        except FileNotFoundError:
            return None

    with ThreadPoolExecutor(PARALLEL) as pool:
        found |= zip(asked, pool.map(ask, asked), strict=True)
    return {url: entry for url, entry in found.items() if entry is not None}


def copy(url: str, entry: Entry, local: Path, options: StorageOptions) -> None:
    """Copies a file from a bucket or a server to `local`, whose folder must exist.

    Raises:
        FileNotFoundError: the file does not exist any more.
        StorageError: the file cannot be read, or does not match the entry.
    """
    if is_web_url(url):
        download_web_file(url, local)
        return
    if is_url(url):
        folder, _, name = url.rpartition("/")
        open_storage(folder, options).download_file(name, local)
    else:
        local.write_bytes(read_location(url, options))
    if local.stat().st_size != entry.size_bytes:
        raise StorageError(f"{url}: it was changed while it was read: try again when it is complete")


def _split(url: str) -> tuple[str, str]:
    scheme, _, rest = url.partition("://")
    bucket, _, key = rest.partition("/")
    return f"{scheme}://{bucket}", key


class InputCache:
    """A node's copies of inputs, by the versions of their contents; removes copies that are unused for days.

    Contains folders of inputs, and recordings that manifests share: the folders have hard links to the recordings,
    which take no space. `root` is a folder of this user, which is created.
    """

    def __init__(self, root: Path):
        self._inputs, self._recordings = root / "inputs", root / "recordings"

    def folder(self, *key: str) -> Path:
        """Returns the folder of a key, created if new; the folder is kept as long as this process lives."""
        folder = self._inputs / _name(*key)
        if folder in _held:
            return folder
        if not folder.exists():
            self._remove_unused()
        while True:
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            try:
                used = (folder / _USED).open("a")
                fcntl.flock(used, fcntl.LOCK_SH)
                if os.path.samestat(os.fstat(used.fileno()), (folder / _USED).stat()):
                    os.utime(folder / _USED)
                    _held[folder] = used
                    return folder
            except FileNotFoundError:
                pass
            # Another process was removing the folder as unused.

    def link_recording(self, link: Path, key: tuple[str, ...], fetch: Callable[[Path], None]) -> None:
        """Links a recording to `link`; if the node does not have its key, calls `fetch` to write it to a file."""
        name = _name(*key)
        kept = self._recordings / name[:2] / name
        link.parent.mkdir(parents=True, exist_ok=True)
        while not link.exists():
            try:
                os.link(kept, link)
            except FileNotFoundError:  # not fetched yet, or removed as unused
                kept.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                part = kept.with_name(f".{uuid4().hex}.part")
                fetch(part)
                part.replace(kept)
            except FileExistsError:  # another process was faster
                return

    def _remove_unused(self) -> None:
        before = time.time() - UNUSED_S
        for folder in self._inputs.glob("*"):
            try:
                with (folder / _USED).open() as used:
                    if os.fstat(used.fileno()).st_mtime < before:
                        fcntl.flock(used, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(folder, ignore_errors=True)
            except (FileNotFoundError, BlockingIOError):  # another process removes it, or uses it
                continue
        for file in self._recordings.glob("*/*"):
            try:
                status = file.stat()
            except FileNotFoundError:
                continue
            if status.st_nlink == 1 and status.st_mtime < before:
                file.unlink(missing_ok=True)


def _name(*key: str) -> str:
    return hashlib.sha256("\0".join(key).encode(errors="surrogateescape")).hexdigest()[:32]


class InputFetcher:
    """Returns the local file or folder of a URL; processes of a node share one copy of each version.

    In a manifest (CSV, TSV, JSON, JSON lines), recordings are replaced by local copies; a folder is copied unchanged.
    `cache` is a folder of this user on the node, and `path_prefix` replaces prefixes of recordings' paths.
    """

    def __init__(
        self, cache: Path, options: StorageOptions, path_prefix: Mapping[str, str], say: Callable[[str], None]
    ):
        self._cache = InputCache(cache)
        self._options = options
        self._path_prefix = path_prefix
        self._say = say

    def __call__(self, url: str) -> Path:
        """Returns the local path of an input.

        Raises:
            DataError: there is no such file or folder, or recordings of a manifest are missing.
            StorageError: the input cannot be fetched.
        """
        entry = self._entry(url)
        with naming_full_disk():
            if entry is None:
                return self._folder(url)
            file = self._file(url, entry)
            if PurePosixPath(file.name).suffix.lower() not in SUFFIXES:
                return file
            manifest = read_paths(file.name, file.read_bytes())
            return self._with_recordings(url, manifest, file) if manifest.references else file

    def _entry(self, url: str) -> Entry | None:
        """Returns the entry of a file; None if the URL must be a folder. Raises DataError for a missing web file."""
        if is_url(url) and url.endswith("/"):
            return None
        try:
            return describe(url, self._options)
        except FileNotFoundError:
            if is_url(url):
                return None
            raise DataError(f"{without_password(url)}: there is no such file: check the URL") from None

    def _file(self, url: str, entry: Entry) -> Path:
        folder = self._cache.folder(url, _version(entry))

        def make(part: Path) -> None:
            self._say(f"fetching {without_password(url)} ({entry.size_bytes / 1e6:,.1f} MB)")
            copy(url, entry, part, self._options)

        return make_once(folder / PurePosixPath(without_password(url)).name, make)

    def _folder(self, url: str) -> Path:
        url = url.rstrip("/")
        storage = open_storage(url, self._options)
        entries = storage.list_files()
        if not entries:
            raise DataError(f"{url}: there is no such file or folder: check bucket and key")
        versions = [f"{clean_key(entry.key)} {_version(entry)}" for entry in entries]

        def make(part: Path) -> None:
            # A file exists only if it is complete, so files of a killed process need not be downloaded again.
            left = [entry.key for entry in entries if not (part / entry.key).exists()]
            self._each(lambda key: storage.download_file(key, part / key), left, f"fetching {url}", "files")

        return make_once(self._cache.folder(url, *versions) / PurePosixPath(url).name, make)

    def _with_recordings(self, url: str, manifest: NamedPaths, file: Path) -> Path:
        """Returns the manifest with local copies of its recordings."""
        locations = self._locations(url, manifest)
        rows = {locations[each.path]: each.place for each in reversed(manifest.references)}
        entries = entries_of([location for location in rows if is_remote(location)], self._options)
        missing = [each for each in rows if each not in entries and (is_remote(each) or not Path(each).is_file())]
        if missing:
            raise DataError(
                f"{without_password(url)}: {len(missing)} of {len(rows)} recordings are not there. "
                f"{rows[missing[-1]]}: {without_password(missing[-1])}: no such file: upload it, or say with "
                "script.path_prefix where the recordings are"
            )
        versions = [f"{location} {_version(entry)}" for location, entry in sorted(entries.items())]
        folder = self._cache.folder(url, str(file), *versions, *map(" ".join, sorted(locations.items())))

        def fetch(location: str) -> None:
            entry, link = entries[location], folder / "recordings" / place_of(location)
            try:
                self._cache.link_recording(
                    link, (location, _version(entry)), lambda part: copy(location, entry, part, self._options)
                )
            except (StorageError, FileNotFoundError) as error:
                reason = reason_of(error) if isinstance(error, OSError) else error
                shown = f"{rows[location]}: {without_password(location)}: cannot be fetched: {reason}"
                raise StorageError(f"{without_password(url)}: {shown}") from error

        def make(part: Path) -> None:
            self._each(fetch, list(entries), f"{without_password(url)}: fetching recordings", "recordings")
            local = {each: str(folder / "recordings" / place_of(each)) for each in entries}
            part.write_bytes(manifest.with_paths({path: local.get(each, each) for path, each in locations.items()}))

        return make_once(folder / file.name, make)

    def _locations(self, url: str, manifest: NamedPaths) -> dict[str, str]:
        """Returns the location of each recording by its path in the manifest; raises DataError if one is invalid."""
        found: dict[str, str] = {}
        for reference in manifest.references:
            if reference.path in found:
                continue
            try:
                location = location_of(reference.path, url, self._path_prefix)
                place_of(location)
            except ValueError as error:
                raise DataError(
                    f"{without_password(url)}: {reference.place}: {without_password(reference.path)}: {error}"
                ) from None
            found[reference.path] = location
        return found

    def _each(self, action: Callable[[T], None], items: Sequence[T], what: str, unit: str) -> None:
        """Applies an action to each item, several at a time, and shows progress; begins no more after a failure."""
        counter = ProgressCounter(what, total=len(items), unit=unit, show=as_lines(self._say), every_s=PROGRESS_S)
        with ThreadPoolExecutor(PARALLEL, thread_name_prefix="inputs") as pool:
            for start in range(0, len(items), _AT_ONCE):
                for _ in pool.map(action, items[start : start + _AT_ONCE]):
                    counter.advance(1)
        counter.done()


def _version(entry: Entry) -> str:
    """Returns the version of a file's content; a unique one if unknown, so that each process makes its own copy."""
    return f"{entry.size_bytes} {entry.etag or entry.modified_s or uuid4().hex}"
