"""Logs of an attempt, live and after its cluster has ended: the driver's from Ray, the workers' from the run folder.

Every source is an append-only stream of bytes. A reader's cursor has a byte offset for each source, so that a reader
that reconnects continues without gap or repeat.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Annotated

from pydantic import Field, TypeAdapter

from jobs.model import Attempt, AttemptState, LogLine, LogPage, Run
from jobs.service.run_folders import MAX_DRIVER_BYTES, PIECE_BYTES, RunFolders
from trainers.errors import ConfigError, RayscribeError
from trainers.run_folder.attempt_status import driver_log_key, worker_logs
from trainers.run_folder.layout import RunFolder

DRIVER = "driver"
# Limits of a page: bytes of one source, bytes of all, and lines, since each line costs more than its text.
MAX_BYTES, MAX_PAGE_BYTES, MAX_LINES = 1_000_000, 8_000_000, 20_000
# Largest offset that files and stores accept; no log is longer.
MAX_OFFSET = 2**53
# Reads, from an offset, up to a number of bytes.
ReadPart = Callable[[int, int], bytes]
_OFFSETS = TypeAdapter(dict[str, Annotated[int, Field(strict=True, ge=0, le=MAX_OFFSET)]])
_SOURCE = re.compile(rf"{DRIVER}|rank-\d+")


@dataclass(frozen=True)
class LogStream:
    """One append-only stream; `key` distinguishes streams of the same name, e.g. those of two worker groups."""

    name: str
    key: str
    read: ReadPart


def read_logs(
    folders: RunFolders,
    run: Run,
    attempt: Attempt,
    *,
    source: str | None,
    cursor: str | None,
    driver_log: ReadPart,
) -> LogPage:
    """Reads the lines of a source (`driver`, `rank-<n>`, or None for all) after the cursor of the previous page.

    Raises:
        ConfigError: the cursor or the source is not valid.
        StorageError: the run folder does not respond, and nothing else has the logs.
        ClusterError: neither the cluster of an active attempt nor the run folder responds.
    """
    if source is not None and _SOURCE.fullmatch(source) is None:
        raise ConfigError(f"unknown source {source[:80]!r}: use driver, rank-0, rank-1, …")
    offsets = _offsets_of(cursor)
    # Read before the logs, so that lines that are written in between are on the next page.
    attempt_ended = attempt.state == AttemptState.ENDED
    lines: list[LogLine] = []
    complete, read_bytes = True, 0
    driver = LogStream(DRIVER, DRIVER, partial(_driver, folders, run, attempt, driver_log))
    workers = _workers(folders, run, attempt) if source != DRIVER else []
    for stream in (item for item in (driver, *workers) if source in (None, item.name)):
        if read_bytes >= MAX_PAGE_BYTES or len(lines) >= MAX_LINES:
            complete = False  # the next page has the other lines
            break
        start = offsets.get(stream.key, 0)
        new = stream.read(start, MAX_BYTES)
        if len(new) == MAX_BYTES:
            new = new[: new.rfind(b"\n") + 1 or _last_character(new)]
            complete = False
        elif not attempt_ended:
            new = new[: new.rfind(b"\n") + 1]
            complete = complete and not new
        if len(rest := new.split(b"\n", MAX_LINES - len(lines))) > MAX_LINES - len(lines) and rest[-1]:
            new = new[: -len(rest[-1])]
            complete = False
        lines += [LogLine(source=stream.name, text=text) for text in _lines_of(new)]
        offsets[stream.key] = start + len(new)
        read_bytes += len(new)
    return LogPage(attempt=attempt.number, lines=lines, cursor=_cursor_of(offsets), ended=attempt_ended and complete)


def _driver(folders: RunFolders, run: Run, attempt: Attempt, driver_log: ReadPart, start: int, size: int) -> bytes:
    """Reads an active driver's log from Ray, an ended driver's from the archive; if that fails, from the other."""
    archive = partial(_archived, folders, run, attempt, start, size)

    def live() -> bytes:
        # Up to the archived size; the archive of an ended driver has its last lines after that.
        most = min(size, MAX_DRIVER_BYTES - start)
        return driver_log(start, most) if most > 0 else b""

    first, second = (archive, live) if attempt.state == AttemptState.ENDED else (live, archive)
    try:
        found = first()
    except RayscribeError as error:
        try:
            return second()
        except RayscribeError:
            raise error from None
    # If the reader is past the end of the archive, it has read from Ray before.
    if found or (start > 0 and _archived(folders, run, attempt, start - 1, 1)):
        return found
    with suppress(RayscribeError):
        return second()
    return found


def _archived(folders: RunFolders, run: Run, attempt: Attempt, start: int, size: int) -> bytes:
    found = _bytes(folders, run, driver_log_key(attempt.number), start, size)
    while len(found) < size and (at := start + len(found)) >= PIECE_BYTES:
        piece, offset = divmod(at, PIECE_BYTES)
        key = driver_log_key(attempt.number, piece)
        more = _bytes(folders, run, key, offset, min(size - len(found), PIECE_BYTES - offset))
        if not more:
            break
        found += more
    return found


def _workers(folders: RunFolders, run: Run, attempt: Attempt) -> list[LogStream]:
    try:
        found = folders.read(run, lambda folder: worker_logs(folder, attempt.number))
    except RayscribeError:
        if attempt.state == AttemptState.ENDED:
            raise
        return []  # the next page has their lines
    return [LogStream(f"rank-{rank}", key, partial(_bytes, folders, run, key)) for rank, _, key in sorted(found)]


def _bytes(folders: RunFolders, run: Run, key: str, start: int, size: int) -> bytes:
    def read(folder: RunFolder) -> bytes:
        return folder.storage.read_part(key, start, size) if folder.storage.exists(key) else b""

    return folders.read(run, read)


def _last_character(raw: bytes) -> int:
    """Returns the start of the last UTF-8 character, for a line that is longer than a page."""
    starts = (at for at in range(len(raw) - 1, max(0, len(raw) - 5), -1) if raw[at] & 0xC0 != 0x80)
    return next(starts, len(raw))


def _lines_of(raw: bytes) -> list[str]:
    text = raw.decode(errors="replace").replace("\r\n", "\n")
    # Progress bars end their lines with a carriage return.
    return text.replace("\r", "\n").removesuffix("\n").split("\n") if text else []


def _cursor_of(offsets: Mapping[str, int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(offsets, sort_keys=True).encode()).decode()


def _offsets_of(cursor: str | None) -> dict[str, int]:
    if cursor is None:
        return {}
    try:
        return _OFFSETS.validate_json(base64.urlsafe_b64decode(cursor.encode()))
    except ValueError:
        raise ConfigError(f"cursor {cursor[:80]!r} was not returned by a page of logs: leave it out") from None
