"""From a command to the end of its first optimizer step, with prepared data: Rayscribe's commands next to bare ones.

Each start is a process of its own; the clock runs from its command line to the first line of metrics.
"""

import secrets
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import psutil
import yaml

from tests.benchmarks.comparison.bench import Bench, shown, step_arguments
from tests.benchmarks.comparison.sides import ROOT, START_WITHIN_S, Side, SideError, environment_of_sides
from tests.benchmarks.sizes import RANKS
from tests.benchmarks.table import Row
from trainers.distributed.local_ray import LocalRay, local_ray, processes_of, ray_command

TRAIN_GOAL, SUBMIT_GOAL = 1.5, 1.2
RAYSCRIBE = str(Path(sys.executable).parent / "rayscribe")
POLL_S = 0.05


def compare_starts(bench: Bench) -> list[Row]:
    """`rayscribe train` next to the stock recipe under torchrun, and `rayscribe submit` next to `ray job submit`."""
    starts = Starts(bench)
    starts.prepare()
    alone: dict[str, Callable[[], float]] = {
        "rayscribe train": lambda: starts.first_step([RAYSCRIBE, "train"]),
        "torchrun": starts.torchrun,
    }
    if bench.sizes.limits:
        alone["bare TorchTrainer"] = starts.bare_trainer
    ours, torchrun, *trainer = in_turns(bench, alone)
    what, goal = "start to the first step, s", round(1 / TRAIN_GOAL, 2)
    rows = [
        Row(f"{what} (rayscribe train : torchrun)", ours, torchrun, "low", least_ratio=goal),
        *(Row(f"{what} (rayscribe train : bare TorchTrainer)", ours, limit, "low") for limit in trainer),
    ]
    return [*rows, *submitted_starts(bench, starts)] if bench.sizes.variants else rows


def submitted_starts(bench: Bench, starts: "Starts") -> list[Row]:
    """Jobs of one Ray."""
    with local_ray(num_cpus=2 * RANKS, environment=starts.environment) as ray:
        ray.wait_for_agent()
        starts.wait_until_ready(ray.dashboard)
        submit = [RAYSCRIBE, "submit", "--address", ray.dashboard]
        job = ray_command("job", "submit", "--no-wait", "--address", ray.dashboard, "--working-dir", str(ROOT))
        task = [*job, "--", "python", "task.py", "--config"]
        submitted, bare = in_turns(
            bench,
            {
                "rayscribe submit": lambda: starts.first_step(submit, ray),
                "ray job submit": lambda: starts.first_step(task, ray),
            },
        )
    what = "start to the first step, s (submit : ray job submit)"
    return [Row(what, submitted, bare, "low", least_ratio=round(1 / SUBMIT_GOAL, 2))]


def in_turns(bench: Bench, starts: Mapping[str, Callable[[], float]]) -> list[list[float]]:
    """Seconds of each turn of each start; every other round goes backwards."""
    found: dict[str, list[float]] = {name: [] for name in starts}
    for number in range(bench.sizes.starts):
        for name in list(starts)[:: 1 if number % 2 == 0 else -1]:
            found[name].append(starts[name]())
    for name, seconds in found.items():
        bench.say(f"start, {name}: s of each turn {shown(seconds)}")
    return list(found.values())


def has_driver(ray: LocalRay) -> bool:
    """Whether a Ray runs a job."""
    for process in processes_of(ray.folder):
        with suppress(psutil.Error):
            if "task.py" in process.cmdline():
                return True
    return False


