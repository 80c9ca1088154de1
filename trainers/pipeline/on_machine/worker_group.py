"""Prepares, trains and scores in processes on this machine.

Preparing uses a process pool; training and scoring use a worker group, whose processes start and end together. Ranks
find each other through a store in the driver, as torchrun's ranks do through the agent's store.
"""

import math
import os
import signal
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from contextlib import suppress
from dataclasses import dataclass, field, replace
from multiprocessing import connection
from pathlib import Path
from typing import Any, TypeVar

import pyarrow as pa
import torch
from torch.distributed import TCPStore  # type: ignore[attr-defined]

from trainers.config.schema import TrainConfig
from trainers.config.wording import counted
from trainers.data.preparation import ShardTask
from trainers.distributed.console import Event, print_line, show
from trainers.distributed.console.events import Stage
from trainers.distributed.local_ray import LOOPBACK
from trainers.distributed.machine import GLOO_INTERFACE, cpus_of_this_machine, interface_of
from trainers.distributed.restart_policy import RestartPolicy
from trainers.distributed.root_cause import TooManyFailuresError, converting_errors, is_connection_error, root_cause_of
from trainers.distributed.session import LocalSession, Session
from trainers.distributed.signals import SIGNALS, STOP_SIGNAL, STOPPING
from trainers.errors import FollowingError, Interruption, RayscribeError, StoppedError
from trainers.pipeline.on_machine.process_server import (
    PROCESSES,
    THREADS,
    WorkerCrashedError,
    become_part_of_driver,
    starting_processes,
    threads_of,
)
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.worker_logs import finish_logs, worker_log
from trainers.storage.full_disk import naming_full_disk
from trainers.training.tasks import ScoreTask, TrainTask
from trainers.training.worker import run_on_rank

POLL_S = 0.2
# After a worker has failed, broken connections to it end the others; those still running after this time are killed.
GRACE_S = 5.0
Made = TypeVar("Made")


@dataclass(frozen=True)
class Work:
    """The work of each worker, which calls `run` with a task and its session. Logs are kept with the attempt's."""

    run: Callable[[Any, Session], None]
    task: Any
    folder: RunFolder
    attempt: int

    @property
    def config(self) -> TrainConfig:
        config: TrainConfig = self.task.config
        return config


@dataclass(frozen=True)
class Ended:
    """A worker's last message: the error that stopped it, if any, and whether a signal interrupted it."""

    error: RayscribeError | None = None
    was_interrupted: bool = False


@dataclass(frozen=True)
class WorkerSession(LocalSession):
    """A rank in its own process, whose events the driver shows."""

    channel: Any = None
    _lock: Any = field(default_factory=threading.Lock)

    def show(self, event: Event) -> None:
        # Other threads show events, too.
        with self._lock:
            self.channel.send(event)


