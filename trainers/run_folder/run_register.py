"""Registers this user's runs without a queue, in small files. Imports no torch.

<state folder>/runs/<hash of the run folder>-<start>.json is written only by the starting process, when it begins and
when it ends. The file of the last start describes the run; at the end, its process removes the files of earlier starts.
A start that fails before it begins an attempt removes its own file instead.
"""

import hashlib
import json
import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from trainers.config.locations import storage_path_of
from trainers.config.schema import AnyConfig
from trainers.distributed.console import is_main_process
from trainers.distributed.machine import (
    home,
    make_private_folder,
    process_has_ended,
    process_name,
    sees_processes_of,
    was_restarted,
)
from trainers.distributed.signals import ending_of
from trainers.errors import RayscribeError, ResumeError
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder

FOLDER = "runs"
# An error may be as long as a file; lists show its first line.
MAX_REASON = 500
# Minimum time between two starts of a run, even if the clock was set back. Seconds.
NEXT_S = 0.001


@dataclass(frozen=True)
class Registered:
    """A run that was started without a queue, as described by its last start. Times are seconds since 1970.

    Attributes:
        config: The config of the start, as JSON content.
        process: Name of its driver, see `machine.process_name`; "" if not known.
        started_s: Time of the start; later than any previous start, even if the clock was set back.
        folder: Working directory of the driver.
        created_s: Time of the first start.
        address: Address of the Ray that it joined; None if it started its own Ray.
        attempt: The newest attempt when it ended; 0 if there was none, or it has not ended.
        exit_code: Exit code of the driver; None if it is running or was killed.
    """

    url: str
    config: Mapping[str, Any]
    process: str
    started_s: float
    created_s: float
    folder: str
    address: str | None = None
    no_ray: bool = False
    attempt: int = 0
    ended_s: float | None = None
    exit_code: int | None = None
    reason: str = ""

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    @property
    def is_running(self) -> bool | None:
        """True if its driver is alive; None if this machine cannot see that."""
        if self.ended_s is not None or process_has_ended(self.process) or self.went_with_restart:
            return False
        return bool(self.process and sees_processes_of(self._machine)) or None

    @property
    def went_with_restart(self) -> bool:
        """True if its driver ran before this machine was restarted, and had not ended by itself."""
        return self.ended_s is None and self.process != "" and was_restarted(self._machine)

    @property
    def _machine(self) -> str:
        return self.process.rsplit("/", 2)[0]

    @property
    def process_id(self) -> int:
        return int(self.process.rsplit("/", 2)[1])

    def remove(self) -> None:
        with suppress(OSError, RayscribeError):
            self._file().unlink()

    def _file(self) -> Path:
        return home() / FOLDER / f"{_key(self.url)}-{self.started_s:.6f}.json"

    def write(self) -> None:
        """Replaces the file of this start; does nothing if the state folder is not writable."""
        with suppress(OSError, RayscribeError):
            file = self._file()
            make_private_folder(file.parent)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(asdict(self)), encoding="utf-8")
            part.replace(file)


@contextmanager
def registered(config: AnyConfig, *, address: str | None, no_ray: bool) -> Iterator[None]:
    """Registers the config's run, which must have a name, while the block runs; records how the block ended.

    Raises:
        ResumeError: another process of this machine runs the run; no file is left.
    """
    if not is_main_process():
        yield
        return
    url = f"{storage_path_of(config)}/{config.run.name}"
    before = find_registered(url)
    now_s = max(time.time(), before.started_s + NEXT_S) if before is not None else time.time()
    start = Registered(
        url=url,
        config=config.model_dump(mode="json"),
        process=process_name(),
        started_s=now_s,
        created_s=before.created_s if before is not None else now_s,
        folder=str(Path.cwd()),
        address=address,
        no_ray=no_ray,
    )
    _refuse_second(start)
    start.write()
    try:
        # Another process may have started at the same moment.
        _refuse_second(start)
    except ResumeError:
        start.remove()
        raise
    code, reason = 0, ""
    try:
        yield
    except BaseException as error:
        code, reason = ending_of(error) or (1, f"{type(error).__name__}: {error}")
        raise
    finally:
        attempt = _attempts(config)
        ended = replace(start, ended_s=time.time(), exit_code=code, reason=reason[:MAX_REASON], attempt=attempt)
        others = [run for run in _read(f"{_key(url)}-*.json") if run.started_s != now_s]
        if code and any(run.is_running or 0 < run.attempt >= attempt for run in others):
            start.remove()
        else:
            ended.write()
            for run in others:
                if run.started_s < now_s:
                    run.remove()


def _refuse_second(start: Registered) -> None:
    """Refuses to start after a living process with the same run, since both would train it."""
    for other in _read(f"{_key(start.url)}-*.json"):
        is_first = (other.started_s, other.process) < (start.started_s, start.process)
        if other.process != start.process and other.is_running and is_first:
            raise ResumeError(
                f"{start.url}: process {other.process_id} of this machine runs it: wait for its end, or stop it "
                f"(rayscribe stop {start.name})"
            )


def _attempts(config: AnyConfig) -> int:
    with suppress(RayscribeError, OSError):
        return Journal(RunFolder.of(config)).read().attempt
    return 0


def all_registered() -> list[Registered]:
    """Returns all runs, the most recently created first; skips files that cannot be read."""
    newest: dict[str, Registered] = {}
    for found in sorted(_read("*.json"), key=lambda run: run.started_s):
        newest[found.url] = found
    return sorted(newest.values(), key=lambda run: run.created_s, reverse=True)


def find_registered(url: str) -> Registered | None:
    """Returns the run of a run folder, as described by its last start; None if it is not registered."""
    return max(_read(f"{_key(url)}-*.json"), key=lambda run: run.started_s, default=None)


def forget(url: str) -> None:
    """Removes a run from the list; its folder stays."""
    for file in _files(f"{_key(url)}-*.json"):
        with suppress(OSError):
            file.unlink()


def _read(pattern: str) -> Iterator[Registered]:
    for file in _files(pattern):
        with suppress(OSError, ValueError, TypeError):
            yield Registered(**json.loads(file.read_text(encoding="utf-8")))


def _files(pattern: str) -> Iterable[Path]:
    try:
        return [*(home() / FOLDER).glob(pattern)]
    except (OSError, RayscribeError):
        return []


def _key(url: str) -> str:
    return hashlib.sha256(url.encode(errors="surrogateescape")).hexdigest()[:16]
