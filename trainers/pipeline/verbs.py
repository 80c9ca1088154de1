"""Runs the verbs of `task.py` on the engine that the config needs, since local workers start faster than Ray.

Libraries that take seconds to load are loaded here, after the config is checked.
"""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainers.config.flags.task_line import TaskArguments
from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.schema import AnyConfig, ScriptConfig, TrainConfig
from trainers.config.submitted import CHECKPOINT_VARIABLE
from trainers.config.wording import counted, format_bytes, format_duration
from trainers.distributed.console import print_line, show
from trainers.distributed.console.events import Finished, Stage
from trainers.distributed.machine import cpus_of_this_machine
from trainers.distributed.signals import STOP_SIGNAL
from trainers.errors import ConfigError
from trainers.pipeline import demo_run
from trainers.pipeline.next_steps import next_steps

if TYPE_CHECKING:
    from trainers.data.prepared_set import PreparedSet
    from trainers.pipeline.engine import Engine, LocalEngine
    from trainers.pipeline.evaluate import RunResult

# Set by Ray for the driver of a job.
JOB_VARIABLE = "RAY_JOB_CONFIG_JSON_ENV_VAR"
USUAL_RESOURCES = {"CPU"}
LIBRARIES = "loading torch and transformers"
# Modules that a worker on this machine imports; accelerate imports deepspeed if it is installed.
WORKERS_IMPORT = (f"{__package__}.on_machine.worker_group", "deepspeed")


@dataclass(frozen=True)
class Call:
    """A call of a verb; `changed` has the overrides of the config, for the journal."""

    given: TaskArguments
    config: TrainConfig
    changed: Sequence[str] = ()


Result = TypeVar("Result")
Verb = Callable[[Call, "Engine"], Result]


def train(call: Call, engine: "Engine") -> "RunResult":
    """Trains, evaluates and exports, or continues an interrupted run."""
    from trainers.pipeline.fit import fit  # noqa: PLC0415

    expected = os.environ.get(CHECKPOINT_VARIABLE)
    result = fit(call.config, engine, overrides=call.changed, attempt=call.given.attempt, expected=expected)
    if result.warning is not None:
        show(result.warning)
    _show_result(call, result)
    return result


def evaluate(call: Call, engine: "Engine") -> "RunResult":
    """Scores a model on a split."""
    from trainers.pipeline import evaluate as evaluation  # noqa: PLC0415

    given = call.given
    assert given.model is not None
    result = evaluation.evaluate(call.config, engine, model=given.model, split=given.split, nbest=given.nbest)
    _show_result(call, result)
    return result


def prepare(call: Call, engine: "Engine") -> "dict[str, PreparedSet]":
    """Decodes and stores each split that is not stored yet; raises ConfigError if the config has no data."""
    from trainers.data.text_report import report_of  # noqa: PLC0415
    from trainers.pipeline.splits import prepare_all  # noqa: PLC0415

    sets = prepare_all(call.config, engine)
    if not sets:
        raise ConfigError("data: names no data to prepare (--set data.train=my.csv)")
    for split, prepared in sets.items():
        counts = prepared.summary
        stored = f"{format_duration(counts.duration_s)}, {format_bytes(counts.stored_bytes)}"
        print_line(
            f"{split}: {counted(counts.rows, 'row')} · {counts.prepared} prepared ({stored}) · "
            f"{counts.quarantined} quarantined · {prepared.url}"
        )
        if call.given.texts:
            for line in report_of(prepared.index).lines():
                print_line(f"{split}: {line}")
    _advise(call)
    return sets


VERBS: Mapping[str, Verb[Any]] = {"train": train, "prepare": prepare, "evaluate": evaluate}


def reason_for_ray(
    scaling: ScalingPart, address: str | None, variables: Mapping[str, str], *, asked: bool | None, has_joined: bool
) -> str | None:
    """Returns why a command runs on Ray, for a message; None if it runs in processes of this machine.

    `address` and `asked` are --address and --ray; `has_joined` is True if this process has already joined a Ray.
    """
    strange = sorted(scaling.worker_resources.keys() - USUAL_RESOURCES)
    reasons = {
        "--ray": asked,
        "--address": address,
        "RAY_ADDRESS": variables.get("RAY_ADDRESS"),
        "this is a job of Ray": JOB_VARIABLE in variables,
        "this process has joined it": has_joined,
        f"scaling.num_workers is {scaling.num_workers}": scaling.is_elastic,
        f"scaling asks for {', '.join(strange)}": strange,
        "scaling.label_selector": scaling.label_selector,
        f"scaling.placement_strategy is {scaling.placement_strategy}": scaling.placement_strategy == "STRICT_SPREAD",
    }
    return next((reason for reason, holds in reasons.items() if holds), None)


def engine_line(reason: str | None) -> str:
    """Returns a line with the engine, the reason, and how to choose Ray instead of this machine's processes."""
    if reason is not None:
        return f"engine: Ray ({reason})"
    return "engine: processes of this machine, without Ray, which nothing here needs (--ray: on Ray)"


