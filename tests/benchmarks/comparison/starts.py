"""Starts: from a command to the line of its first optimizer step, with prepared data, next to a bare torchrun's."""

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import psutil
import yaml

from tests.benchmarks.comparison.bench import Bench, shown
from tests.benchmarks.comparison.sides import ROOT, SideError
from tests.benchmarks.sizes import RANKS
from tests.benchmarks.table import Row

TRAIN_GOAL, SUBMIT_GOAL = 1.5, 1.2
RAYSCRIBE = [sys.executable, "-c", "import sys; from jobs.cli import main; sys.exit(main())"]
RAY = Path(sys.executable).parent / "ray"
# The Trainer's own line, and ours.
FIRST_STEP = re.compile(r"'loss': |step 1/1 .*loss ")
END_WITHIN_S = 120


def compare_starts(bench: Bench) -> list[Row]:
    """`rayscribe train` and a torchrun, then `rayscribe submit` and `ray job submit` to one Ray that is up."""
    recipe = write_recipe(bench)
    stock = stock_command(bench)
    environment = own_environment(bench.folder / "home")
    rounds = bench.sizes.rounds
    # Prepares its data.
    first_step_s([*RAYSCRIBE, "train", str(recipe), *named("prepares")], environment)
    trained, bare = [], []
    for number in range(rounds):
        bare.append(first_step_s([sys.executable, *stock], environment))
        trained.append(first_step_s([*RAYSCRIBE, "train", str(recipe), *named(f"train-{number}")], environment))
    submitted, jobs = [], []
    with local_cluster(environment) as ray:
        job = [str(RAY), "job", "submit", "--working-dir", str(ROOT), "--", "python", *stock]
        for number in range(rounds):
            jobs.append(first_step_s(job, ray))
            command = [*RAYSCRIBE, "submit", str(recipe), "--follow", *named(f"submit-{number}")]
            submitted.append(first_step_s(command, environment))
    rows = []
    for what, ours, peer, goal in (
        ("rayscribe train : bare torchrun", trained, bare, TRAIN_GOAL),
        ("rayscribe submit : bare ray job submit", submitted, jobs, SUBMIT_GOAL),
    ):
        bench.say(f"start, {what}: {shown(ours)} s, {shown(peer)} s")
        # As a ratio of ours to the peer's, at most this.
        rows.append(Row(f"start, s to the first step, {what}", ours, peer, "low", least_ratio=round(1 / goal, 2)))
    return rows


def write_recipe(bench: Bench) -> Path:
    """A recipe of one step on the clips that the stock recipe trains on."""
    speech = bench.folder / "speech"
    content = {
        "run": {"storage_path": str(bench.folder / "starts")},
        "data": {"train": str(speech / "score.csv"), "validation": str(speech / "warm.csv"), "normalizer": "none"},
        "model": {"name_or_path": str(bench.folder / "model"), "language": "english"},
        "training": {
            "max_steps": 1,
            "save_steps": 1,
            "logging_steps": 1,
            "per_device_train_batch_size": bench.sizes.train_batch,
            "generation_max_length": 2,
            "report_to": [],
        },
        "scaling": {"num_workers": RANKS},
    }
    path = bench.folder / "starts.yaml"
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return path


def stock_command(bench: Bench) -> list[str]:
    """Python's arguments for a torchrun of one step on stored features."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", f"--nproc-per-node={RANKS}"]
    recipe = ["-m", "tests.benchmarks.comparison.stock_recipe", "start", "--batch", str(bench.sizes.train_batch)]
    paths = {"model": bench.folder / "model", "work": bench.folder / "stock", "features": bench.features()}
    return [*torchrun, *recipe, *(word for name, path in paths.items() for word in (f"--{name}", str(path)))]


def own_environment(home: Path) -> dict[str, str]:
    """Of a user with a home folder of their own, and nothing of Ray's."""
    home.mkdir()
    known = {name: value for name, value in os.environ.items() if not name.startswith(("RAY_", "RAYSCRIBE_"))}
    offline = {"HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "OMP_NUM_THREADS": "1"}
    return {**known, **offline, "HOME": str(home), "PYTHONUNBUFFERED": "1"}


def named(name: str) -> list[str]:
    """Arguments that name a run."""
    return ["--set", f"run.name={name}"]


@contextlib.contextmanager
def local_cluster(environment: Mapping[str, str]) -> Iterator[dict[str, str]]:
    """A Ray on this machine; the environment in which Ray's own commands find it."""
    cpus = str(2 * RANKS)
    run_to_end([*RAYSCRIBE, "cluster", "up", "--local", "--num-cpus", cpus], environment)
    try:
        said = run_to_end([*RAYSCRIBE, "cluster", "dashboard"], environment)
        lines = re.findall(r"^  export (.*)$", said, re.MULTILINE)
        variables = dict(item.split("=", 1) for line in lines for item in line.split())
        yield {**environment, **{name: value.replace("~", environment["HOME"]) for name, value in variables.items()}}
    finally:
        run_to_end([*RAYSCRIBE, "cluster", "down", "--no-logs"], environment)


def run_to_end(command: Sequence[str], environment: Mapping[str, str]) -> str:
    """What a command says.

    Raises:
        SideError: it fails.
    """
    done = subprocess.run(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if done.returncode:
        raise SideError(f"{' '.join(command)}: {done.stdout}")
    return done.stdout


def first_step_s(command: Sequence[str], environment: Mapping[str, str]) -> float:
    """Seconds until a command shows its first step; then it goes on to its end.

    Raises:
        SideError: it shows none, or fails.
    """
    began = time.perf_counter()
    process = psutil.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    )
    said, seconds = [], None
    for line in process.stdout:
        said.append(line)
        if seconds is None and FIRST_STEP.search(line):
            seconds = time.perf_counter() - began
    if process.wait(END_WITHIN_S) or seconds is None:
        raise SideError(f"{' '.join(command)}: {''.join(said)[-3000:]}")
    return seconds