class Starts:
    """One recipe of one optimizer step, and the ways to start it."""

    def __init__(self, bench: Bench):
        self.bench = bench
        self.runs = bench.folder / "starts"
        self.runs.mkdir()
        self.environment = environment_of_sides() | {
            "RAYSCRIBE_HOME": str(bench.folder / "home"),
            "RAY_AUTH_MODE": "token",
            "RAY_AUTH_TOKEN": secrets.token_hex(32),
        }
        self._numbers = count()

    def prepare(self) -> None:
        """Prepares what all starts train on."""
        with self._command([RAYSCRIBE, "prepare", "--no-ray"], "prepare") as process:
            process.wait()

    def wait_until_ready(self, dashboard: str) -> None:
        """Waits until a Ray passes the checks of a submission."""
        end = time.monotonic() + START_WITHIN_S
        command = [RAYSCRIBE, "preflight", "--address", dashboard]
        while subprocess.run(command, check=False, env=self.environment, capture_output=True).returncode:
            if time.monotonic() > end:
                raise SideError(f"{dashboard} is not ready: see {' '.join(command)}")

    def first_step(self, command: Sequence[str], ray: LocalRay | None = None) -> float:
        """Seconds from a command to the first line of its run's metrics.

        Comes back once the run has ended, and its driver where that is a job of a Ray.
        """
        name = f"start-{next(self._numbers)}"
        began = time.monotonic()
        with self._command(command, name) as process:
            run = self.runs / name

            def wait_for(pattern: str) -> None:
                while not any(path.stat().st_size for path in run.glob(pattern)):
                    if process.poll() or time.monotonic() > began + START_WITHIN_S:
                        raise self._failure(name)
                    time.sleep(POLL_S)

            wait_for("attempts/*/metrics-*.jsonl")
            seconds = time.monotonic() - began
            wait_for("result.json")
            process.wait()
            while ray is not None and has_driver(ray):
                time.sleep(POLL_S)
        return seconds

    def torchrun(self) -> float:
        """Seconds to the first step of the stock recipe, which calls then."""
        bench = self.bench
        arguments = (*step_arguments(bench.sizes, 1, 1), "--features", bench.features())
        return self._called(lambda: bench.stock("torchrun", "train", *arguments))

    def bare_trainer(self) -> float:
        """The same of Ray Train with nothing around it."""
        return self._called(lambda: self.bench.bare_ray("bare TorchTrainer"))

    def _called(self, start: Callable[[], Side]) -> float:
        """Seconds until a side calls."""
        began = time.monotonic()
        side = start()
        try:
            side.ready()
            return time.monotonic() - began
        finally:
            side.close()

    @contextmanager
    def _command(self, command: Sequence[str], name: str) -> Iterator["subprocess.Popen[bytes]"]:
        """A command with its recipe; it has to end well."""
        recipe = self.runs / f"{name}.yaml"
        recipe.write_text(yaml.safe_dump(self._recipe(name)), encoding="utf-8")
        with self._log(name).open("wb") as log:
            process = subprocess.Popen(
                [*command, str(recipe)], cwd=ROOT, env=self.environment, stdout=log, stderr=subprocess.STDOUT
            )
        try:
            yield process
        finally:
            # Ends the Ray that it has started, too.
            process.terminate()
            process.wait()
        if process.returncode:
            raise self._failure(name)

    def _recipe(self, name: str) -> dict[str, Any]:
        folder = self.bench.folder
        train, validation = (str(folder / "speech" / f"{name}.csv") for name in ("score", "warm"))
        return {
            "run": {"name": name, "storage_path": str(self.runs), "resume": "never"},
            "data": {
                "train": train,
                "validation": validation,
                "cache_dir": str(folder / "cache"),
                "normalizer": "none",
            },
            "model": {"name_or_path": str(folder / "model"), "language": "english", "max_context_s": None},
            "training": {
                "max_steps": 1,
                "per_device_train_batch_size": 1,
                "per_device_eval_batch_size": self.bench.sizes.score_batch,
                "learning_rate": 1e-4,
                "logging_steps": 1,
                "report_to": [],
            },
            "decode": {"max_length": 2},
            "scaling": {"num_workers": RANKS},
            "job": {},
        }

    def _log(self, name: str) -> Path:
        return self.runs / f"{name}.log"

    def _failure(self, name: str) -> SideError:
        return SideError(f"{name} did not come to its end:\n{self._log(name).read_text(errors='replace')[-3000:]}")
