"""task.py whose workers write down which utterances they read for each step, and take time until told to hurry."""

import json
import sys
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from ray.cloudpickle import register_pickle_by_value
from transformers import TrainerCallback

from trainers.data.prepared_set import ClipReader
from trainers.main import main as task
from trainers.training import ray_workers
from trainers.training.loop import Loop
from trainers.training.worker import run_training_worker

# From this step on, each takes so long until the run is told to hurry that none comes to its end before.
SLOW_FROM, STEP_S, HURRY = 10, 2.0, "hurry"


class Recorder(TrainerCallback):
    """Writes a line for each step of a rank."""

    def __init__(self, loop: Loop, folder: Path):
        """Reads along."""
        session = loop.context.session
        self._folder, self._loop = folder, loop
        self._file = folder / f"{time.time_ns()}-{session.group}-{session.rank}.jsonl"
        self._read: list[int] = []
        read = ClipReader.read

        def reading(reader: ClipReader, position: int) -> Any:
            self._read.append(position)
            return read(reader, position)

        ClipReader.read = reading  # type: ignore[method-assign, assignment]

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forgets what was read for the score that the checkpoint lacked."""
        self._read.clear()

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Takes its time."""
        end = time.monotonic() + (STEP_S if state.global_step >= SLOW_FROM else 0.0)
        while time.monotonic() < end and not (self._folder / HURRY).exists():
            time.sleep(0.02)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Writes what was read for the step; the scores that follow read other sets."""
        session = self._loop.context.session
        line = {
            "step": state.global_step,
            "rank": session.rank,
            "size": session.world_size,
            "group": session.group,
            "read": self._read,
            "plan": self._loop.plan.batch(state.global_step - 1).rows.tolist(),
        }
        with self._file.open("a") as output:
            print(json.dumps(line), file=output)
        self._read.clear()

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Forgets what was read for the score."""
        self._read.clear()


def record(folder: Path, loop: Loop) -> None:
    """Has a rank's steps written into a folder."""
    loop.trainer.add_callback(Recorder(loop, folder))


def recording_loop(loop_config: dict[str, Any], folder: Path) -> str | None:
    """What every training worker runs."""
    return ray_workers.run_worker(partial(run_training_worker, watch=partial(record, folder)), loop_config)


def main(arguments: Sequence[str]) -> int:
    """Runs task.py; the first argument is the folder of the lines."""
    from trainers.pipeline.on_ray.ray_engine import RayEngine  # noqa: PLC0415

    # Workers import nothing from the driver's folder.
    register_pickle_by_value(sys.modules[__name__])
    folder, *rest = arguments
    defaults: Any = RayEngine.__init__.__kwdefaults__
    defaults["train_loop"] = partial(recording_loop, folder=Path(folder))
    return task(rest)


def recorded(folder: Path) -> dict[int, tuple[int, list[int]]]:
    """Of each step that counts: the number of workers, and the positions of the utterances that they read.

    Steps that another group trained once more count as that one did them. All must have read what the plan says.
    """
    lines = lines_of(folder)
    last = {line["step"]: line["group"] for line in lines}
    found: dict[int, tuple[int, list[int]]] = {}
    for step, group in sorted(last.items()):
        own = [line for line in lines if line["step"] == step and line["group"] == group]
        assert len(own) == own[0]["size"], f"step {step}: {len(own)} of {own[0]['size']} ranks"
        read = sorted(position for line in own for position in line["read"])
        assert all(sorted(line["plan"]) == read for line in own), f"step {step}: {read}, not the plan's"
        found[step] = own[0]["size"], read
    return found


def trained_twice(folder: Path) -> list[int]:
    """The steps that more than one worker group trained."""
    groups: dict[int, set[int]] = {}
    for line in lines_of(folder):
        groups.setdefault(line["step"], set()).add(line["group"])
    return sorted(step for step, found in groups.items() if len(found) > 1)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """All whole lines that ranks wrote."""
    return [
        json.loads(line)
        for path in sorted(folder.glob("*.jsonl"))
        for line in path.read_text().splitlines()
        if line.endswith("}")
    ]
