"""Encodes label ids of a prepared set once per tokenizer, and stores them next to the index; readers map the file.

labels-<hash of the tokenizer>.bin    int64 offsets, one more than there are clips; the int32 ids of all clips; the
                                      CRC-32 of everything before it

Clips in another language than the config's have its token in their labels; the name then has a hash of these tokens.
"""

import hashlib
import json
import zlib
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import IO, Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.wording import counted
from trainers.data.prepared_set import JoinedSet, PreparedSet
from trainers.errors import ConfigError, DataError
from trainers.models.label_codec import LabelCodec
from trainers.models.language_names import code_or_name

# Few enough that their ids take little memory as Python integers, enough that the tokenizer uses all cores.
TEXTS_AT_ONCE = 16_384
CHECKED_BYTES = 2**20
# The language of a clip without a value, if the config names none.
NOT_NAMED = "not named"


class Labels:
    """The label ids at each position of an index; processes that map the same file share its memory."""

    def __init__(self, path: Path, clips: int):
        self._path = path
        self._offsets = np.asarray(np.memmap(path, np.int64, "r", shape=(clips + 1,)))
        self._ids = np.asarray(np.memmap(path, np.int32, "r", offset=self._offsets.nbytes))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> list[int]:
        ids: list[int] = self._ids[self._offsets[position] : self._offsets[position + 1]].tolist()
        return ids

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of ids of each clip, shape (N,)."""
        return np.diff(self._offsets)

    @property
    def repeats(self) -> npt.NDArray[np.int64]:
        """Number of ids of each clip that equal the one before, shape (N,)."""
        equal = np.zeros(len(self._ids) + 1, np.int64)
        equal[1 : len(self._ids)] = self._ids[1:] == self._ids[:-1]
        # The first id of a clip has no id before it.
        equal[self._offsets[:-1]] = 0
        sums = np.concatenate([[0], np.cumsum(equal)])
        repeats: npt.NDArray[np.int64] = sums[self._offsets[1:]] - sums[self._offsets[:-1]]
        return repeats

    def __reduce__(self) -> tuple[Any, ...]:
        return Labels, (self._path, len(self))


class JoinedLabels(Labels):
    """The labels of several sets, one after another."""

    def __init__(self, parts: Sequence[Labels]):
        self._parts = list(parts)
        self._first = np.cumsum([0, *(len(part) for part in self._parts)])

    def __len__(self) -> int:
        return int(self._first[-1])

    def __getitem__(self, position: int) -> list[int]:
        part = int(np.searchsorted(self._first, position, side="right")) - 1
        return self._parts[part][int(position - self._first[part])]

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        return np.concatenate([part.lengths for part in self._parts])

    @property
    def repeats(self) -> npt.NDArray[np.int64]:
        return np.concatenate([part.repeats for part in self._parts])

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedLabels, (self._parts,)


class ReplacedLabels(Labels):
    """The labels of a set, of which some clips have others, such as labels with timestamps."""

    def __init__(self, labels: Labels, rows: npt.NDArray[np.int64], ids: Sequence[npt.NDArray[np.int32]]):
        """`rows` are the positions of these clips, ascending; `ids` are their label ids."""
        self._labels, self._rows = labels, rows
        self._first = np.cumsum([0, *map(len, ids)])
        self._new = np.concatenate([np.zeros(0, np.int32), *ids])

    def __len__(self) -> int:
        return len(self._labels)

    def __getitem__(self, position: int) -> list[int]:
        at = int(np.searchsorted(self._rows, position))
        if at == len(self._rows) or self._rows[at] != position:
            return self._labels[position]
        ids: list[int] = self._new[self._first[at] : self._first[at + 1]].tolist()
        return ids

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        lengths = self._labels.lengths.copy()
        lengths[self._rows] = np.diff(self._first)
        return lengths

    @property
    def repeats(self) -> npt.NDArray[np.int64]:
        repeats = self._labels.repeats.copy()
        for at, row in enumerate(self._rows):
            own = self._new[self._first[at] : self._first[at + 1]]
            repeats[row] = int((own[1:] == own[:-1]).sum())
        return repeats

    def __reduce__(self) -> tuple[Any, ...]:
        return ReplacedLabels, (self._labels, self._rows, np.split(self._new, self._first[1:-1]))


class EmptiedLabels:
    """The labels of the clips of a set without their texts, each in its own language."""

    def __init__(self, labels: Labels, empty: Sequence[int], prefix_tokens: int):
        """`empty` is the label of an empty text in any language, `prefix_tokens` how many of its ids are a prefix."""
        self._labels, self._prefix, self._end = labels, prefix_tokens, list(empty[prefix_tokens:])

    def __getitem__(self, position: int) -> list[int]:
        return [*self._labels[position][: self._prefix], *self._end]


def labels_of(prepared: PreparedSet, codec: LabelCodec, processor: Any, language: str | None = None) -> Labels:
    """Returns the labels of a set's transcripts in the config's language, encoded by the first process that needs them.

    Raises as `language_prefixes`.
    """
    if not isinstance(prepared, JoinedSet):
        return _labels_of(prepared, codec, processor, language, languages_in(prepared.index))
    return JoinedLabels(
        [
            _labels_of(each.prepared, codec, processor, language, each.languages(), each.language)
            for each in prepared.members
        ]
    )


def _labels_of(
    prepared: PreparedSet,
    codec: LabelCodec,
    processor: Any,
    language: str | None,
    languages: pa.ChunkedArray,
    of_member: str | None = None,
) -> Labels:
    """Returns the labels of one set; `of_member` is the language that a mix gives to clips without one."""
    texts = prepared.index["text"]
    prefixes = language_prefixes(codec, processor, languages, language)
    # Distinguishes the names of files with labels in several languages, in addition to the tokenizer's hash.
    named: list[Any] = [*sorted(prefixes.items()), *([of_member] if of_member is not None else [])]
    suffix = f"-{hashlib.sha256(json.dumps(named).encode()).hexdigest()[:16]}" if prefixes else ""
    name = f"labels-{codec.labels_fingerprint(processor)}{suffix}.bin"

    def make(path: Path) -> None:
        _write(path, _encode(texts, languages, prefixes, codec, processor), len(texts))

    path = prepared.file(name, make)
    _check(path, prepared, len(texts))
    return Labels(path, len(texts))


def _check(path: Path, prepared: PreparedSet, clips: int) -> None:
    """Raises DataError if the size or checksum of a file is wrong."""
    size = path.stat().st_size
    if size >= 8 * (clips + 1) + 4 and size % 4 == 0:
        with path.open("rb") as file:
            checksum = _crc32(file, size - 4)
            stored = int.from_bytes(file.read(4), "little")
            file.seek(8 * clips)
            ids = int.from_bytes(file.read(8), "little")
        if stored == checksum and size == 8 * (clips + 1) + 4 * ids + 4:
            return
    stored_at = {str(path): None, prepared.storage.url(path.name): None}
    raise DataError(f"{path}: the file of label ids is damaged; delete {' and '.join(stored_at)}: it is made again")


def _encode(
    texts: pa.ChunkedArray,
    languages: pa.ChunkedArray,
    prefixes: Mapping[str, list[int]],
    codec: LabelCodec,
    processor: Any,
) -> Iterator[list[list[int]]]:
    own = len(codec.language_prefix(processor, None)) if prefixes else 0
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        encoded = codec.encode_labels(processor, texts.slice(start, TEXTS_AT_ONCE).to_pylist())
        if prefixes:
            for ids, language in zip(encoded, languages.slice(start, TEXTS_AT_ONCE).to_pylist(), strict=True):
                ids[:own] = prefixes.get(language, ids[:own])
        yield encoded


def _write(path: Path, encoded: Iterator[list[list[int]]], clips: int) -> None:
    offsets = np.zeros(clips + 1, np.int64)
    with path.open("w+b") as file:
        offsets.tofile(file)
        first = 1
        for rows in encoded:
            offsets[first : first + len(rows)] = np.fromiter(map(len, rows), np.int64)
            np.fromiter(chain.from_iterable(rows), np.int32).tofile(file)
            first += len(rows)
        file.seek(0)
        np.cumsum(offsets).tofile(file)
        file.write(_crc32(file, file.tell() + 4 * int(offsets.sum())).to_bytes(4, "little"))


def _crc32(file: IO[bytes], size: int) -> int:
    file.seek(0)
    checksum = 0
    for first in range(0, size, CHECKED_BYTES):
        checksum = zlib.crc32(file.read(min(CHECKED_BYTES, size - first)), checksum)
    return checksum


def languages_in(table: pa.Table) -> pa.ChunkedArray:
    """Returns the column `language` of a source or of an index; nulls if there is none."""
    if "language" in table.column_names:
        return table["language"]
    return pa.chunked_array([pa.nulls(len(table), pa.string())])


def clip_languages(table: pa.Table, language: str | None) -> list[str] | None:
    """Returns the code of each clip's language, or its name if it has no code; None if the index has no such column."""
    if "language" not in table.column_names:
        return None
    own = code_or_name(language) if language is not None else NOT_NAMED
    column = table["language"].to_pylist()
    codes = {None: own, **{name: code_or_name(name) for name in set(column) if name is not None}}
    return [codes[name] for name in column]


