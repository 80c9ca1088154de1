"""Lists the formats of data, and reads the rows of a `DataLocation` in any of them."""

import posixpath
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import pyarrow as pa

from trainers.config.parts.data_location import PLACES, DataLocation
from trainers.config.storage_location import unreadable_url
from trainers.config.wording import counted
from trainers.data.sources.archives.archive_index import ArchiveIndex
from trainers.data.sources.archives.archive_path import expand_names
from trainers.data.sources.archives.source_files import SourceFiles
from trainers.data.sources.data_source import table_of
from trainers.data.sources.fingerprint import hash_of
from trainers.data.sources.formats import lhotse
from trainers.data.sources.formats.common_voice import SPLIT_FILES, CommonVoice, table_of_clips
from trainers.data.sources.formats.kaldi import read_kaldi
from trainers.data.sources.formats.librispeech import TRANSCRIPTS, read_chapter
from trainers.data.sources.formats.nemo import read_tarred
from trainers.data.sources.formats.speechbrain import read_speechbrain
from trainers.data.sources.formats.webdataset import read_samples, shard_names
from trainers.data.sources.manifest import Manifest
from trainers.data.sources.manifest_fields import absolute, base_of, checked_ids, content_as_read, decode
from trainers.errors import ConfigError, DataError


def read_rows(where: DataLocation, split: str, files: SourceFiles) -> Manifest:
    """Reads the rows of a location in one of the formats.

    Raises:
        ConfigError: An option has a wrong value.
        DataError: A file is missing or wrong, or there are no rows.
        StorageError: A bucket or a server is not available.
    """
    rows = _READERS[where.format](where, split, files)
    checked_ids(where.path, rows.table["id"])
    if not len(rows.table):
        raise DataError(f"{rows.location}: no rows are left: use other splits")
    return rows


def _common_voice(where: DataLocation, split: str, files: SourceFiles) -> Manifest:
    tables = [SPLIT_FILES.get(name, name) for name in where.options.get("split", split).split("+")]
    folder = files.root_of(where.path, f"{tables[0]}.tsv", where.options.get("language"))
    corpus, accented = CommonVoice(folder.rstrip("/"), files), where.options.get("accented_letters", "true")
    if accented not in ("true", "false"):
        raise ConfigError(f"common_voice:{where.path}: accented_letters is {accented!r}: give true or false")
    table = table_of_clips(corpus.clips(tables, accented_letters=accented == "true"))
    location = f"{corpus.folder}/{tables[0]}.tsv"
    warnings = [f"{location}: {counted(count, 'clip')} {reason}" for reason, count in corpus.left_out.items()]
    return _manifest(where, location, table, *corpus.contents.values(), warnings=warnings)


def _kaldi(where: DataLocation, split: str, files: SourceFiles) -> Manifest:
    folder = files.root_of(where.path, "wav.scp")
    table, content = read_kaldi(folder, lambda name: files.read(f"{folder}/{name}"))
    return _manifest(where, f"{folder}/wav.scp", table, content)


def _speechbrain(where: DataLocation, split: str, files: SourceFiles) -> Manifest:
    content = _required(where.path, files, "name SpeechBrain's .json or .csv of a split")
    table = read_speechbrain(where.path, content, data_root=where.options.get("data_root"), quoting=files.quoting)
    return _manifest(where, where.path, table, content_as_read(where.path, content, files.quoting))


def _webdataset(where: DataLocation, split: str, files: SourceFiles) -> Manifest:
    names = _names(where.path)
    if len(set(names)) < len(names):
        raise ConfigError(f"webdataset:{where.path}: it names a shard twice: name each once")
    shards = files.indexes(names)
    endings = {"audio": where.options.get("audio"), "text": where.options.get("text")}
    rows, problems = read_samples(shards, **endings, encoding=files.encoding)
    return _of_archives(where, table_of(rows), shards, problems=problems)


def _nemo(where: DataLocation, split: str, files: SourceFiles) -> Manifest:
    if "tars" not in where.options:
        raise ConfigError(
            f"nemo:{where.path}: name the tars of its recordings, as nemo:{where.path}?tars=audio__OP_0..127_CL_.tar; "
            "NeMo's manifests of files are manifests here (data.audio_column_name: audio_filepath)"
        )
    manifests = _names(where.path)
    names = _names(absolute(base_of(manifests[0]), where.options["tars"]))
    if problem := next(filter(None, map(unreadable_url, names)), None):
        raise ConfigError(f"nemo:{where.path}: tars: {problem}")
    tars = files.indexes(names)
    rows: list[dict[str, Any]] = []
    for number, location in enumerate(manifests):
        text = decode(location, _required(location, files, "name NeMo's manifest"))
        rows += read_tarred(location, text, tars, tars[number] if len(manifests) == len(tars) > 1 else None)
    if len({row["id"] for row in rows}) < len(rows):
        # Recordings in several tars may have the same name.
        prefixes = shard_names(tars)
        rows = [{**row, "id": f"{prefixes[row['tar']]}/{row['id']}"} for row in rows]
    numbers = {tar.location: each for each, tar in enumerate(tars)}
    # The fingerprint has the tars' numbers, since tars may have recordings of the same name.
    return _of_archives(where, table_of(rows), tars, hash_of([numbers[row["tar"]] for row in rows]).encode())


