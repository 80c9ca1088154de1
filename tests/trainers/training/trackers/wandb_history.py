"""Rows of a run's history in a .wandb file: records of LevelDB's log format, each a protocol buffer."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from wandb.proto.wandb_internal_pb2 import Record

BLOCK, FILE_HEADER, HEADER = 32768, 7, 7
FULL, FIRST, LAST = 1, 2, 4


def records_of(path: Path) -> Iterator[Any]:
    """All records of a file."""
    content, at, parts = path.read_bytes(), FILE_HEADER, b""
    while at + HEADER <= len(content):
        if BLOCK - at % BLOCK < HEADER:
            at += BLOCK - at % BLOCK
            continue
        size, kind = int.from_bytes(content[at + 4 : at + 6], "little"), content[at + 6]
        data = content[at + HEADER : at + HEADER + size]
        parts = data if kind in (FULL, FIRST) else parts + data
        at += HEADER + size
        if kind in (FULL, LAST):
            yield Record.FromString(parts)


def history_of(path: Path) -> list[dict[str, Any]]:
    """The rows of its history, with `_step`, each row's own number."""
    found = [record for record in records_of(path) if record.WhichOneof("record_type") == "history"]
    return [
        {"_step": record.history.step.num}
        | {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in found
    ]
