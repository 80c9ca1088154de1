"""Runs a verb with its config, from the arguments of `task.py` or of `rayscribe train`, `prepare` and `evaluate`."""

import atexit
import gc
import os
import sys
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

from runtime_env.secret_arguments import find_literal_secrets
from trainers.config.flags import task_line
from trainers.config.flags.script_flags import DEFAULT_DATASET
from trainers.config.flags.task_line import TaskArguments, parse_line
from trainers.config.loader import build_any_config, read_ds_config, read_yaml, shipped, with_run_name
from trainers.config.locations import anchored, make_paths_absolute, refuse_relative_storage
from trainers.config.overrides import apply_overrides, parse_override
from trainers.config.parts.part import PREPARE_SCOPE, TRAIN_SCOPE, ConfigScope
from trainers.config.schema import AnyConfig, ScriptConfig, TrainConfig
from trainers.config.secrets import resolve_secrets
from trainers.config.submitted import CONFIG_VARIABLE, read_record, read_submitted
from trainers.config.validation import Problems
from trainers.distributed.console import opened_screen, print_line, show
from trainers.distributed.console.events import Stage
from trainers.distributed.console.screen import READING, START
from trainers.distributed.machine import wait_asleep
from trainers.distributed.signals import STOP_SIGNAL, exit_code_of
from trainers.errors import ConfigError
from trainers.pipeline import demo_run
from trainers.pipeline.verbs import (
    JOB_VARIABLE,
    LIBRARIES,
    VERBS,
    Call,
    Result,
    Verb,
    reason_for_ray,
    run_on_engine,
    run_script,
)
from trainers.run_folder.run_register import registered
from trainers.scripts.recipe import resolve_program


def parse(arguments: Sequence[str]) -> TaskArguments:
    """Parses the arguments of task.py, or of the demo if there are none. Exits the process where argparse does."""
    demo = not arguments and not os.environ.get(CONFIG_VARIABLE)
    return parse_line(demo_run.ARGUMENTS if demo else arguments, demo=demo)


def main(arguments: Sequence[str]) -> int:
    """Runs task.py; returns its exit code."""
    return run_task(parse(arguments))


def run_task(arguments: TaskArguments) -> int:
    """Runs one verb; returns its exit code, see `exit_code_of`."""
    # The output of checks is read by another process.
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
            run_script(arguments, config, changed)
            return 0
        return run_verb(arguments, config, changed)


def _remembered(given: TaskArguments, config: AnyConfig) -> AbstractContextManager[None]:
    """Returns a context that adds the run to this user's list, unless a service lists it or the run keeps no output."""
    if given.verb != "train" or given.keeps_nothing or given.attempt is not None or os.environ.get(CONFIG_VARIABLE):
        return nullcontext()
    address = given.address or os.environ.get("RAY_ADDRESS")
    return registered(config, address=None if given.ray is False else address, no_ray=given.ray is False)


def config_of(arguments: TaskArguments) -> tuple[AnyConfig, list[str]]:
    """Returns the config, and its overrides for the journal; raises ConfigError with every problem.

    The config of a submitted run is from the service, and is not changed here.
    """
    scope = scope_of(arguments)
    if not os.environ.get(CONFIG_VARIABLE):
        return config_by_hand(arguments, scope)
    given = [flag.option for flag, _ in task_line.given_flags(arguments.flags)]
    given += ["--config"] * (arguments.config is not None) + ["--set"] * bool(arguments.sets)
    if given:
        raise ConfigError(
            f"{', '.join(given)}: {CONFIG_VARIABLE} holds the config of a submitted run, which cannot be changed on "
            "the node: leave these arguments out, or unset the variable to run task.py by hand"
        )
    return read_submitted(os.environ, Path.cwd()), read_record(Path.cwd())


def config_by_hand(arguments: TaskArguments, scope: ConfigScope) -> tuple[AnyConfig, list[str]]:
    """Builds a config from file, then BUCKET_URI, then flags, then --set."""
    overrides = [*task_line.storage_override(os.environ), *task_line.overrides_of(arguments.flags, arguments.verb)]
    overrides += [parse_override(text) for text in arguments.sets]
    for note in task_line.notes_on(arguments.flags):
        print_line(f"note: {note}")
    if arguments.config is not None:
        content, origin = _recipe_of(arguments.config, arguments.recipe)
    elif arguments.flags.get("model_size") or arguments.flags.get("model_name_or_path"):
        content, origin = task_line.base_of_flags(arguments.flags, overrides), "command line"
        if dict(content["data"].get("dataset", {})).get("name") == DEFAULT_DATASET:
            print_line(f"data: {DEFAULT_DATASET}, unless --dataset or --set data.train=… names another")
    else:
        raise ConfigError("name a recipe (--config jobs/specs/whisper_micro.yaml) or weights (--model_size tiny)")
    # A caller that passes a recipe has already resolved its overrides and printed their notes.
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
    return _early_problems(given, make_paths_absolute(config, Path.cwd())).found


