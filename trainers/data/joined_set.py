"""Several prepared sets as one: the members of a mix, each prepared by itself and found again in any other mix."""

import hashlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from trainers.data.prepared_set import ClipReader, PreparedSet, Summary


@dataclass(frozen=True)
class JoinedMember:
    """One set of a mix.

    Attributes:
        name: Its name in the config. Ids of its clips begin with it: `name/id`.
        language: Language of its clips that name none. None: the config's.
    """

    name: str
    language: str | None
    prepared: PreparedSet

    def languages(self) -> pa.ChunkedArray:
        """The language of each clip; null where it is the config's."""
        index = self.prepared.index
        if "language" not in index.column_names:
            return pa.chunked_array([pa.repeat(pa.scalar(self.language, pa.string()), len(index))])
        return index["language"] if self.language is None else pc.fill_null(index["language"], self.language)


@dataclass(frozen=True)
class JoinedSet(PreparedSet):
    """Prepared sets, one after another; its URL is that of the cache that they are in.

    Positions count through all of them. Its index also has the number of each clip's `member`.
    """

    members: tuple[JoinedMember, ...] = ()

    @classmethod
    def of(cls, members: Sequence[JoinedMember]) -> "JoinedSet":
        """Joins at least one set."""
        first = members[0].prepared
        return cls(
            first.url.rpartition("/")[0],
            joined_key([(each.name, each.language, each.prepared.key) for each in members]),
            first.storage_options,
            members=tuple(members),
        )

    @property
    def parts(self) -> tuple[PreparedSet, ...]:
        return tuple(member.prepared for member in self.members)

    @cached_property
    def index(self) -> pa.Table:
        """See `PreparedSet.index`; shards have numbers of their own in each member."""
        path = self._node.once("index.arrow", self._write_index)
        return pa.ipc.open_file(pa.memory_map(str(path))).read_all()

    def _write_index(self, path: Path) -> None:
        languages = [member.languages() for member in self.members]
        has_languages = any(each.null_count < len(each) for each in languages)
        first_shard, tables = 0, []
        for number, (member, of_each) in enumerate(zip(self.members, languages, strict=True)):
            index = member.prepared.index
            columns = {
                "id": pc.binary_join_element_wise(member.name, index["id"], "/"),
                "shard": pc.add(index["shard"], first_shard),
                **{name: index[name] for name in ("row", "duration_s", "text")},
                **({"language": of_each} if has_languages else {}),
                "member": pa.repeat(pa.scalar(number, pa.int32()), len(index)),
            }
            tables.append(pa.table(columns))
            first_shard += pc.max(index["shard"]).as_py() + 1
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, tables[0].schema) as writer:
            for table in tables:
                writer.write_table(table)

    @cached_property
    def summary(self) -> Summary:
        counts = [vars(part.summary) for part in self.parts]
        return Summary(**{name: sum(each[name] for each in counts) for name in counts[0]})

    @cached_property
    def quarantine(self) -> list[dict[str, str]]:
        return [
            {**row, "id": f"{member.name}/{row['id']}"} for member in self.members for row in member.prepared.quarantine
        ]

    def reader(self, cache_bytes: int) -> "JoinedReader":
        return JoinedReader(self, cache_bytes=cache_bytes)

    @property
    def member_names(self) -> list[str]:
        """The name of each clip's member."""
        names = [member.name for member in self.members]
        return [names[number] for number in self.index["member"].to_pylist()]

    def __reduce__(self) -> tuple[Any, ...]:
        return JoinedSet.of, (self.members,)


class JoinedReader(ClipReader):
    """Reads clips of joined sets by their position in the index of all."""

    def __init__(self, joined: JoinedSet, *, cache_bytes: int):
        self._prepared, self._cache_bytes = joined, cache_bytes
        self._readers = [part.reader(cache_bytes) for part in joined.parts]
        self._first = first_positions(joined.parts)

    def read(self, position: int) -> np.ndarray:
        member = int(np.searchsorted(self._first, position, side="right")) - 1
        return self._readers[member].read(int(position - self._first[member]))

    def prefetch(self, positions: np.ndarray) -> None:
        of_each = np.searchsorted(self._first, positions, side="right") - 1
        for member in np.unique(of_each):
            self._readers[member].prefetch(positions[of_each == member] - self._first[member])


def first_positions(parts: Sequence[PreparedSet]) -> np.ndarray:
    """Positions in the index of all at which those of each part begin, int64."""
    sizes: Iterator[int] = accumulate((len(part.index) for part in parts[:-1]), initial=0)
    return np.fromiter(sizes, np.int64)


def joined_key(members: Sequence[tuple[str, str | None, str]]) -> str:
    """Hash of the names, languages and keys of sets that are joined: 32 hexadecimal digits."""
    return hashlib.sha256(json.dumps(["mix", *members]).encode()).hexdigest()[:32]
