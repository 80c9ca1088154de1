"""Prefixes of recordings' paths that are others where the job runs: manifests travel, and their paths do not."""

from collections.abc import Mapping

import pyarrow as pa

from trainers.data.sources.data_source import with_columns


def with_prefixes(table: pa.Table, prefixes: Mapping[str, str]) -> tuple[pa.Table, list[str]]:
    """A table of ROW_SCHEMA with other beginnings of paths, and the prefixes that begin none; see `prefix_of`."""
    used: set[str] = set()

    def replaced(path: str) -> str:
        prefix = prefix_of(path, prefixes)
        if prefix is None:
            return path
        used.add(prefix)
        return prefixes[prefix] + path[len(prefix) :]

    paths = pa.array([replaced(path) for path in table["audio"].to_pylist()], pa.string())
    return with_columns(table, audio=paths), [prefix for prefix in prefixes if prefix not in used]


def prefix_of(path: str, prefixes: Mapping[str, str]) -> str | None:
    """The prefix of a path that is replaced, once: of several that begin it, the longest. None: none does."""
    return max(filter(path.startswith, prefixes), key=len, default=None)
