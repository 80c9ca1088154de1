"""`data.ship`: packages manifests that are files of this machine, and the recordings that they name, with a job.

Each manifest is read here, in any format, and rewritten for the package, where recordings are named by the hashes of
their contents. So nothing depends on their locations here or on nodes, and data that is shipped again is prepared only
once.
"""

import json
import os
import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pyarrow as pa

from jobs.submission.job_spec import RunConfig
from runtime_env.credentials import file_looks_secret, folder_looks_secret
from runtime_env.package import unpacked_size
from runtime_env.tree import Tree
from trainers.config.locations import field_of, make_paths_absolute, path_values, set_path, variables_in
from trainers.config.parts.data_location import SHIPPED, path_in
from trainers.config.parts.data_part import DataPart, MixMember
from trainers.config.parts.part import ALSO_FIELD, DATA_FIELDS, SHIPPED_FIELDS
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import is_remote
from trainers.data.sources.archives.archive_index import ARCHIVE, PROBLEM
from trainers.data.sources.archives.source_files import SourceFiles
from trainers.data.sources.manifest import TableRules
from trainers.data.sources.manifest_source import ManifestSource, as_written, open_manifest
from trainers.errors import ConfigError, RayscribeError
from trainers.storage import sha256_of

_MAX_NAMED = 5
# The extension of a file, by which its format is known.
_ENDING = re.compile(r"\.tar\.gz$|\.[a-z0-9]{1,8}$", re.IGNORECASE)


@dataclass(frozen=True)
class Shipment:
    """Data that is packaged with a job.

    Attributes:
        config: The job's config, with paths in the package as manifests.
        files: Manifests and recordings, by their paths in the package.
        warnings: Warnings about the manifests, for the user.
    """

    config: RunConfig
    files: Mapping[str, bytes | Path]
    warnings: Sequence[str]

    @property
    def size_bytes(self) -> int:
        return sum(len(each) if isinstance(each, bytes) else each.stat().st_size for each in self.files.values())


@dataclass(frozen=True)
class _Row:
    """A row of a manifest, and the local file that is or contains its recording; None if it is remote."""

    values: Mapping[str, Any]
    file: str | None


def ship(config: RunConfig, tree: Tree) -> Shipment:
    """Collects the data that is packaged with a job whose config has `data.ship`.

    Recordings that are in the packaged working directory keep their paths.

    Raises:
        ConfigError: a recording is not on this machine, other data cannot be shipped, or the data is too large.
        DataError: a manifest is missing or not valid.
        StorageError: a remote archive cannot be read.
    """
    named = [each for each in path_values(config.model_dump()) if (each[0], field_of(each[1])) in SHIPPED_FIELDS]
    local = [(part, field) for part, field, location in named if not is_remote(path_in(location))]
    _refuse_others(config, named, tree)
    here, warnings = make_paths_absolute(config, tree.root), list[str]()
    rows = {(part, field): _read(here, part, field, warnings) for part, field in local}
    paths = _package_paths((row.file for of_manifest in rows.values() for row in of_manifest), tree)
    files: dict[str, bytes | Path] = {
        path: Path(file) for file, path in paths.items() if path.startswith(f"{SHIPPED}/")
    }
    content = config.model_dump(mode="json")
    # Prefixes have been applied.
    content["data"]["path_prefix"] = {}
    for (part, field), of_manifest in rows.items():
        target = f"{SHIPPED}/{field}.jsonl"
        # ASCII only, since data.encoding may not have all characters.
        lines = [json.dumps(_packaged(row, paths, _data_of(config, field))) + "\n" for row in of_manifest]
        files[target] = "".join(lines).encode(config.data.encoding)
        set_path(content, part, field, target)
    return Shipment(RunConfig.model_validate(content), files, warnings)


def _member_of(config: TrainConfig, field: str) -> MixMember | None:
    """Returns the member of `data.mix` of a field that is named as in `path_values`; None for other fields."""
    return config.data.mix[int(field.split(".")[1])] if field.startswith("mix.") else None


def _data_of(config: TrainConfig, field: str) -> DataPart:
    member = _member_of(config, field)
    if field_of(field) == ALSO_FIELD[1]:
        return config.data.of_other_set(config.evaluate.also[field.partition(".")[2]])
    return config.data if member is None else config.data.of_member(member)


