"""Selects the files of a model to open, whose weights are safetensors unless pickles are allowed; defines pins."""

import hashlib
import json
import zipfile
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath
from typing import Any

from trainers.config.parts.model_source import SourceKind
from trainers.config.storage_location import StorageOptions
from trainers.errors import ConfigError, StorageError
from trainers.findings import named
from trainers.storage import Entry, open_storage, sha256_of

CONFIG = "config.json"
# Config, processor and generation config, and the index of weights in several files.
DESCRIPTION = ("*.json", "*.txt", "*.model", "*.jinja")
# A feature extractor, and a tokenizer, each need one of these files.
EXTRACTOR_FILES = ("preprocessor_config.json", "processor_config.json")
TOKENIZER_FILES = ("tokenizer.json", "vocab.json", "vocab.txt", "*.model")
SAFE_WEIGHTS = ("model.safetensors", "model-*-of-*.safetensors")
PICKLED_WEIGHTS = ("pytorch_model.bin", "pytorch_model-*-of-*.bin")
INDEXES = SAFE_INDEX, PICKLED_INDEX = "model.safetensors.index.json", "pytorch_model.bin.index.json"
# Files of an adapter by peft, which transformers would apply to the weights next to them.
_ADAPTER = "adapter_*"
_ADAPTERS = ("adapter_config.json", "adapter_model.*")
# Suffixes of files that run code, or may run code, when they are opened.
PICKLES = (".bin", ".pt", ".pth", ".ckpt", ".h5", ".msgpack", ".pkl", ".pickle", ".joblib")
_FIX = "convert them (model.save_pretrained writes safetensors), or, if you trust who made them, "
ALLOW = "set model.allow_pickle: true"


def _matching(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    return sorted(name for name in names if any(fnmatch(name, each) for each in patterns))


def description_files(names: Iterable[str]) -> list[str]:
    """Returns the names of the files, other than weights, that are needed to open a model."""
    return [name for name in _matching(names, DESCRIPTION) if not fnmatch(name, _ADAPTER)]


def weight_files(names: Iterable[str], origin: str, *, allow_pickle: bool) -> list[str]:
    """Returns the names of the weights among a folder's files, as transformers opens them: one file, or else several.

    Raises:
        ConfigError: As `refuse_unopened`; or there are no weights, or several files without an index.
    """
    found = list(names)
    refuse_unopened(found, origin, allow_pickle=allow_pickle)
    for index, patterns in ((SAFE_INDEX, SAFE_WEIGHTS), (PICKLED_INDEX, PICKLED_WEIGHTS)):
        if patterns[0] in found:
            return [patterns[0]]
        if shards := _matching(found, patterns):
            if index not in found:
                raise ConfigError(
                    f"{origin}: holds {shards[0]}, and no {index}, which lists the files of such weights: copy the "
                    "complete folder"
                )
            return shards
    raise ConfigError(f"{origin}: holds no weights (model.safetensors); name a folder with a complete model")


def refuse_unopened(names: Iterable[str], origin: str, *, allow_pickle: bool) -> None:
    """Raises ConfigError if files include an adapter, or weights only as pickles that are not allowed."""
    found = list(names)
    if adapters := _matching(found, _ADAPTERS):
        raise ConfigError(
            f"{origin}: holds a LoRA adapter ({', '.join(adapters)}), and Rayscribe begins with complete weights: "
            "merge it once (docs/models.md, Adapters), and name the folder of the merged model; or remove its files to "
            "begin with the weights next to it"
        )
    pickled = sorted(name for name in found if PurePosixPath(name).suffix in PICKLES)
    if allow_pickle or not pickled or _matching(found, SAFE_WEIGHTS):
        return
    raise ConfigError(
        f"{origin}: its weights are not in safetensors, and other files ({named(pickled)}) can run code when they are "
        f"opened: {_FIX}{ALLOW}"
    )


def refuse_incomplete(folder: Path, names: Iterable[str], origin: str) -> None:
    """Refuses weights if a file that their index names is missing, or if the index names files elsewhere.

    The index is in `folder`. Also checks pickled weights, if they are in the folder, see `refuse_damaged_zip`. Raises
    StorageError if the model is incomplete or damaged, and ConfigError if the index cannot be read.
    """
    present = [*names]
    for index, patterns in ((SAFE_INDEX, SAFE_WEIGHTS), (PICKLED_INDEX, PICKLED_WEIGHTS)):
        if index not in present or patterns[0] in present or not _matching(present, patterns):
            continue
        shards = _indexed(folder, index, origin)
        if strange := sorted(shards - {*_matching(shards, patterns)} | {name for name in shards if "/" in name}):
            raise ConfigError(f"{origin}: {index} names {strange[0]!r}, which is not a file of weights next to it")
        if missing := sorted(shards - {*present}):
            raise StorageError(f"{origin}: {missing[0]}, which {index} names, is missing: copy the complete folder")
    if not _matching(present, SAFE_WEIGHTS):
        for name in _matching(present, PICKLED_WEIGHTS):
            # For a bucket or the Hub, only the description may be on this node.
            if not (folder / name).is_file():
                continue
            refuse_damaged_zip(folder / name, f"{origin}: {name}")


def indexed_files(folder: Path, files: list[str], origin: str) -> list[str]:
    """Returns those of several safetensors files that their index names; transformers opens no others."""
    named = _indexed(folder, SAFE_INDEX, origin) if files != [SAFE_WEIGHTS[0]] else {*files}
    return [name for name in files if name in named]


def _indexed(folder: Path, index: str, origin: str) -> set[str]:
    """Returns the files that an index names; raises ConfigError for an index without metadata, as transformers does."""
    try:
        content = json.loads((folder / index).read_bytes())
        shards = {str(name) for name in content["weight_map"].values()}
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError):
        shards = set()
    if not shards or not isinstance(content.get("metadata"), dict):
        raise ConfigError(
            f"{origin}: {index} is not an index of weights (weight_map and metadata): put back the one that was saved"
        )
    return shards


