"""Reads sources of models: resolves their present content, and downloads their files once per node."""

import json
import os
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from trainers.config.locations import storage_path_of
from trainers.config.parts.model_source import ModelSource, SourceKind
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions, is_url
from trainers.data.node_cache import NodeCache
from trainers.errors import ConfigError, StorageError
from trainers.models.sources.archives import is_archive, is_checkpoint, unpack_model
from trainers.models.sources.damaged_files import (
    StoredTensor,
    refuse_damaged_description,
    tensors_of_file,
    tensors_of_remote,
)
from trainers.models.sources.hub_models import folder_of, tensors_on_hub, version_of
from trainers.models.sources.model_files import (
    CONFIG,
    SourcePin,
    description_files,
    file_at,
    hash_of_folder,
    hash_of_listing,
    indexed_files,
    names_in,
    refuse_damaged_zip,
    refuse_incomplete,
    refuse_unopened,
    weight_files,
)
from trainers.models.sources.run_models import model_of_run
from trainers.storage import Entry, Storage, open_storage, sha256_of
from trainers.storage.full_disk import naming_full_disk, refuse_full
from trainers.storage.web_files import WebVersion, download_web_file

# A download in its target folder, until it is unpacked, and the file that describes it.
_DOWNLOAD, _KNOWN = ".download", "known.json"
# Functions that read the tensors of files, by file name.
_TensorFiles = Mapping[str, Callable[[], dict[str, StoredTensor]]]


