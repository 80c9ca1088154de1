"""Trainings on the hosts' cluster, through the service, and what is asked of their ends."""

import json
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

from jobs.addresses import cluster_address
from jobs.model import Cause, Run, RunState
from jobs.scheduler.limits import QueuesConfig
from tests.hosts.ray_hosts import CLUSTER, RayHosts
from tests.integration.controller_driver import ControllerDriver
from tests.integration.short_jobs import Workspace
from tests.integration.training_trees import write_training_tree
from tests.metrics_lines import metrics_of
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import CHECKPOINTS, JOURNAL, RunFolder
from trainers.storage import open_storage

MAX_STEPS, SAVE_STEPS = 60, 10
# A round asks cluster and storage, on two cores that train.
POLL_S = 0.5
# The undisturbed run.
CALM = "calm"
RECIPE = "recipe.yaml"


def write_tree(hosts: RayHosts, tree: Path) -> Path:
    """A repository with a recipe of a worker on each worker host."""
    return write_training_tree(
        tree,
        hosts.data,
        f"{hosts.runs}/prepared",
        training__max_steps=MAX_STEPS,
        training__save_steps=SAVE_STEPS,
        training__eval_steps=SAVE_STEPS,
        scaling__placement_strategy="STRICT_SPREAD",
    )


class HostRuns:
    """A ledger with a controller in this process, and the runs of one tree."""

    def __init__(self, hosts: RayHosts, folder: Path):
        """Makes both in a folder, which is made as well."""
        folder.mkdir(exist_ok=True)
        self.hosts, self.tree = hosts, write_tree(hosts, folder / "tree")
        self.workspace = Workspace(folder / "service", cluster_address(CLUSTER), QueuesConfig(), bucket=hosts.runs)
        self.drive = ControllerDriver(self.workspace, poll_s=POLL_S)

    def submit(self, name: str, *sets: str) -> None:
        """Queues a training."""
        self.workspace.submit(self.tree, name, sets, recipe=RECIPE)

    def until_step(self, name: str, step: int) -> None:
        """Until training has come this far."""
        self.drive.until_step(name, step)

    def until(self, name: str, condition: Callable[[Run], bool], what: str) -> Run:
        """Until something holds of a run."""
        self.drive.until(lambda: condition(self.workspace.ledger.run(name)), f"{what} of {name}")
        return self.workspace.ledger.run(name)

    def close(self) -> None:
        """Lets go of the ledger."""
        self.workspace.close()


def ended_well(runs: HostRuns, name: str, calm: str = CALM) -> list[Cause | None]:
    """How the attempts of a run ended that ends as the undisturbed one did; prints what they said."""
    run = runs.drive.until_ended(name)
    for attempt in runs.workspace.ledger.attempts(name):
        print(f"{name}: attempt {attempt.number}: {attempt.cause} ({attempt.exit_code}): {attempt.message}")
    assert run.state == RunState.SUCCEEDED, run.reason
    check_same(runs.hosts, name, calm)
    return runs.drive.causes(name)


def submitted(name: str, hosts: RayHosts) -> str:
    """The entrypoint of a run that no service knows."""
    sets = {"run.name": name, "run.storage_path": hosts.runs}
    return " ".join(["python task.py --config", RECIPE, *(f"--set {key}={value}" for key, value in sets.items())])


def journal_of(hosts: RayHosts, name: str) -> Journal:
    """Of a run."""
    return Journal(folder_of(hosts, name))


def folder_of(hosts: RayHosts, name: str) -> RunFolder:
    """Of a run."""
    return RunFolder(open_storage(f"{hosts.runs}/{name}"))


def entries_of(hosts: RayHosts, name: str) -> list[dict[str, Any]]:
    """All entries of a run's journal."""
    storage, last = folder_of(hosts, name).storage, journal_of(hosts, name).read().number
    return [json.loads(storage.read_bytes(f"{JOURNAL}/{number:08d}.json")) for number in range(1, last + 1)]


def last_checkpoint(hosts: RayHosts, name: str) -> Checkpoint:
    """The newest checkpoint of a run."""
    return journal_of(hosts, name).read().checkpoints[-1]


def weights_of(checkpoint: Checkpoint) -> str:
    """SHA-256 of a checkpoint's weights."""
    return str(checkpoint.files["model.safetensors"]["sha256"])


def check_same(hosts: RayHosts, name: str, calm: str) -> None:
    """A run ended as an undisturbed one did: its weights, its scores, and no step left out."""
    mine, theirs = last_checkpoint(hosts, name), last_checkpoint(hosts, calm)
    assert mine.step == theirs.step == MAX_STEPS
    assert weights_of(mine) == weights_of(theirs)
    assert mine.metrics == theirs.metrics
    folder, other = folder_of(hosts, name), folder_of(hosts, calm)
    assert folder.storage.read_bytes("evaluation/test.json") == other.storage.read_bytes("evaluation/test.json")
    for run in (folder, other):
        state = Journal(run).read()
        steps = [line["step"] for line in metrics_of(run, state) if "loss" in line]
        check_steps(steps, restarts=len(state.groups) - 1)
    assert folder.storage.exists(f"{CHECKPOINTS}/{mine.name}/MANIFEST.json")


def check_steps(steps: Sequence[int], *, restarts: int) -> None:
    """Every step is reported in its order, and again only where a worker group began from a checkpoint before it.

    Args:
        steps: Of all losses that count. What a killed group had reported counts, and is reported again by the next.
        restarts: How many worker groups there were after the first.
    """
    assert (steps[0], steps[-1]) == (1, MAX_STEPS)
    back = [(before, after) for before, after in pairwise(steps) if after != before + 1]
    assert len(back) <= restarts, back
    # Less than two save intervals, even with a disk that was lost.
    assert all(0 < before + 1 - after < 2 * SAVE_STEPS for before, after in back), back
