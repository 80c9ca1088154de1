"""Replaces prefixes of recordings' paths that differ on the machines that run the job."""

from collections.abc import Mapping

import pyarrow as pa

from trainers.data.sources.data_source import with_columns


def with_prefixes(table: pa.Table, prefixes: Mapping[str, str]) -> tuple[pa.Table, list[str]]:
    """Returns a table of ROW_SCHEMA with replaced prefixes, and the prefixes that match no path; see `prefix_of`."""
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
    """Returns the longest prefix that matches a path, which is replaced once; None if none matches."""
    return max(filter(path.startswith, prefixes), key=len, default=None)