def is_zip(file: Path) -> bool:
    """Returns True if a file is a zip; False for a tar that ends like a zip since its last file is one."""
    with file.open("rb") as opened:
        return opened.read(2) == b"PK" and zipfile.is_zipfile(opened)


def refuse_damaged_zip(file: Path, origin: str) -> None:
    """Raises StorageError for a file of torch with wrong checksums, which torch itself does not check."""
    if not is_zip(file):
        return
    try:
        with zipfile.ZipFile(file) as archive:
            damaged = archive.testzip()
    # torch's zip files are not compressed, so any other exception means damage, too.
    except Exception as error:
        raise StorageError(f"{origin}: is truncated or damaged ({error}): copy it again") from error
    if damaged is not None:
        raise StorageError(f"{origin}: is damaged (Bad CRC-32 or name of {damaged}): copy it again")


def names_in(folder: Path) -> list[str]:
    """Returns the names of the files in a folder, without subfolders; links to files count as files."""
    return sorted(each.name for each in folder.iterdir() if each.is_file())


def hash_of_folder(folder: Path, names: Iterable[str]) -> str:
    """Returns the SHA-256 of the names and the content of files; raises as `sha256_of`."""
    return _hash(f"{name} {sha256_of(folder / name)}" for name in sorted(names))


def hash_of_listing(entries: Iterable[Entry]) -> str:
    """Returns the SHA-256 of names, sizes and ETags of files in a bucket."""
    return _hash(f"{entry.key} {entry.size_bytes} {entry.etag}" for entry in sorted(entries, key=lambda each: each.key))


def file_at(url: str, storage_options: StorageOptions) -> Entry | None:
    """Returns the object at the URL of a bucket; None for a folder, or if there is none."""
    parent, _, name = url.rstrip("/").rpartition("/")
    # A bucket's root is not a file.
    return open_storage(parent, storage_options).entry(name) if parent.rstrip("/").count("/") > 1 else None


def _hash(lines: Iterable[str]) -> str:
    return hashlib.sha256("\n".join(lines).encode()).hexdigest()


# Fields of the config's model part that name a source.
WEIGHTS = "name_or_path"
TOKENIZER, EXTRACTOR, ENCODER, DECODER = "tokenizer_name", "feature_extractor_name", "encoder", "decoder"
FIELDS = (WEIGHTS, TOKENIZER, EXTRACTOR, ENCODER, DECODER)
WITH_WEIGHTS = (WEIGHTS, ENCODER, DECODER)


@dataclass(frozen=True)
class SourcePin:
    """A resolved source: the config's field that names it, and its text in messages and records.

    Attributes:
        kind: HUB, PATH, STORAGE or HTTPS; a run is resolved to the location of its model.
        is_file: True for a file, such as an archive; False for a folder.
        revision: The commit on the Hub; None for other sources.
        sha256: Hash of a file's content, of a folder's file names and contents, or of a bucket's names, sizes and
            ETags; None if not known, or if a commit identifies the source.
    """

    field: str
    text: str
    kind: SourceKind
    address: str
    revision: str | None = None
    sha256: str | None = None
    is_file: bool = False

    @property
    def has_weights(self) -> bool:
        return self.field in WITH_WEIGHTS

    @property
    def name(self) -> str:
        """The beginning of messages, e.g. `model.name_or_path: s3://bucket/model`."""
        return f"model.{self.field}: {self.text}"

    @property
    def record(self) -> dict[str, Any]:
        """Returns the entry for the run's record."""
        return {"source": self.text, "revision": self.revision, "sha256": self.sha256}

    def differs_from(self, known: Mapping[str, Any]) -> bool:
        """Returns True if the record of the same source has other content."""
        pairs = ((known.get("revision"), self.revision), (known.get("sha256"), self.sha256))
        return any(None not in pair and pair[0] != pair[1] for pair in pairs)
