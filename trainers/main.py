"""The command line of `task.py`, which `rayscribe train`, `prepare` and `evaluate` share."""

import argparse
import atexit
import difflib
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from runtime_env.recipe_secrets import find_literal_secrets
from trainers.config.config_scope import PREPARE_SCOPE, TRAIN_SCOPE, ConfigScope
from trainers.config.flags import script_line
from trainers.config.flags.script_flags import DEFAULT_DATASET
from trainers.config.loader import build_any_config, read_ds_config, read_yaml, shipped, with_run_name
from trainers.config.locations import anchored, make_paths_absolute, refuse_relative_storage
from trainers.config.overrides import apply_overrides, parse_override
from trainers.config.schema import AnyConfig, ScriptConfig, TrainConfig
from trainers.config.secrets import resolve_secrets
from trainers.config.submitted import CHECKPOINT_VARIABLE, CONFIG_VARIABLE, read_record, read_submitted
from trainers.config.validation import refuse
from trainers.config.wording import counted, format_bytes, format_duration
from trainers.distributed.console import opened_screen, print_line, show
from trainers.distributed.console.events import Finished, Stage
from trainers.distributed.console.screen import READING, START
from trainers.distributed.machine import cpus_of_this_machine, wait_asleep
from trainers.distributed.signals import STOP_SIGNAL, exit_code_of
from trainers.errors import ConfigError
from trainers.pipeline import demo_run
from trainers.pipeline.next_steps import next_steps
from trainers.pipeline.on_machine.engine_choice import JOB_VARIABLE, crowding, engine_line, reason_for_ray
from trainers.run_folder.run_register import registered
from trainers.scripts.recipe import resolve_program

EXAMPLES = """examples:
  python task.py    (the demo recipe, on this node)
  python task.py --config jobs/specs/whisper_micro.yaml --set scaling.num_workers=2
  python task.py --config my.yaml --debug    (two batches through every stage, nothing is kept)
  python task.py --config my.yaml --set data.train=my/train.csv --set run.storage_path=s3://bucket/runs
  python task.py --model_size tiny --name sr --language Serbian --max_steps 5000 --num-workers 3 --use-gpu
The flags of transformers' speech recognition scripts and of its Trainer are all known; docs/flags.md says what each
means here, or why it is refused. Dashes and underscores are the same, and --x=False is off.
"""
VERBS = ("train", "prepare", "evaluate", "check")
LIBRARIES = "loading torch and transformers"
# What a worker of this machine imports, by itself or by accelerate where it is there.
WORKERS_IMPORT = (f"{__package__}.pipeline.on_machine.worker_group", "deepspeed")


@dataclass(frozen=True)
class TaskArguments:
    """The arguments of `parser`; `rayscribe train`, `prepare` and `evaluate` fill them in without it.

    Attributes:
        config: The recipe. None: flags alone, or the config that a service submitted.
        flags: Value of each flag of `script_line.FLAGS` by its key; None where it was not given.
        ray: Whether to run on Ray; False: in this process. None: on Ray where something needs it.
        recipe: What `config` would be read from, where there is no such file.
        texts: With the verb prepare, report on the transcripts.
        debug: Take two batches through every stage, and keep nothing.
        demo: Nothing was given: run the demo recipe on the driver's node.
        json: Print one JSON document per line, for programs.
        command: What the user typed after the verb, of which at the end is made what may be done next. None: no advice.
    """

    config: Path | None = None
    sets: Sequence[str] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    verb: str = "train"
    model: str | None = None
    split: str = "test"
    nbest: int | None = None
    address: str | None = None
    ray: bool | None = None
    texts: bool = False
    debug: bool = False
    attempt: int | None = None
    only: str | None = None
    elsewhere: bool = False
    recordings_s: float = 60.0
    light: bool = False
    demo: bool = False
    json: bool = False
    command: Sequence[str] | None = None
    recipe: Mapping[str, Any] | None = None


def parse(arguments: Sequence[str]) -> TaskArguments:
    """The arguments of task.py, typed; ends the process where argparse does."""
    demo = not arguments and not os.environ.get(CONFIG_VARIABLE)
    known = parser()
    usual = script_line.usually_spelled(demo_run.ARGUMENTS if demo else arguments)
    parsed, unknown = known.parse_known_args(usual)
    if unknown:
        known.error(_unknown(unknown, [option for action in known._actions for option in action.option_strings]))
    values = vars(parsed)
    given = {flag.key: values.pop(flag.key) for flag in script_line.FLAGS}
    debug = given["debug"] is True
    return TaskArguments(sets=values.pop("set"), flags=given, demo=demo, debug=debug, **values)