def _lhotse(where: DataLocation, split: str, files: SourceFiles) -> Manifest:
    content = _required(where.path, files, "name a manifest of cuts (.jsonl.gz)")
    text = lhotse.text_of_cuts(where.path, content)
    return _manifest(where, where.path, table_of(lhotse.read_cuts(where.path, text, None)), text.encode())


def _librispeech(where: DataLocation, split: str, files: SourceFiles) -> Manifest:
    chapters = files.files_below(where.path, TRANSCRIPTS)
    if not chapters:
        raise DataError(f"{where.path}: there is no *{TRANSCRIPTS} below it: name a folder or archive of LibriSpeech")
    contents = [_required(chapter, files, "fetch the corpus again") for chapter in chapters]
    rows = [row for pair in zip(chapters, contents, strict=True) for row in read_chapter(*pair)]
    return _manifest(where, where.path, table_of(rows), *contents)


def _shar(where: DataLocation, split: str, files: SourceFiles) -> Manifest:
    if lhotse.JSON_LINES in posixpath.basename(where.path):
        manifests = _names(where.path)
    else:
        folder = where.path.rstrip("/")
        names = [name for name in files.names_in(folder) if name.startswith(lhotse.CUTS) and lhotse.JSON_LINES in name]
        manifests = [f"{folder}/{name}" for name in names]
    if not manifests:
        raise DataError(f"{where.path}: there is no {lhotse.CUTS}*{lhotse.JSON_LINES}.gz: name a folder of Shar")
    shards = files.indexes(map(_shar_tar, manifests))
    rows: list[dict[str, Any]] = []
    for location, shard in zip(manifests, shards, strict=True):
        text = lhotse.text_of_cuts(location, _required(location, files, "name Shar's cuts"))
        rows += lhotse.read_cuts(location, text, shard)
    return _of_archives(where, table_of(rows), shards)


def _shar_tar(manifest: str) -> str:
    folder, _, name = manifest.rpartition("/")
    stem = name.removeprefix(lhotse.CUTS).partition(lhotse.JSON_LINES)[0]
    return f"{folder}/{lhotse.RECORDINGS}{stem}{lhotse.TAR}"


def _names(pattern: str) -> list[str]:
    try:
        return expand_names(pattern)
    except ValueError as error:
        raise ConfigError(str(error)) from None


def _required(location: str, files: SourceFiles, fix: str) -> bytes:
    content = files.read(location)
    if content is None:
        raise DataError(f"{location}: no such file: {fix}")
    return content


def _of_archives(
    where: DataLocation,
    table: pa.Table,
    archives: Sequence[ArchiveIndex],
    *contents: bytes,
    problems: Mapping[str, str] = {},
) -> Manifest:
    """Returns rows whose recordings are in archives, fingerprinted by the rows and `contents`, not by location."""
    names = [posixpath.basename(path) for path in table["audio"].to_pylist()]
    digest = hash_of(names, *(table[name].to_pylist() for name in table.column_names if name != "audio"))
    return _manifest(where, archives[0].location, table, digest.encode(), *contents, problems=problems)


def _manifest(
    where: DataLocation,
    location: str,
    table: pa.Table,
    *contents: bytes,
    warnings: Sequence[str] = (),
    problems: Mapping[str, str] = {},
) -> Manifest:
    """Returns rows, fingerprinted by the contents of the files read and the options of their format."""
    options = sorted((name, value) for name, value in where.options.items() if name not in PLACES)
    digest = hash_of(where.format, options, *contents).encode()
    return Manifest(location, digest, table, ("audio", "text"), warnings, problems)


_READERS: Mapping[str, Callable[[DataLocation, str, SourceFiles], Manifest]] = {
    "common_voice": _common_voice,
    "kaldi": _kaldi,
    "lhotse": _lhotse,
    "librispeech": _librispeech,
    "nemo": _nemo,
    "shar": _shar,
    "speechbrain": _speechbrain,
    "webdataset": _webdataset,
}
