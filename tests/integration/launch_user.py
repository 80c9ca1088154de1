"""A user of `rayscribe launch` with a program and its data, and two nodes that share nothing but the storage."""

import os
import re
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import cached_property
from pathlib import Path

import psutil
import pytest
from typer.testing import CliRunner

from jobs.cli.app import app
from tests.integration.driver_process import TIMEOUT_S, RayHead
from tests.integration.ray_cluster import ray_cluster
from tests.programs.known_programs import OUT, KnownProgram
from trainers.config.storage_location import StorageOptions
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import RunFolder
from trainers.scripts.outputs.sync import FILES
from trainers.storage import open_storage

POLL_S = 0.5
NODE = {"slot": 1, "HPU": 1}


@contextmanager
def two_nodes() -> Iterator[RayHead]:
    """A head that takes jobs, and two nodes with room for one worker each and temporary folders of their own."""
    with ray_cluster(num_cpus=2) as (cluster, head), tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp") as folder:
        for number in range(2):
            own = Path(folder, str(number))
            with pytest.MonkeyPatch.context() as node:
                for name in ("TMPDIR", "HF_HOME"):
                    (own / name).mkdir(parents=True)
                    node.setenv(name, str(own / name))
                cluster.add_node(num_cpus=1, resources=NODE, temp_dir=str(own / "ray"))
        yield head


class LaunchUser:
    """Calls `rayscribe` in this process, in the user's folder.

    Attributes:
        folder: The program and its data, and nothing else.
        file: What a program that holds waits for.
    """

    def __init__(self, program: KnownProgram, head: RayHead, own: Path, name: str, bucket: tuple[str, str]):
        """Makes the folder; `own` is for that and for what the command line keeps. `bucket`: its URL and its server."""
        self.program, self.head, self.name = program, head, name
        self.folder, self.file = program.copy_to(own / "folder"), own / "go"
        self._storage_path, self._server = f"{bucket[0]}/runs", bucket[1]
        self._environment = {"RAYSCRIBE_HOME": str(own / "home")}

    def call(self, *words: str) -> tuple[int, str]:
        """Exit code and output of a command."""
        before = Path.cwd()
        os.chdir(self.folder)
        try:
            result = CliRunner(env=self._environment).invoke(app, words)
        finally:
            os.chdir(before)
        if result.exception is not None and not isinstance(result.exception, SystemExit):
            raise AssertionError(result.output) from result.exception
        return result.exit_code, result.output

    def launch(self, command: Sequence[str], *options: str) -> tuple[int, str]:
        """Calls `rayscribe launch` for two workers, one on each node."""
        place = ("--num-workers", "2", "--resources", "{CPU: 1, slot: 1}", "--address", self.head.dashboard)
        where = ("--name", self.name, "--storage-path", self._storage_path)
        sets = (f"run.s3_endpoint_url={self._server}", f"script.checkpoints={self.program.checkpoints}")
        given = (word for item in sets for word in ("--set", item))
        return self.call("launch", *place, *where, *given, "--env", "HF_HUB_OFFLINE=1", *options, "--", *command)

    @cached_property
    def run_folder(self) -> RunFolder:
        """That of the run."""
        return RunFolder(open_storage(f"{self._storage_path}/{self.name}", StorageOptions(self._server)))

    @cached_property
    def journal(self) -> Journal:
        """That of the run."""
        return Journal(self.run_folder)

    def until(self, condition: Callable[[], bool], what: str) -> None:
        """Asks for the run's status, which advances it, until a condition holds."""
        end = time.monotonic() + TIMEOUT_S
        while not condition():
            code, status = self.call("status", self.name)
            assert code == 0 and "SUCCEEDED" not in status and "FAILED" not in status, f"{what}: {status}{self.logs}"
            assert time.monotonic() < end, f"no {what}: {status}{self.logs}"
            time.sleep(POLL_S)

    def until_held(self) -> str:
        """Until the program waits in the middle of its training, and its last checkpoint is in the run folder.

        Gives what it prints where it continues from there.
        """
        self.until(lambda: self._held is not None, "checkpoint")
        assert self._held is not None
        return f"{self.program.goes_on}{OUT}/{os.path.commonpath(self._held.files)}"

    @property
    def _held(self) -> Checkpoint | None:
        checkpoints = self.journal.read().checkpoints
        return next((item for item in checkpoints if item.step == self.program.held_at), None)

    def until_continued(self, goes_on: str, times: int, what: str) -> None:
        """Until rank 0 has printed so often that it continues."""
        line = re.compile(rf"\[rank 0\] .*{re.escape(goes_on)}")
        self.until(lambda: len(line.findall(self.logs)) == times, what)

    def finish(self) -> str:
        """Has the program go on, and waits for its end; gives the last status."""
        self.file.touch()
        code, output = self.call("wait", self.name)
        assert code == 0, f"{output}{self.logs}"
        return self.call("status", self.name)[1]

    @property
    def logs(self) -> str:
        """Of all attempts so far."""
        return "\n".join(self.call("logs", self.name, "--attempt", str(number))[1] for number in self._attempts)

    @property
    def _attempts(self) -> range:
        return range(1, max(1, self.journal.read().attempt) + 1)

    def outputs(self, into: Path) -> Path:
        """What the run's result has of the program's output folder, downloaded."""
        finished = self.journal.read().finished
        assert finished is not None
        self.run_folder.storage.download_folder(f"{finished.outputs}/{FILES}", into)
        return into

    def processes(self, *words: str) -> list[psutil.Process]:
        """Processes of the cluster whose command line has all of these words."""
        found = []
        for process in psutil.Process().children(recursive=True):
            try:
                line = process.cmdline()
            except psutil.Error:
                continue
            if all(any(word in part for part in line) for word in words):
                found.append(process)
        return sorted(found, key=lambda process: process.pid)

    def kill_worker(self) -> None:
        """SIGKILL for the worker of one rank, whose program ends with it."""
        self.head.training_workers()[-1].kill()

    def kill_program(self) -> None:
        """SIGKILL for the program of one rank."""
        self.processes(self.program.command[0], "python")[-1].kill()

    def kill_driver(self) -> None:
        """SIGKILL for the job's entrypoint."""
        for process in self.processes("trainers.main", "--attempt"):
            process.kill()


def same_losses(found: Mapping[int, float], wanted: Mapping[int, float]) -> bool:
    """Whether each step that was made has the loss that it has elsewhere, and the last one was made."""
    return max(found, default=0) == max(wanted) and all(wanted[step] == loss for step, loss in found.items())
