"""Label ids of a prepared set: encoded once for each tokenizer, kept beside the index, mapped by all that read them.

labels-<hash of the tokenizer>.bin    int64 offsets, one more than there are clips; the int32 ids of all clips; a zero
"""

from collections.abc import Iterator
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from trainers.data.prepared_set import PreparedSet
from trainers.models.family import Family

# Few enough for their ids to take little memory as Python's numbers, enough for the tokenizer to use all cores.
TEXTS_AT_ONCE = 16_384


class Labels:
    """The label ids of each position of an index; processes that map the same file share its memory."""

    def __init__(self, path: Path, clips: int):
        """Maps a file.

        Args:
            path: The file.
            clips: How many clips the index has.
        """
        self._path = path
        self._offsets = np.asarray(np.memmap(path, np.int64, "r", shape=(clips + 1,)))
        self._ids = np.asarray(np.memmap(path, np.int32, "r", offset=self._offsets.nbytes))

    def __len__(self) -> int:
        return len(self._offsets) - 1

    def __getitem__(self, position: int) -> list[int]:
        """As `Family.encode_labels` gives them."""
        ids: list[int] = self._ids[self._offsets[position] : self._offsets[position + 1]].tolist()
        return ids

    @property
    def lengths(self) -> npt.NDArray[np.int64]:
        """Number of ids of each clip, shape (N,)."""
        return np.diff(self._offsets)

    @property
    def repeats(self) -> npt.NDArray[np.int64]:
        """How many ids of each clip are equal to the one before, shape (N,)."""
        equal = np.zeros(len(self._ids) + 1, np.int64)
        equal[1 : len(self._ids)] = self._ids[1:] == self._ids[:-1]
        # The first id of a clip follows none.
        equal[self._offsets[:-1]] = 0
        sums = np.concatenate([[0], np.cumsum(equal)])
        repeats: npt.NDArray[np.int64] = sums[self._offsets[1:]] - sums[self._offsets[:-1]]
        return repeats

    def __reduce__(self) -> tuple[Any, ...]:
        return Labels, (self._path, len(self))


def labels_of(prepared: PreparedSet, family: Family, processor: Any) -> Labels:
    """The labels of a set's transcripts, encoded by the first that asks.

    Args:
        prepared: The set.
        family: The model's family.
        processor: Its processor.
    """
    texts = prepared.index["text"]
    name = f"labels-{family.labels_fingerprint(processor)}.bin"

    def make(path: Path) -> None:
        _write(path, _encode(texts, family, processor), len(texts))

    return Labels(prepared.file(name, make), len(texts))


def _encode(texts: pa.ChunkedArray, family: Family, processor: Any) -> Iterator[list[list[int]]]:
    for start in range(0, len(texts), TEXTS_AT_ONCE):
        yield family.encode_labels(processor, texts.slice(start, TEXTS_AT_ONCE).to_pylist())


def _write(path: Path, encoded: Iterator[list[list[int]]], clips: int) -> None:
    offsets = np.zeros(clips + 1, np.int64)
    with path.open("wb") as file:
        offsets.tofile(file)
        first = 1
        for rows in encoded:
            offsets[first : first + len(rows)] = np.fromiter(map(len, rows), np.int64)
            np.fromiter(chain.from_iterable(rows), np.int32).tofile(file)
            first += len(rows)
        np.zeros(1, np.int32).tofile(file)
        file.seek(0)
        np.cumsum(offsets).tofile(file)