def _refuse_others(config: RunConfig, named: Iterable[tuple[str, str, str]], tree: Tree) -> None:
    """Rejects data that is not shipped, and would be missing or different on the nodes."""
    data, problems = config.data, list[str]()
    sources: dict[str, DataPart | MixMember] = {"data": data, **{f"data.mix: {each.name}": each for each in data.mix}}
    for where, each in sources.items():
        if each.source is not None:
            problems.append(f"{where}.source is {each.source.name}, but data.ship is for manifests and recordings")
        if each.dataset is not None and _is_left_here(tree, each.dataset.name):
            problems.append(f"{where}.dataset.name is the folder {each.dataset.name}, but data.ship ships no folders")
    for part, field, location in named:
        if names := variables_in(location):
            problems.append(f"{part}.{field} names {', '.join(names)}, which only the nodes know: write its value")
        if data.path_prefix and (part, field_of(field)) in (*DATA_FIELDS, ALSO_FIELD) and is_remote(path_in(location)):
            problems.append(
                f"{part}.{field} is {location}, which is read on the nodes, but data.path_prefix is for paths of this "
                "machine: remove it"
            )
    if data.fingerprint == "metadata":
        problems.append(
            "data.fingerprint is metadata, but unpacked files have new times on each node: set it to content"
        )
    if problems:
        lines = "\n".join(f"  - {problem}" for problem in problems)
        raise ConfigError(f"data.ship is true:\n{lines}\nset data.ship: false, or list recordings in manifests")


def _is_left_here(tree: Tree, folder: str) -> bool:
    path = tree.root / folder
    return path.is_dir() and not any((tree.root / file.path).is_relative_to(path) for file in tree.files)


def _read(config: TrainConfig, part: str, field: str, warnings: list[str]) -> list[_Row]:
    """Reads the rows of a manifest, with absolute paths; raises ConfigError for recordings that are not here."""
    data, options, member = _data_of(config, field), config.run.storage_options, _member_of(config, field)
    where = "" if member is None else f"data.mix: {member.name}: "
    try:
        if (part, field_of(field)) in (*DATA_FIELDS, ALSO_FIELD):
            # A cheaper fingerprint, since contents are hashed when they are packed.
            plain = data.model_copy(update={"fingerprint": "manifest"})
            split = ManifestSource(plain, options).open(field_of(field) if part == "data" else "test", None)
            named = f"{part}.{field_of(field) if member is not None else field}"
            table, origin, notes = split.table, f"{named}: {split.origin}", split.warnings
        else:
            files, location = SourceFiles(options, None, data.encoding, data.quoting), getattr(config.augment, field)
            manifest = open_manifest(f"{part}.{field}", location, TableRules.of_recordings(data), files)
            table, origin = manifest.table, f"{part}.{field}: {manifest.location}"
            notes = [f"{part}.{field}: {line}" for line in manifest.warnings]
    except RayscribeError as error:
        raise type(error)(f"{where}{error}") from None
    warnings += [f"{where}{line}" for line in notes]
    return _rows_here(table, f"{where}{origin}")


def _rows_here(table: pa.Table, origin: str) -> list[_Row]:
    rows: list[_Row] = []
    bad: list[str] = []
    for values in table.to_pylist():
        location: str = values.get(ARCHIVE) or values["audio"]
        file = None if is_remote(location) else location
        problem = values.get(PROBLEM) or (_problem_of(file) if file is not None else None)
        if problem is not None:
            bad.append(f"{values['id']!r} ({values['audio']}: {problem})")
        rows.append(_Row(values, file))
    if bad:
        shown = ", ".join(bad[:_MAX_NAMED]) + (" and others" if len(bad) > _MAX_NAMED else "")
        raise ConfigError(
            f"{origin}: data.ship is true, and of {len(rows)} recordings {len(bad)} cannot be packaged: {shown}: fix "
            "the paths (relative to the manifest, with data.path_prefix), or remove the rows"
        )
    return rows


def _problem_of(file: str) -> str | None:
    *folders, name = Path(file).parts
    if file_looks_secret(name) or any(map(folder_looks_secret, folders)):
        return "looks like a secret"
    return None if os.path.isfile(file) else "no such file on this machine"  # noqa: PTH113 -- any text is a path


def _package_paths(files: Iterable[str | None], tree: Tree) -> dict[str, str]:
    """Returns the path of each file in the package: by its content, or as in the working directory.

    Raises:
        ConfigError: the files are too large in total, which is checked before they are read; or one cannot be read.
    """
    packaged = {(tree.root / file.path).resolve(): file.path for file in tree.files}
    wanted = [file for file in dict.fromkeys(files) if file is not None]
    known = {file: path for file in wanted if (path := packaged.get(Path(file).resolve())) is not None}
    added = [file for file in wanted if file not in known]
    size = unpacked_size(tree, {file: Path(file) for file in added})
    if not size.fits:
        raise ConfigError(size.message)
    for file in added:
        ending = _ENDING.search(file)
        known[file] = f"{SHIPPED}/{sha256_of(file)}{ending[0].lower() if ending else ''}"
    return known


def _packaged(row: _Row, paths: Mapping[str, str], data: DataPart) -> dict[str, Any]:
    if row.file is None:
        return as_written(row.values, data)
    in_archive = row.values["audio"].removeprefix(row.file)
    audio = posixpath.relpath(paths[row.file], SHIPPED) + in_archive
    return as_written({**row.values, "audio": audio}, data)
