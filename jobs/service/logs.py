"""Logs of an attempt, live and after its cluster has gone: the driver's from Ray, the workers' from the run folder.

Every source is a stream of bytes that only grows, so a reader needs nothing but how far it has read. The cursor that it
hands back and forth holds a byte offset for each source; a reconnect goes on where it was, without gap or repeat.
"""

import base64
import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial

from jobs.model import Attempt, AttemptState, LogLine, LogPage, Run
from jobs.service.run_folders import RunFolders
from trainers.errors import ConfigError, RayscribeError
from trainers.run_folder.attempt_status import driver_log_key, worker_logs
from trainers.run_folder.layout import RunFolder

DRIVER = "driver"
MOST_BYTES = 1_000_000
_SOURCE = re.compile(rf"{DRIVER}|rank-\d+")


@dataclass(frozen=True)
class Source:
    """One growing stream.

    Attributes:
        name: Who prints: `driver`, `rank-0`.
        key: Distinguishes streams of one name, such as those of two worker groups.
        read: Gives what there is from a byte on, so many bytes at most.
    """

    name: str
    key: str
    read: Callable[[int, int], bytes]


def read_logs(
    folders: RunFolders,
    run: Run,
    attempt: Attempt,
    *,
    source: str | None,
    cursor: str | None,
    driver_log: Callable[[], bytes],
) -> LogPage:
    """Reads what is new.

    Args:
        folders: Reads run folders.
        run: The run.
        attempt: The attempt.
        source: `driver`, `rank-<n>`, or None for all.
        cursor: From the page before; None for the beginning.
        driver_log: Asks the cluster for the driver's output; may raise ClusterError.

    Raises:
        ConfigError: the cursor or the source is not one of ours.
        StorageError: the run folder does not respond, and nobody else has the logs.
        ClusterError: neither the cluster of a live attempt nor the run folder answers.
    """
    if source is not None and _SOURCE.fullmatch(source) is None:
        raise ConfigError(f"source {source[:80]!r} is nobody who prints: it is driver, or rank-0, rank-1, …")
    offsets = _offsets_of(cursor)
    # Looked at before reading: what is written between the two is found by the next page.
    over = attempt.state == AttemptState.ENDED
    lines: list[LogLine] = []
    whole = True
    for stream in _sources(folders, run, attempt, source, driver_log):
        start = offsets.get(stream.key, 0)
        new = stream.read(start, MOST_BYTES)
        if len(new) == MOST_BYTES:
            new = new[: new.rfind(b"\n") + 1 or _last_character(new)]
            whole = False
        elif not over:
            new = new[: new.rfind(b"\n") + 1]
            whole = whole and not new
        lines += [LogLine(source=stream.name, text=text) for text in _lines_of(new)]
        offsets[stream.key] = start + len(new)
    return LogPage(attempt=attempt.number, lines=lines, cursor=_cursor_of(offsets), ended=over and whole)


def _sources(
    folders: RunFolders, run: Run, attempt: Attempt, wanted: str | None, driver_log: Callable[[], bytes]
) -> Sequence[Source]:
    streams = []
    if wanted in (None, DRIVER):
        streams.append(Source(DRIVER, DRIVER, partial(_driver, folders, run, attempt, driver_log)))
    if wanted != DRIVER:
        streams += [source for source in _workers(folders, run, attempt) if wanted in (None, source.name)]
    return streams


def _driver(
    folders: RunFolders, run: Run, attempt: Attempt, driver_log: Callable[[], bytes], start: int, most: int
) -> bytes:
    """From where it surely is first: a live one from Ray, an ended one from the archive."""
    archive = partial(_bytes, folders, run, driver_log_key(attempt.number), start, most)

    def live() -> bytes:
        return driver_log()[start : start + most]

    first, second = (archive, live) if attempt.state == AttemptState.ENDED else (live, archive)
    try:
        found = first()
    except RayscribeError as error:
        try:
            return second()
        except RayscribeError:
            raise error from None
    # A reader who is further than the archive goes had it from Ray.
    if found or (start > 0 and _bytes(folders, run, driver_log_key(attempt.number), start - 1, 1)):
        return found
    with suppress(RayscribeError):
        return second()
    return found


def _workers(folders: RunFolders, run: Run, attempt: Attempt) -> list[Source]:
    try:
        found = folders.read(run, lambda folder: worker_logs(folder, attempt.number))
    except RayscribeError:
        if attempt.state == AttemptState.ENDED:
            raise
        return []  # the next page finds them
    return [Source(f"rank-{rank}", key, partial(_bytes, folders, run, key)) for rank, _, key in sorted(found)]


def _bytes(folders: RunFolders, run: Run, key: str, start: int, most: int) -> bytes:
    """A part of a file of the run folder, nothing where it is not there."""

    def read(folder: RunFolder) -> bytes:
        return folder.storage.read_part(key, start, most) if folder.storage.exists(key) else b""

    return folders.read(run, read)


def _last_character(raw: bytes) -> int:
    """Where the last character of UTF-8 begins, for a cut through a line that has no end within a page."""
    begins = (at for at in range(len(raw) - 1, max(0, len(raw) - 5), -1) if raw[at] & 0xC0 != 0x80)
    return next(begins, len(raw))


def _lines_of(raw: bytes) -> list[str]:
    text = raw.decode(errors="replace")
    return [line.rstrip("\r") for line in text.removesuffix("\n").split("\n")] if text else []


def _cursor_of(offsets: Mapping[str, int]) -> str:
    return base64.urlsafe_b64encode(json.dumps(offsets, sort_keys=True).encode()).decode()


def _offsets_of(cursor: str | None) -> dict[str, int]:
    if cursor is None:
        return {}
    try:
        offsets = json.loads(base64.urlsafe_b64decode(cursor.encode()))
        if not isinstance(offsets, dict) or not all(type(value) is int and value >= 0 for value in offsets.values()):
            raise ValueError
    except (ValueError, RecursionError):
        raise ConfigError(f"cursor {cursor[:80]!r} is not one that a page of logs gave: leave it out") from None
    return offsets