def crowding(workers: int, each: int, cpus: int) -> str | None:
    """Returns a warning if workers with `each` CPUs need more than this machine has; None if there are enough."""
    if workers * each <= cpus:
        return None
    of_each = f"of {counted(each, 'CPU')}"
    who = counted(workers, "worker", f"{of_each} shares", f"{of_each} share")
    more = f", where more than {counted(cpus, 'worker')} do not help" if workers > cpus else ""
    return f"{who} the {counted(cpus, 'CPU')} of this machine{more}"


def run_on_engine(call: Call, verb: Verb[Result], needs_ray: str | None) -> Result:
    """Runs a verb on Ray if `needs_ray` has a reason, else in processes of this machine."""
    given, config = call.given, call.config
    if given.ray is False:
        _load(call)
        return verb(call, _local_engine(config))
    show(engine_line(needs_ray))
    if needs_ray is None:
        return verb(call, _machine_engine(call))

    def load() -> None:
        _load(call)
        from trainers.pipeline.on_ray import ray_engine  # noqa: F401, PLC0415

    with _joined_ray(config, given.address, load):
        from trainers.distributed.ray_connection import driver_node_id, node_resources  # noqa: PLC0415
        from trainers.pipeline.on_ray.ray_engine import RayEngine  # noqa: PLC0415

        if not given.demo:
            return verb(call, RayEngine())
        placement = demo_run.place_demo(config, node_resources()[driver_node_id()])
        show(placement.message)
        placed = replace(call, config=placement.config, changed=[*call.changed, *placement.changes])
        engine = RayEngine(placement.node_resources) if placement.num_workers else _local_engine(config)
        return verb(placed, engine)


def run_script(given: TaskArguments, config: ScriptConfig, changed: Sequence[str]) -> None:
    """Runs a program on Ray workers."""
    if given.verb != "train" or given.keeps_nothing or given.ray is False:
        options = {"--debug": given.debug, "--find-lr": given.find_lr, "--no-ray": given.ray is False}
        wrong = next((name for name, is_given in options.items() if is_given), f"--verb {given.verb}")
        raise ConfigError(f"{wrong}: a recipe with trainer: script runs a program on Ray, and does nothing else")
    with _joined_ray(config, given.address):
        from trainers.distributed.ray_connection import package_of_job  # noqa: PLC0415
        from trainers.pipeline.launch import launch  # noqa: PLC0415

        package = package_of_job()
        base = Path.cwd() if package is None else None
        expected = os.environ.get(CHECKPOINT_VARIABLE)
        result = launch(config, base=base, package=package, overrides=changed, attempt=given.attempt, expected=expected)
    show(Finished(result.headline, result.folder))


@contextmanager
def _joined_ray(config: AnyConfig, address: str | None, meanwhile: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Joins or starts a Ray, see `ray_connection.connected`."""
    show(Stage("imports", "loading Ray"))
    from trainers.distributed.ray_connection import connected  # noqa: PLC0415

    # Installed again inside, since Ray replaces the handler of SIGTERM when it connects.
    with connected(config, address, meanwhile=meanwhile), STOP_SIGNAL.on_signals():
        yield


def _load(call: Call) -> None:
    """Loads torch, transformers and the modules that use them, and checks the arguments of a training."""
    show(Stage("imports", LIBRARIES))
    from trainers.training.arguments import check_arguments, check_trackers  # noqa: PLC0415

    if call.given.verb == "train":
        check_arguments(call.config)
        check_trackers(call.config)
    from trainers.pipeline import evaluate, fit  # noqa: F401, PLC0415


def _local_engine(config: TrainConfig) -> "LocalEngine":
    from trainers.pipeline.engine import LocalEngine  # noqa: PLC0415

    return LocalEngine(config.scaling.backend)


def _machine_engine(call: Call) -> "Engine":
    """Returns an engine of local processes, which import their modules while this process imports its own."""
    from trainers.pipeline.on_machine.process_server import start_server, threads_of  # noqa: PLC0415

    scaling = call.config.scaling
    threads = threads_of(scaling)
    crowded = crowding(scaling.max_workers, threads, cpus_of_this_machine())
    if crowded is not None and call.given.verb != "prepare":
        print_line(f"warning: {crowded}")
    start_server(WORKERS_IMPORT, threads)
    _load(call)
    from trainers.pipeline.on_machine.worker_group import MachineEngine  # noqa: PLC0415

    return MachineEngine()


def _show_result(call: Call, result: "RunResult") -> None:
    verdicts = {name: verdict.to_json_dict() for name, verdict in result.verdicts.items()}
    show(Finished(result.headline, result.folder, verdicts))
    _advise(call, result.folder, result.split, result.best_step)


def _advise(call: Call, folder: str = "", split: str = "", best_step: int | None = None) -> None:
    if call.given.command is not None:
        for line in next_steps(call.given.verb, call.given.command, call.config, folder, split, best_step):
            show(line)