@dataclass(frozen=True)
class SourceReader:
    """Reads the sources of one config."""

    # The folder or URL with the folders of other runs.
    storage_path: str
    storage_options: StorageOptions
    allow_pickle: bool

    @classmethod
    def of(cls, config: TrainConfig) -> "SourceReader":
        return cls(storage_path_of(config), config.run.storage_options, config.model.allow_pickle)

    def pin(self, field: str, source: ModelSource, known: Mapping[str, Any] | None = None) -> SourcePin:
        """Returns the present state of a source; a revision on the Hub is resolved to the commit in `known`, if given.

        A file at an https:// URL without a hash is downloaded to compute it. The content of a local folder is not read,
        see `hashed`. Raises ConfigError if the source does not exist, or its weights are pickled, which is not allowed,
        and StorageError if the Hub, the server, the network or the disk does not respond.
        """
        pin = SourcePin(field, source.text, source.kind, source.address, source.revision, source.sha256)
        if source.kind is SourceKind.RUN:
            address = model_of_run(f"model.{field}", source.address, self.storage_path, self.storage_options)
            pin = replace(pin, kind=SourceKind.STORAGE if is_url(address) else SourceKind.PATH, address=address)
        # A relative path that was parsed as a Hub id.
        elif source.kind is SourceKind.HUB and Path(source.text).exists():
            pin = replace(pin, kind=SourceKind.PATH, address=source.text, revision=None)
        if pin.kind is SourceKind.HUB:
            found = version_of(f"model.{field}", pin.address, (known or {}).get("revision") or pin.revision)
            if pin.has_weights:
                refuse_unopened(found.names, pin.name, allow_pickle=self.allow_pickle)
            return replace(pin, revision=found.commit)
        if pin.kind is SourceKind.STORAGE:
            if (entry := file_at(pin.address, self.storage_options)) is not None:
                return replace(pin, is_file=True, sha256=hash_of_listing([entry]))
            return replace(pin, sha256=hash_of_listing(self._objects(pin, weights=True)))
        if pin.kind is SourceKind.HTTPS:
            return replace(pin, is_file=True, sha256=pin.sha256 or self._downloaded(pin))
        path = Path(pin.address)
        if path.is_file():
            return replace(pin, is_file=True, sha256=sha256_of(path))
        if pin.has_weights and path.is_dir():
            refuse_unopened(names_in(path), pin.name, allow_pickle=self.allow_pickle)
        return pin

    def hashed(self, pin: SourcePin) -> SourcePin:
        """Returns the pin with the hash of its content, also for a local folder; raises as `pin`."""
        path = Path(pin.address)
        if pin.kind is not SourceKind.PATH or pin.is_file or not path.is_dir():
            return pin
        names = description_files(names_in(path))
        if pin.has_weights:
            names += weight_files(names_in(path), pin.name, allow_pickle=self.allow_pickle)
        return replace(pin, sha256=hash_of_folder(path, names))

    def folder(self, pin: SourcePin, *, weights: bool, cached: bool = False) -> Path:
        """Returns the local folder with the files of a source; other processes of the node wait for the download.

        Without `weights`, large files may be left out. With `cached`, the node has the files already. A missing local
        folder is reported when it is opened. Raises ConfigError if the source is not a model, one of its files is
        damaged, its weights are pickled, which is not allowed, or it has changed since it was pinned, and StorageError
        if the source is incomplete, or cannot be read.
        """
        weights = weights and pin.has_weights
        folder = self._fetched(pin, weights=weights, cached=cached)
        if folder.is_dir():
            refuse_damaged_description(folder, pin.name)
            if weights:
                tensors_in(folder, pin.name, allow_pickle=self.allow_pickle)
        return folder

    def tensors(self, pin: SourcePin) -> dict[str, StoredTensor] | None:
        """Returns the tensors of a source with weights, by name, reading only headers; None if they are pickled.

        Raises as `folder`.
        """
        folder, at = self._fetched(pin, weights=False, cached=False), pin.name
        files = {name: partial(tensors_of_file, folder / name, at) for name in names_in(folder)}
        if pin.kind is SourceKind.HUB:
            names = version_of(f"model.{pin.field}", pin.address, pin.revision).names
            files = {name: partial(tensors_on_hub, pin, name) for name in names} | files
        elif pin.kind is SourceKind.STORAGE and not pin.is_file:
            storage = self._storage(pin)
            for entry in self._objects(pin, weights=True):
                read = partial(storage.read_part, entry.key)
                files[entry.key] = partial(tensors_of_remote, entry.key, entry.size_bytes, read, at)
        return _tensors_of(files, folder, at, allow_pickle=self.allow_pickle)

    def _fetched(self, pin: SourcePin, *, weights: bool, cached: bool) -> Path:
        if pin.kind is SourceKind.HUB:
            return folder_of(pin, weights=weights, allow_pickle=self.allow_pickle, cached=cached)
        if pin.is_file:
            return self._made(pin, "model", lambda folder: self._fetch_file(pin, folder))
        if pin.kind is SourceKind.STORAGE:

            def fetch(folder: Path) -> None:
                targets = {entry.key: folder / entry.key for entry in self._objects(pin, weights=weights)}
                self._fetch_entries(pin, self._storage(pin), lambda: self._objects(pin, weights=True), targets)

            return self._made(pin, "model" if weights else "description", fetch)
        return Path(pin.address)

    def _objects(self, pin: SourcePin, *, weights: bool) -> list[Entry]:
        """Returns the files to open in a bucket's folder."""
        entries = {entry.key: entry for entry in self._storage(pin).list_files() if "/" not in entry.key}
        if not entries:
            raise ConfigError(f"{pin.name}: no file is there; check the URL")
        names = description_files(entries)
        if pin.has_weights:
            found = weight_files(entries, pin.name, allow_pickle=self.allow_pickle)
            if CONFIG not in entries:
                raise ConfigError(f"{pin.name}: holds no {CONFIG}: name the URL of a folder with a complete model")
            names += found if weights else []
        return [entries[name] for name in names]

    def _storage(self, pin: SourcePin) -> Storage:
        return open_storage(pin.address, self.storage_options)

    def _downloaded(self, pin: SourcePin) -> str:
        """Returns the SHA-256 of a file at a URL; downloads and unpacks the file unless the node has it."""
        cache = NodeCache(pin.address, "", "models")
        with cache.locked(_KNOWN):
            known = KnownDownload.read(cache.folder / _KNOWN)
            file = cache.folder / _DOWNLOAD
            found = download(pin.address, file, pin.name, sha256=None, known=known)
            if found is None:
                assert known is not None
                return known.sha256
            try:
                hashed = replace(pin, sha256=found.sha256)
                self._made(hashed, "model", lambda folder: self._open_file(file, folder, pin.name))
            finally:
                file.unlink()
            found.write(cache.folder / _KNOWN)
            return found.sha256

    def _made(self, pin: SourcePin, name: str, make: Callable[[Path], None]) -> Path:
        return made_once(f"{pin.kind.value} {pin.address}", str(pin.sha256), name, make)

    def _fetch_file(self, pin: SourcePin, folder: Path) -> None:
        file = folder / _DOWNLOAD
        if pin.kind is SourceKind.PATH:
            self._open_file(Path(pin.address), folder, pin.name)
            return
        if pin.kind is SourceKind.HTTPS:
            download(pin.address, file, pin.name, sha256=pin.sha256)
        else:
            parent, _, name = pin.address.rpartition("/")
            storage = open_storage(parent, self.storage_options)
            self._fetch_entries(pin, storage, lambda: [entry] if (entry := storage.entry(name)) else [], {name: file})
        self._open_file(file, folder, pin.name)
        file.unlink()

    def _open_file(self, file: Path, folder: Path, origin: str) -> None:
        if is_checkpoint(file):
            # Imported here because it loads torch.
            from trainers.models.whisper.openai_checkpoint import convert  # noqa: PLC0415

            refuse_damaged_zip(file, origin)
            convert(file, folder, origin, allow_pickle=self.allow_pickle)
        elif is_archive(file):
            unpack_model(file, folder, origin, allow_pickle=self.allow_pickle)
        else:
            raise ConfigError(f"{origin}: is not a zip, a tar or a checkpoint of OpenAI's Whisper: use a model folder")

    def _fetch_entries(
        self, pin: SourcePin, storage: Storage, listing: Callable[[], Sequence[Entry]], targets: Mapping[str, Path]
    ) -> None:
        """Downloads objects; checks before and after the download that they have not changed since they were pinned."""
        entries = self._unchanged(pin, listing)
        sizes = {key: entries[key].size_bytes for key in targets}
        refuse_full(next(iter(targets.values())).parent, sum(sizes.values()), pin.name)
        for key, path in targets.items():
            with naming_full_disk():
                storage.download_file(key, path)
            if (size := path.stat().st_size) != sizes[key]:
                raise StorageError(f"{pin.name}: {size} of {sizes[key]} bytes of {key} were received: try again")
        self._unchanged(pin, listing)

    def _unchanged(self, pin: SourcePin, listing: Callable[[], Sequence[Entry]]) -> dict[str, Entry]:
        entries = listing()
        if hash_of_listing(entries) != pin.sha256:
            raise ConfigError(f"{pin.name}: has changed since this attempt began: start it again when it is complete")
        return {entry.key: entry for entry in entries}