def _early_problems(given: TaskArguments, config: TrainConfig) -> Problems:
    """Returns problems that would stop a verb, before slow imports; on a cluster, only its nodes may have the files."""
    from trainers.pipeline.on_machine.early_checks import early_problems  # noqa: PLC0415

    has_files = given.keeps_nothing or given.ray is False or _reason_for_ray(given, config) is None
    split, trains = given.split if given.verb == "evaluate" else None, given.verb == "train"
    return early_problems(config, split, trains=trains, has_files=has_files, writes=not given.keeps_nothing)


def _reason_for_ray(given: TaskArguments, config: TrainConfig) -> str | None:
    # A program may have connected to Ray before it calls this.
    joined = "ray" in sys.modules and sys.modules["ray"].is_initialized()
    return reason_for_ray(config.scaling, given.address, os.environ, asked=given.ray or given.demo, has_joined=joined)


def _recipe_of(path: Path, content: Mapping[str, Any] | None) -> tuple[dict[str, Any], str]:
    """Returns a recipe and its name for messages; without `content`, reads the file and anchors paths at its folder."""
    if content is not None:
        return dict(content), "command line"
    # In a job, a relative storage path is invalid, whatever it is relative to.
    read = anchored(read_yaml(path), shipped(path).absolute().parent, storage=JOB_VARIABLE not in os.environ)
    return read, str(path)


def scope_of(given: TaskArguments) -> ConfigScope:
    """Returns the part of a config that the verb reads; raises ConfigError if the arguments do not determine it."""
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
    """Runs a verb with or without Ray; returns an exit code."""
    # Otherwise, Python spends seconds at exit on traversing half a million objects of these libraries.
    atexit.register(gc.freeze)
    wait_asleep()
    # Imported lazily, so that a config error is reported within a second: torch, transformers and Ray take several
    # seconds to import. The first two are loaded while a local Ray starts.
    if given.keeps_nothing:
        option = "--debug" if given.debug else "--find-lr"
        if given.debug and given.find_lr:
            raise ConfigError("--debug and --find-lr exclude each other: leave out one of them")
        if given.verb != "train":
            raise ConfigError(f"{option} is for a training: leave out --verb {given.verb}")
        show(Stage("imports", LIBRARIES))
        from trainers.pipeline.trials.debug_run import debug  # noqa: PLC0415
        from trainers.pipeline.trials.find_lr import find_lr  # noqa: PLC0415

        return debug(config) if given.debug else find_lr(config)
    if given.verb == "check":
        from trainers.inspection.check_command import check  # noqa: PLC0415
        from trainers.inspection.subject import Subject  # noqa: PLC0415

        subject = Subject(
            config, given.address, elsewhere=given.elsewhere, light=given.light, recordings_s=given.recordings_s
        )
        return check(subject, given.only)
    result_of(Call(given, config, changed), VERBS[given.verb])
    return 0


def result_of(call: Call, verb: Verb[Result]) -> Result:
    """Runs a verb on the engine that its config requires, and returns its result."""
    given, config = call.given, call.config
    if given.verb == "evaluate":
        from trainers.models.sources.run_models import find_model  # noqa: PLC0415

        find_model(str(given.model), config.run.storage_options)
    _early_problems(given, config).refuse(str(given.config or "command line"))
    return run_on_engine(call, verb, _reason_for_ray(given, config))


def call_from_python(given: TaskArguments, verb: Verb[Result]) -> Result:
    """Returns the result of a verb, for a caller in Python; raises Interruption if a signal stopped it."""
    STOP_SIGNAL.reset()
    with STOP_SIGNAL.on_signals():
        resolve_secrets(os.environ)
        return result_of(Call(given, load(given), [*given.sets]), verb)


def load(given: TaskArguments) -> TrainConfig:
    """Returns the config for a verb that is called from Python; raises ConfigError with every problem."""
    config, _ = config_by_hand(given, scope_of(given))
    if isinstance(config, ScriptConfig):
        raise ConfigError("trainer is script: `rayscribe launch` runs programs; name the recipe of a training")
    return config


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
