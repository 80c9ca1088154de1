"""Prefixes of recordings' paths that are others where the job runs: manifests travel, and their paths do not."""

from collections.abc import Mapping

import pyarrow as pa


def with_prefixes(table: pa.Table, prefixes: Mapping[str, str]) -> tuple[pa.Table, list[str]]:
    """A table of ROW_SCHEMA with other beginnings of paths, and the prefixes that begin none.

    Of several prefixes that begin a path, the longest is replaced, once.
    """
    used: set[str] = set()
    by_length = sorted(prefixes, key=len, reverse=True)

    def replaced(path: str) -> str:
        for prefix in by_length:
            if path.startswith(prefix):
                used.add(prefix)
                return prefixes[prefix] + path[len(prefix) :]
        return path

    paths = pa.array([replaced(path) for path in table["audio"].to_pylist()], pa.string())
    position = table.schema.get_field_index("audio")
    changed = table.set_column(position, table.schema.field("audio"), paths)
    return changed, [prefix for prefix in prefixes if prefix not in used]
