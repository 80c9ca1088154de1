"""Logs of an attempt, live and after its cluster has gone: the driver's from Ray, the workers' from the run folder.

Every source is a stream of bytes that only grows, so a reader needs nothing but how far it has read. The cursor that it
hands back and forth holds a byte offset for each source; a reconnect goes on where it was, without gap or repeat.
"""

import base64
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from jobs.answers import LogLine, LogPage
from jobs.errors import ClusterError
from jobs.model import Attempt, AttemptState, Run
from jobs.observe import folder_of
from trainers.errors import ConfigError, RayscribeError
from trainers.live import driver_log_key, worker_logs
from trainers.run_folder import RunFolder

DRIVER = "driver"
MOST_BYTES = 1_000_000


@dataclass(frozen=True)
class Source:
    """One growing stream.

    Attributes:
        name: Who prints: `driver`, `rank-0`.
        key: Distinguishes streams of one name, such as those of two worker groups.
        read: Gives all bytes so far.
    """

    name: str
    key: str
    read: Callable[[], bytes]


def read_logs(
    run: Run, attempt: Attempt, *, source: str | None, cursor: str | None, driver_log: Callable[[], bytes]
) -> LogPage:
    """Reads what is new.

    Args:
        run: The run.
        attempt: The attempt.
        source: `driver`, `rank-<n>`, or None for all.
        cursor: From the page before; None for the beginning.
        driver_log: Asks the cluster for the driver's output; may raise ClusterError.

    Raises:
        ConfigError: the cursor or the source is not one of ours.
    """
    offsets = _offsets_of(cursor)
    # Looked at before reading: what is written between the two is found by the next page.
    over = attempt.state == AttemptState.ENDED
    lines: list[LogLine] = []
    whole = True
    for stream in _sources(run, attempt, source, driver_log):
        start = offsets.get(stream.key, 0)
        new = stream.read()[start : start + MOST_BYTES]
        if not over or len(new) == MOST_BYTES:
            new = new[: new.rfind(b"\n") + 1]
            whole = whole and not new
        lines += [LogLine(source=stream.name, text=text) for text in _lines_of(new)]
        offsets[stream.key] = start + len(new)
    return LogPage(attempt=attempt.number, lines=lines, cursor=_cursor_of(offsets), ended=over and whole)


def archive_driver_log(run: Run, attempt: int, text: bytes) -> None:
    """Writes the driver's output into the run folder.

    Raises:
        StorageError: it cannot be written.
    """
    folder_of(run).storage.write_bytes(driver_log_key(attempt), text)


def _sources(run: Run, attempt: Attempt, wanted: str | None, driver_log: Callable[[], bytes]) -> Sequence[Source]:
    folder = folder_of(run)
    streams = []
    if wanted in (None, DRIVER):
        streams.append(Source(DRIVER, DRIVER, lambda: _driver(folder, attempt, driver_log)))
    if wanted != DRIVER:
        streams += [source for source in _workers(folder, attempt.number) if wanted in (None, source.name)]
    return streams


def _driver(folder: RunFolder, attempt: Attempt, driver_log: Callable[[], bytes]) -> bytes:
    if attempt.state != AttemptState.ENDED:
        try:
            return driver_log()
        except ClusterError:
            return _archived(folder, attempt.number)
    archived = _archived(folder, attempt.number)
    if archived:
        return archived
    try:
        return driver_log()
    except ClusterError:
        return b""


def _archived(folder: RunFolder, attempt: int) -> bytes:
    key = driver_log_key(attempt)
    try:
        return folder.storage.read_bytes(key) if folder.storage.exists(key) else b""
    except RayscribeError:
        return b""


def _workers(folder: RunFolder, attempt: int) -> list[Source]:
    try:
        found = worker_logs(folder, attempt)
    except RayscribeError:
        return []
    return [
        Source(f"rank-{rank}", key, lambda key=key: folder.storage.read_bytes(key))  # type: ignore[misc]
        for rank, _, key in sorted(found)
    ]


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