def run_rank(work: Work, variables: dict[str, str], output: Path, channel: Any) -> None:
    """Runs a worker in its process, from start to end."""
    become_part_of_driver(variables)
    # The driver passes on signals of the terminal.
    os.setsid()
    for descriptor, name in ((1, "out"), (2, "err")):
        file = os.open(output.with_suffix(f".{name}"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        os.dup2(file, descriptor)
        os.close(file)
    if THREADS not in variables:
        torch.set_num_threads(threads_of(work.config.scaling))
    STOP_SIGNAL.reset()
    try:
        with STOP_SIGNAL.on_signals():
            signal.pthread_sigmask(signal.SIG_UNBLOCK, SIGNALS)
            ended = _run(work, channel)
    except Interruption:
        ended = Ended(was_interrupted=True)
    channel.send(ended)


def _run(work: Work, channel: Any) -> Ended:
    try:
        session = replace(WorkerSession.of_this_process(work.config.scaling.backend), channel=channel)
        with worker_log(work.folder, work.attempt, rank=session.rank, group=session.group), naming_full_disk():
            work.run(work.task, session)
    except RayscribeError as error:
        return Ended(error)
    except Exception as error:
        cause = root_cause_of(error)
        return Ended(FollowingError(str(cause)) if is_connection_error(error) else cause)
    return Ended()


@dataclass
class _Worker:
    process: Any
    channel: Any
    # A pidfd; None if the process had already ended, and on systems other than Linux.
    handle: int | None
    ended: Ended | None = None

    def kill(self) -> None:
        """Kills the process, even if its server has ended and `multiprocessing` can no longer reach it."""
        self.process.kill()
        if self.handle is not None:
            with suppress(ProcessLookupError):
                signal.pidfd_send_signal(self.handle, signal.SIGKILL)
            connection.wait([self.handle])
            os.close(self.handle)
        self.process.join()
        self.channel.close()


def run_group(work: Work) -> Ended:
    """Runs the config's number of workers until they end; returns the outcome, and leaves no processes running."""
    count = work.config.scaling.max_workers
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False) if count > 1 else None
    workers: list[_Worker] = []
    with tempfile.TemporaryDirectory(prefix="rayscribe-workers-") as outputs:
        try:
            for rank in range(count):
                variables = dict(os.environ) if store is None else _variables(rank, count, store)
                workers.append(_start(work, variables, Path(outputs) / f"rank-{rank}"))
            _follow(workers)
        except WorkerCrashedError as crash:
            return Ended(root_cause_of(crash))
        finally:
            for worker in workers:
                worker.kill()
            # Stores the last output of workers that died.
            finish_logs(work.folder)
    ends = [worker.ended for worker in workers if worker.ended is not None]
    errors = {rank: end.error for rank, end in enumerate(ends) if end.error is not None}
    error = root_cause_of(TooManyFailuresError(errors)) if errors else None
    return Ended(error, any(end.was_interrupted for end in ends))


def _variables(rank: int, count: int, store: TCPStore) -> dict[str, str]:
    """Returns a rank's environment: the driver's, with torchrun's variables."""
    ranks = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": count, "LOCAL_WORLD_SIZE": count}
    address = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": store.port, "TORCHELASTIC_USE_AGENT_STORE": True}
    interface = interface_of(LOOPBACK)
    known = {GLOO_INTERFACE: interface} if interface is not None else {}
    return known | dict(os.environ) | {name: str(value) for name, value in {**ranks, **address}.items()}


def _start(work: Work, variables: dict[str, str], output: Path) -> _Worker:
    ours, its = PROCESSES.Pipe(duplex=False)
    process = PROCESSES.Process(target=run_rank, args=(work, variables, output, its), name=output.name)
    with starting_processes():
        process.start()
    its.close()
    handle = None
    assert process.pid is not None
    if hasattr(os, "pidfd_open"):
        with suppress(ProcessLookupError):
            handle = os.pidfd_open(process.pid)
    return _Worker(process, ours, handle)


def _follow(workers: Sequence[_Worker]) -> None:
    """Shows the workers' events, and passes on a stop request, until all workers have ended."""
    was_stopped, end_s = False, math.inf
    while (living := [worker for worker in workers if worker.ended is None]) and time.monotonic() < end_s:
        handles = [handle for worker in living for handle in (worker.channel, worker.process.sentinel)]
        connection.wait(handles, POLL_S)
        for worker in living:
            _read(worker)
            if worker.ended is not None and worker.ended.error is not None:
                end_s = min(end_s, time.monotonic() + GRACE_S)
        if STOP_SIGNAL.received and not was_stopped:
            was_stopped = True
            show(STOPPING)
            for worker in living:
                with suppress(ProcessLookupError):
                    os.kill(worker.process.pid, signal.SIGTERM)


def _read(worker: _Worker) -> None:
    """Shows a worker's messages; records an error if its process has ended without a last message."""
    is_alive = worker.process.is_alive()
    with suppress(EOFError):
        while worker.ended is None and worker.channel.poll():
            message = worker.channel.recv()
            if isinstance(message, Ended):
                worker.ended = message
            else:
                show(message)
    if worker.ended is None and not is_alive:
        code = worker.process.exitcode
        # `multiprocessing` reports 255 if the server has ended.
        how = f"killed by {signal.Signals(-code).name}" if code < 0 else f"exit code {code}"
        worker.ended = Ended(root_cause_of(WorkerCrashedError(f"{worker.process.name}: {how}.")))


class MachineEngine:
    """Runs in processes of this machine; the server of `process_server` must be started before."""

    def run_shard_tasks(self, blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        """Runs preparing tasks, one on each CPU."""
        processes = min(cpus_of_this_machine(), len(blocks))
        start: dict[str, Any] = {"initializer": become_part_of_driver, "initargs": (dict(os.environ),)}
        with converting_errors(), ProcessPoolExecutor(processes, mp_context=PROCESSES, **start) as pool:
            try:
                with starting_processes():
                    results = pool.map(task, blocks)
                yield from results
            except (BrokenProcessPool, WorkerCrashedError) as error:
                raise root_cause_of(error, doing="preparing") from error

    def run_on_main_process(self, make: Callable[[], Made]) -> Made:
        return make()

    def check(self, config: TrainConfig, *, trains: bool) -> None:
        """Does nothing, since a machine can run any number of processes, if slowly."""

    def run(self, task: TrainTask | ScoreTask, folder: RunFolder) -> None:
        run_to_end(Work(run_on_rank, task, folder, task.attempt if isinstance(task, TrainTask) else 1))


def run_to_end(work: Work) -> None:
    """Runs a worker group, and restarts it as often as the restart policy allows; raises as `Engine.run`."""
    policy = RestartPolicy.of(work.config)
    with STOP_SIGNAL.deferred():
        while True:
            show(Stage("workers", f"starting {counted(work.config.scaling.max_workers, 'worker')}"))
            ended = run_group(work)
            if ended.error is None and not ended.was_interrupted:
                return
            if STOP_SIGNAL.received and not isinstance(ended.error, StoppedError):
                STOP_SIGNAL.end()
            assert ended.error is not None
            line = None if policy.is_final(ended.error) else policy.count(ended.error)
            if line is None:
                raise ended.error
            print_line(line)