def _unknown(arguments: Sequence[str], options: Sequence[str]) -> str:
    names = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    near = [match for name in names for match in difflib.get_close_matches(name, options, n=1)]
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return f"unrecognized arguments: {' '.join(names or arguments)}{hint}"


def parser() -> argparse.ArgumentParser:
    """All arguments of task.py."""
    result = argparse.ArgumentParser(
        prog="task.py",
        usage="task.py [--config RECIPE] [--set KEY=VALUE] [--verb VERB] [flags of a fine-tuning script]",
        description="Fine-tunes a speech recognizer on the Ray cluster that this process finds, or on this machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result.add_argument("--config", type=Path, help="recipe, e.g. jobs/specs/whisper_micro.yaml")
    result.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a field; repeatable")
    result.add_argument("--verb", choices=VERBS, default="train", help="what to do (default: train)")
    result.add_argument("--model", help="evaluate: a run folder, a folder with a model, or a Hub id")
    result.add_argument("--split", default="test", help="evaluate: train, validation or test (default: test)")
    result.add_argument("--nbest", type=int, metavar="N", help="evaluate: give the N best hypotheses of each utterance")
    result.add_argument("--address", help="address of a Ray cluster (default: RAY_ADDRESS, or a Ray started here)")
    result.add_argument("--ray", action="store_true", default=None, help="run on Ray (default: where it is needed)")
    result.add_argument("--no-ray", action="store_false", dest="ray", help="run in this process, without Ray")
    result.add_argument("--json", action="store_true", help="print one JSON document per line, for programs")
    result.add_argument("--texts", action="store_true", help="with prepare, report on the transcripts")
    result.add_argument(
        "--attempt",
        type=int,
        metavar="K",
        help="train: this is attempt K of the run, which takes it over from all before; a service counts them "
        "(default: the next one)",
    )
    result.add_argument("--only", metavar="GROUPS", help="check: some of storage,data,model,hardware,nodes")
    result.add_argument("--light", action="store_true", help="check: load torch only where a check needs it")
    result.add_argument("--elsewhere", action="store_true", help="check: the job runs on other machines than this")
    result.add_argument(
        "--recordings-s", type=float, default=60.0, metavar="S", help="check: longest look at a split's recordings"
    )
    script_line.add_sections(result)
    return result


def main(arguments: Sequence[str]) -> int:
    """Runs task.py; returns its exit code."""
    return run_task(parse(arguments))


def run_task(arguments: TaskArguments) -> int:
    """Runs one verb, see `exit_code_of`."""
    # Findings of checks are lines for another process.
    screen: AbstractContextManager[None] = (
        nullcontext() if arguments.verb == "check" else opened_screen(as_json=arguments.json)
    )
    with screen:
        show(Stage(START, READING, is_told=False))
        if arguments.demo:
            show(demo_run.NOTICE)
        return exit_code_of(partial(_run_task, arguments))


def _run_task(arguments: TaskArguments) -> int:
    resolve_secrets(os.environ)
    config, changed = config_of(arguments)
    with _remembered(arguments, config):
        if isinstance(config, ScriptConfig):
            return run_script(arguments, config, changed)
        return run_verb(arguments, config, changed)


def _remembered(given: TaskArguments, config: AnyConfig) -> AbstractContextManager[None]:
    """Has the run in this user's list, unless a service has it in its own, or nothing of it is kept."""
    if given.verb != "train" or given.debug or given.attempt is not None or os.environ.get(CONFIG_VARIABLE):
        return nullcontext()
    address = given.address or os.environ.get("RAY_ADDRESS")
    return registered(config, address=None if given.ray is False else address, no_ray=given.ray is False)


def config_of(arguments: TaskArguments) -> tuple[AnyConfig, list[str]]:
    """The config, and what was overridden in it, for the record.

    A submitted run has its config from the service, and nothing here changes it.

    Raises:
        ConfigError: one message with every problem.
    """
    scope = scope_of(arguments)
    if not os.environ.get(CONFIG_VARIABLE):
        return config_by_hand(arguments, scope)
    given = [flag.option for flag, _ in script_line.given_flags(arguments.flags)]
    given += ["--config"] * (arguments.config is not None) + ["--set"] * bool(arguments.sets)
    if given:
        raise ConfigError(
            f"{', '.join(given)}: {CONFIG_VARIABLE} holds the config of a submitted run, which nothing changes on the "
            "node: leave these arguments out, or unset the variable to run task.py by hand"
        )
    return read_submitted(os.environ, Path.cwd()), read_record(Path.cwd())


def config_by_hand(arguments: TaskArguments, scope: ConfigScope) -> tuple[AnyConfig, list[str]]:
    """File, then BUCKET_URI, then flags, then --set."""
    overrides = [*script_line.storage_override(os.environ), *script_line.overrides_of(arguments.flags, arguments.verb)]
    overrides += [parse_override(text) for text in arguments.sets]
    for note in script_line.notes_on(arguments.flags):
        print_line(f"note: {note}")
    if arguments.config is not None:
        content, origin = _recipe_of(arguments.config, arguments.recipe)
    elif arguments.flags.get("model_size") or arguments.flags.get("model_name_or_path"):
        content, origin = script_line.base_of_flags(arguments.flags, overrides), "command line"
        if dict(content["data"].get("dataset", {})).get("name") == DEFAULT_DATASET:
            print_line(f"data: {DEFAULT_DATASET}, unless --dataset or --set data.train=… names another")
    else:
        raise ConfigError("name a recipe (--config jobs/specs/whisper_micro.yaml) or weights (--model_size tiny)")
    # Who has made the recipe has resolved its line, too, and told what is to be told.
    say = print_line if arguments.recipe is None else None
    content = resolve_program(apply_overrides(content, overrides), os.environ, say)
    secrets, further = [*find_literal_secrets(read_ds_config(content)[0])], partial(_further_problems, arguments)
    config = build_any_config(content, origin=origin, scope=scope, known=secrets, further=further)
    if JOB_VARIABLE in os.environ:
        refuse_relative_storage(config)
    config = with_run_name(make_paths_absolute(config, Path.cwd()), arguments.config, datetime.now(UTC))
    return config, [f"{'.'.join(path)}={value}" for path, value in overrides]


def _further_problems(given: TaskArguments, config: AnyConfig) -> Sequence[Exception]:
    if given.verb == "check" or not isinstance(config, TrainConfig):
        return ()
    return _early_problems(given, make_paths_absolute(config, Path.cwd()))


def _early_problems(given: TaskArguments, config: TrainConfig) -> Sequence[Exception]:
    """What is known to stop a verb before anything slow is loaded; on a cluster only its nodes may have the files."""
    from trainers.pipeline.on_machine.early_checks import early_problems  # noqa: PLC0415

    has_files = given.debug or given.ray is False or _reason_for_ray(given, config) is None
    split, trains = given.split if given.verb == "evaluate" else None, given.verb == "train"
    return early_problems(config, split, trains=trains, has_files=has_files, writes=not given.debug)


def _refuse_early(given: TaskArguments, config: TrainConfig) -> None:
    if len(problems := _early_problems(given, config)) == 1:
        raise problems[0]
    refuse([str(each) for each in problems], str(given.config or "command line"))


def _reason_for_ray(given: TaskArguments, config: TrainConfig) -> str | None:
    # A program may have joined one before it calls this.
    joined = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    return reason_for_ray(config.scaling, given.address, os.environ, asked=given.ray or given.demo, has_joined=joined)


def _recipe_of(path: Path, content: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """A recipe, read from its file where it is not given, its paths counted from there; and what messages call it."""
    if content is not None:
        return dict(content), "command line"
    # In a job, a relative storage path leads nowhere, from wherever it counts.
    read = anchored(read_yaml(path), shipped(path).absolute().parent, storage=JOB_VARIABLE not in os.environ)
    return read, str(path)


def scope_of(given: TaskArguments) -> ConfigScope:
    """What the verb reads of its config.

    Raises:
        ConfigError: its arguments do not say it.
    """
    if given.verb == "evaluate":
        if given.model is None:
            raise ConfigError("--model is missing: name a run folder, a folder with a model, or a Hub id")
        if given.split not in ("train", "validation", "test"):
            raise ConfigError(f"--split {given.split}: one of train, validation, test")
        return ConfigScope.for_scoring(given.split)
    if given.verb == "check":
        from trainers.inspection.check_command import scope_of_groups  # noqa: PLC0415

        return scope_of_groups(given.only)
    return PREPARE_SCOPE if given.verb == "prepare" else TRAIN_SCOPE


def run_verb(given: TaskArguments, config: TrainConfig, changed: Sequence[str]) -> int:
    """Runs a verb with Ray, or without.

    Raises:
        RayscribeError: what stopped it.
    """
    # Otherwise Python looks through half a million objects of these libraries when it ends, for seconds.
    atexit.register(gc.freeze)
    wait_asleep()
    # Only now: a problem in the config is reported in a second, and torch, transformers and Ray take several to load.
    # The first two are loaded while a Ray of this machine starts.
    if given.debug:
        if given.verb != "train":
            raise ConfigError(f"--debug takes a training through every stage: leave out --verb {given.verb}")
        show(Stage("imports", LIBRARIES))
        from trainers.pipeline.debug_run import debug  # noqa: PLC0415

        return debug(config)
    if given.verb == "check":
        from trainers.inspection.check_command import check  # noqa: PLC0415
        from trainers.inspection.subject import Subject  # noqa: PLC0415

        subject = Subject(config, given.address, elsewhere=given.elsewhere, recordings_s=given.recordings_s)
        return check(subject, given.only, light=given.light)
    result_of(given, config, changed)
    return 0


def call(given: TaskArguments) -> Any:
    """Does what a verb says, for a caller in Python; see `result_of`.

    Raises:
        RayscribeError: what stopped it.
        Interruption: a signal did.
    """
    STOP_SIGNAL.reset()
    with STOP_SIGNAL.on_signals():
        resolve_secrets(os.environ)
        return result_of(given, load(given), [*given.sets])


def load(given: TaskArguments) -> TrainConfig:
    """The config that a verb is called with from Python.

    Raises:
        ConfigError: one message with every problem; or the recipe is of a program.
    """
    config, _ = config_by_hand(given, scope_of(given))
    if isinstance(config, ScriptConfig):
        raise ConfigError("trainer is script: `rayscribe launch` runs programs; name the recipe of a training")
    return config


def result_of(given: TaskArguments, config: TrainConfig, changed: Sequence[str]) -> Any:
    """Trains, evaluates or prepares, with Ray or without; prints and gives a RunResult, or each split's prepared set.

    Raises:
        RayscribeError: what stopped it.
    """
    if given.verb == "evaluate":
        from trainers.models.sources.run_models import find_model  # noqa: PLC0415

        find_model(str(given.model), config.run.storage_options)
    _refuse_early(given, config)
    if given.ray is False:
        _load(given, config)
        return _run(given, config, changed, _local_engine(config))
    needs_ray = _reason_for_ray(given, config)
    show(engine_line(needs_ray))
    if needs_ray is None:
        return _run_on_machine(given, config, changed)
    show(Stage("imports", "loading Ray"))
    from trainers.distributed.ray_connection import (  # noqa: PLC0415
        connected,
        driver_node,
        refuse_missing_accelerators,
    )

    def load() -> None:
        _load(given, config)
        from trainers.pipeline.on_ray import ray_engine  # noqa: F401, PLC0415

    refuse_missing_accelerators(config, given.address)
    # Again inside, since Ray takes SIGTERM for itself when it connects.
    with connected(config, given.address, meanwhile=load), STOP_SIGNAL.on_signals():
        from trainers.pipeline.on_ray.ray_engine import RayEngine  # noqa: PLC0415

        if given.demo:
            placement = demo_run.place_demo(config, driver_node())
            show(placement.message)
            changed = [*changed, *(f"{'.'.join(path)}={value}" for path, value in placement.overrides)]
            engine = RayEngine(placement.node_resources) if placement.num_workers else _local_engine(config)
            return _run(given, demo_run.apply_placement(config, placement), changed, engine)
        return _run(given, config, changed, RayEngine())


def _run_on_machine(given: TaskArguments, config: TrainConfig, changed: Sequence[str]) -> Any:
    """Runs a verb in processes of this machine, which import what they need while this one does."""
    from trainers.pipeline.on_machine.process_server import start_server, threads_of  # noqa: PLC0415

    threads = threads_of(config.scaling)
    crowded = crowding(config.scaling.max_workers, threads, cpus_of_this_machine())
    if crowded is not None and given.verb != "prepare":
        print_line(f"warning: {crowded}")
    start_server(WORKERS_IMPORT, threads)
    _load(given, config)
    from trainers.pipeline.on_machine.worker_group import MachineEngine  # noqa: PLC0415

    return _run(given, config, changed, MachineEngine())


def run_script(given: TaskArguments, config: ScriptConfig, changed: Sequence[str]) -> int:
    """Runs a program on Ray workers.

    Raises:
        RayscribeError: what stopped it.
    """
    if given.verb != "train" or given.debug or given.ray is False:
        wrong = "--debug" if given.debug else "--no-ray" if given.ray is False else f"--verb {given.verb}"
        raise ConfigError(f"{wrong}: a recipe with trainer: script runs a program on Ray, and does nothing else")
    show(Stage("imports", "loading Ray"))
    from trainers.distributed.ray_connection import (  # noqa: PLC0415
        connected,
        package_of_job,
        refuse_missing_accelerators,
    )

    refuse_missing_accelerators(config, given.address)

    with connected(config, given.address), STOP_SIGNAL.on_signals():
        from trainers.pipeline.launch import launch  # noqa: PLC0415

        package = package_of_job()
        base = Path.cwd() if package is None else None
        expected = os.environ.get(CHECKPOINT_VARIABLE)
        result = launch(config, base=base, package=package, overrides=changed, attempt=given.attempt, expected=expected)
    show(Finished(result.headline, result.folder))
    return 0


def _load(given: TaskArguments, config: TrainConfig) -> None:
    """Loads torch, transformers and what runs with them, and has a training's arguments checked by them.

    Raises:
        ConfigError: what they say of the arguments.
    """
    show(Stage("imports", LIBRARIES))
    from trainers.training.arguments import check_arguments, check_trackers  # noqa: PLC0415

    if given.verb == "train":
        check_arguments(config)
        check_trackers(config)
    from trainers.pipeline import evaluate, fit  # noqa: F401, PLC0415


def _local_engine(config: TrainConfig) -> Any:
    from trainers.pipeline.engine import LocalEngine  # noqa: PLC0415

    return LocalEngine(config.scaling.backend)


def _run(given: TaskArguments, config: TrainConfig, changed: Sequence[str], engine: Any) -> Any:
    from trainers.data.text_report import report_of  # noqa: PLC0415
    from trainers.pipeline.evaluate import evaluate  # noqa: PLC0415
    from trainers.pipeline.fit import fit  # noqa: PLC0415
    from trainers.pipeline.splits import prepare_all  # noqa: PLC0415

    if given.verb == "prepare":
        sets = prepare_all(config, engine)
        if not sets:
            raise ConfigError("data: names no data to prepare (--set data.train=my.csv)")
        for split, prepared in sets.items():
            counts = prepared.summary
            stored = f"{format_duration(counts.duration_s)}, {format_bytes(counts.stored_bytes)}"
            print_line(
                f"{split}: {counted(counts.rows, 'row')} · {counts.prepared} prepared ({stored}) · "
                f"{counts.quarantined} quarantined · {prepared.url}"
            )
            if given.texts:
                for line in report_of(prepared.index).lines():
                    print_line(f"{split}: {line}")
        _advise(given, config)
        return sets
    if given.verb == "evaluate":
        assert given.model is not None
        result = evaluate(config, engine, model=given.model, split=given.split, nbest=given.nbest)
    else:
        expected = os.environ.get(CHECKPOINT_VARIABLE)
        result = fit(config, engine, overrides=changed, attempt=given.attempt, expected=expected)
    if given.verb == "train" and result.warning is not None:
        show(result.warning)
    show(Finished(result.headline, result.folder))
    _advise(given, config, result.folder, result.split)
    return result


def _advise(given: TaskArguments, config: TrainConfig, folder: str = "", split: str = "") -> None:
    if given.command is not None:
        for line in next_steps(given.verb, given.command, config, folder, split):
            show(line)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