def language_prefixes(
    codec: LabelCodec, processor: Any, languages: pa.ChunkedArray, language: str | None
) -> dict[str, list[int]]:
    """Returns the label ids before texts in each of the clips' languages (`languages_in`) except the config's.

    Raises ConfigError, with names and numbers of clips, if some are unknown to the model.
    """
    counts = {item["values"]: item["counts"] for item in pc.value_counts(languages.drop_null()).to_pylist()}
    own = code_or_name(language) if language is not None else None
    usual = codec.language_prefix(processor, None) if counts and processor is not None else []
    prefixes: dict[str, list[int]] = {}
    problems = []
    for name in sorted(counts):
        if code_or_name(name) == own:
            continue
        try:
            prefix = codec.language_prefix(processor, name)
        except ConfigError as error:
            problems.append(
                f"{counted(counts[name], 'clip', 'has', 'have')} the language {name!r} ({str(error).rstrip('.')})"
            )
        else:
            if prefix != usual:
                prefixes[name] = prefix
    if problems:
        raise ConfigError(
            f"column language: {', '.join(problems)}: correct the column or take the clips out, or give all clips "
            "model.language (--set data.use_language_column=false)"
        )
    return prefixes


def empty_labels(
    codec: LabelCodec, processor: Any, languages: Sequence[str | None], language: str | None
) -> list[list[int]]:
    """Returns the label ids of an empty text in the language of each clip; None in `languages` means the config's.

    Raises as `language_prefixes`.
    """
    column = pa.chunked_array([pa.array(languages, pa.string())])
    prefixes = language_prefixes(codec, processor, column, language)
    texts = pa.chunked_array([pa.array([""] * len(languages), pa.string())])
    return list(chain.from_iterable(_encode(texts, column, prefixes, codec, processor)))