def tensors_in(folder: Path, origin: str, *, allow_pickle: bool) -> dict[str, StoredTensor] | None:
    """Returns the tensors of the weights in a local folder, by name; None if they are pickled. Raises as `folder`."""
    files = {name: partial(tensors_of_file, folder / name, origin) for name in names_in(folder)}
    return _tensors_of(files, folder, origin, allow_pickle=allow_pickle)


def _tensors_of(
    files: _TensorFiles, folder: Path, origin: str, *, allow_pickle: bool
) -> dict[str, StoredTensor] | None:
    """Returns the tensors of the weights among files, whose index is in a local folder."""
    chosen = weight_files(files, origin, allow_pickle=allow_pickle)
    refuse_incomplete(folder, files, origin)
    if not chosen[0].endswith(".safetensors"):
        return None
    chosen = indexed_files(folder, chosen, origin)
    return {name: found for file in chosen for name, found in files[file]().items()}


def made_once(url: str, key: str, name: str, make: Callable[[Path], None]) -> Path:
    """Returns a folder in this node's cache of models, made by `make` if it does not exist."""
    cache = NodeCache(url, key, "models")

    def make_anew(part: Path) -> None:
        shutil.rmtree(part, ignore_errors=True)
        part.mkdir(mode=0o700)
        try:
            make(part)
        except BaseException:
            shutil.rmtree(part, ignore_errors=True)
            raise

    path = cache.once(name, make_anew)
    # Marks the folder as used, since folders that are not used for days are removed.
    os.utime(path)
    return path


@dataclass(frozen=True)
class KnownDownload:
    """An earlier download from a URL: the server's description of the file, and its SHA-256."""

    version: WebVersion
    sha256: str

    @classmethod
    def read(cls, file: Path) -> "KnownDownload | None":
        try:
            content = json.loads(file.read_bytes())
            return cls(WebVersion(**content["version"]), str(content["sha256"]))
        except (OSError, ValueError, LookupError, TypeError):
            return None

    def write(self, file: Path) -> None:
        part = file.with_name(f".{file.name}.part")
        part.write_text(json.dumps(asdict(self)))
        part.replace(file)


def download(
    url: str, target: Path, origin: str, *, sha256: str | None, known: KnownDownload | None = None
) -> KnownDownload | None:
    """Downloads a file as `download_web_file` does; returns None if the `known` download is still current.

    Messages begin with `origin`, since the URL may contain a secret. Without a `sha256`, only the length is checked.
    Raises ConfigError if the file does not exist, is not served over TLS, or has another SHA-256, and StorageError if
    the server or the network does not respond, or the disk has no room for the file.
    """
    before = known.version if known is not None else None
    try:
        version = download_web_file(url, target, name=origin, tls_only=True, hashed=sha256 is not None, known=before)
    except FileNotFoundError:
        raise ConfigError(f"{origin}: no file is there: check the URL") from None
    if version is None:
        return None
    found = sha256_of(target)
    if sha256 not in (None, found):
        target.unlink()
        raise ConfigError(
            f"{origin}: its SHA-256 is {found}, but #sha256={sha256} is expected: the file was replaced; correct the "
            "hash if you trust it"
        )
    return KnownDownload(version, found)
