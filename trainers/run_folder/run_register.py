"""Where the runs of this user are that were started without a queue, one small file for each. Imports no torch.

<state folder>/runs/<hash of the run folder>-<start>.json, which only the process that starts writes: when it begins,
and when it ends. The one that was started last says what the run is; when it ends, it removes those before it. One that
is refused, so that it ends before it begins an attempt, removes itself, and leaves what was known of the run before.
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
from trainers.distributed.signals import STOP_SIGNAL
from trainers.errors import Interruption, RayscribeError, ResumeError, StoppedError
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder

FOLDER = "runs"
# An error may be as long as a file; the list shows its first line.
MAX_REASON = 500
# By how much a start follows the one before at least, whatever the clock says. Seconds.
NEXT_S = 0.001


@dataclass(frozen=True)
class Registered:
    """A run that was started without a queue, as its last start knows it.

    Attributes:
        url: The run folder's absolute path or URL.
        config: What it was started with, see `config.loader.to_yaml`.
        process: Its driver, see `machine.process_name`. "": not known.
        started_s: Seconds since 1970, as all times; after that of any start before, whatever the clock says.
        folder: The working directory of the driver.
        created_s: When it was first started.
        address: The Ray that it joined. None: one of its own.
        no_ray: It ran in its driver, without Ray.
        attempt: The newest when it ended; 0 where it ended before it had one, or runs.
        exit_code: None: it runs, or was killed.
        reason: What stopped it.
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
        """Whether its driver lives; None where that is not seen from this machine."""
        if self.ended_s is not None or process_has_ended(self.process) or self.went_with_restart:
            return False
        return True if self.process and sees_processes_of(self._machine) else None

    @property
    def went_with_restart(self) -> bool:
        """Whether its driver was of an earlier start of this machine, and had not ended by itself."""
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
        """Writes it in the place of what was written before; nothing where the state folder cannot be written.

        A training is worth more than its line in a list.
        """
        with suppress(OSError, RayscribeError):
            file = self._file()
            make_private_folder(file.parent)
            part = file.with_suffix(f".{os.getpid()}")
            part.write_text(json.dumps(asdict(self)), encoding="utf-8")
            part.replace(file)


@contextmanager
def registered(config: AnyConfig, *, address: str | None, no_ray: bool) -> Iterator[None]:
    """A block in which a driver runs the config's run, which has a name; remembers that, and how it ended.

    Raises:
        ResumeError: another process of this machine runs it; nothing is written then.
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
        # One that was started in the same moment.
        _refuse_second(start)
    except ResumeError:
        start.remove()
        raise
    code, reason = 0, ""
    try:
        yield
    except BaseException as error:
        code, reason = _end_of(error)
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
    """Refuses a start after that of another process which lives: two would train the same run."""
    for other in _read(f"{_key(start.url)}-*.json"):
        is_first = (other.started_s, other.process) < (start.started_s, start.process)
        if other.process != start.process and other.is_running and is_first:
            raise ResumeError(
                f"{start.url}: process {other.process_id} of this machine runs it: wait for its end, or stop it "
                f"(rayscribe stop {start.name})"
            )


def _end_of(error: BaseException) -> tuple[int, str]:
    """Exit code, and what stopped it."""
    if isinstance(error, StoppedError):
        return STOP_SIGNAL.exit_code, str(error)
    if isinstance(error, RayscribeError):
        return error.exit_code, str(error)
    if isinstance(error, KeyboardInterrupt):
        left = error.left if isinstance(error, Interruption) else "the same command continues"
        return STOP_SIGNAL.exit_code, f"stopped; {left}"
    return 1, f"{type(error).__name__}: {error}"


def _attempts(config: AnyConfig) -> int:
    with suppress(RayscribeError, OSError):
        return Journal(RunFolder.of(config)).read().attempt
    return 0


def all_registered() -> list[Registered]:
    """Every run, the one that was first started last first; files that cannot be read are left out."""
    newest: dict[str, Registered] = {}
    for found in sorted(_read("*.json"), key=lambda run: run.started_s):
        newest[found.url] = found
    return sorted(newest.values(), key=lambda run: run.created_s, reverse=True)


def find_registered(url: str) -> Registered | None:
    """The run of a run folder, as its last start knows it."""
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
