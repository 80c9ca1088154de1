"""JobSpec: a recipe resolved for submission; the service reads its `job:` key, which training ignores."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, StringConstraints, model_validator

from jobs.addresses import CLUSTER_SCHEME
from jobs.model import DEFAULT_QUEUE, Gang
from runtime_env.config import RuntimeEnvPart
from runtime_env.secret_arguments import find_literal_secrets
from runtime_env.tree import ENTRY, find_root
from trainers.config.loader import read_ds_config, read_yaml, shipped, with_run_name
from trainers.config.locations import (
    anchored,
    anchored_override,
    default_storage_path,
    expand_home,
    field_of,
    path_values,
    set_path,
    unresolved_paths,
    variables_in,
    with_variables,
)
from trainers.config.overrides import Override, apply_overrides, copy_levels, parse_override, value_at
from trainers.config.parts.data_location import path_in
from trainers.config.parts.part import SHIPPED_FIELDS, STORAGE_FIELDS, URL, Part
from trainers.config.parts.run_part import NAME
from trainers.config.parts.scaling_part import CPUS_FOR_DATA, ScalingPart
from trainers.config.schema import ScriptConfig, TrainConfig, trainer_of
from trainers.config.storage_location import in_home, is_absolute
from trainers.config.validation import examined, refuse, validated
from trainers.errors import ConfigError
from trainers.scripts.recipe import resolve_program

Name = Annotated[str, StringConstraints(pattern=NAME, max_length=100)]
Tag = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:=/-]*$", max_length=60)]
MAX_PRIORITY = 1000
NO_CLUSTER = (
    "no Ray cluster is named: give --address http://…:8265, --cluster NAME, job.address in the recipe, or "
    "RAY_API_SERVER_ADDRESS; `rayscribe cluster status` lists those that this machine has started, and "
    "`rayscribe cluster up --local` starts one"
)


Config = TypeVar("Config", "RunConfig", "ScriptRunConfig")


class JobPart(Part):
    """The `job:` key: what the service needs to run the config on a cluster."""

    runtime_env: RuntimeEnvPart = Field(RuntimeEnvPart(), description="Code and packages of the job.")
    queue: Name = Field(DEFAULT_QUEUE, description="Queue to wait in; the service defines its limits.")
    priority: int = Field(
        0,
        ge=-MAX_PRIORITY,
        le=MAX_PRIORITY,
        description="The largest starts first within the queue; runs of equal priority, by time of submission.",
    )
    max_retries: int = Field(
        3, ge=0, le=100, description="New attempts after failures that may be transient. Lost nodes are not counted."
    )
    depends_on: list[Name] = Field([], description="Runs that must succeed before this run starts.")
    tags: list[Tag] = Field([], max_length=20, description="Free text to filter and account runs by.")
    address: str | None = Field(
        None,
        pattern=rf"{URL}|^{CLUSTER_SCHEME}[A-Za-z0-9._-]+$",
        description="URL of the Ray cluster's dashboard, or cluster://NAME, started by `rayscribe cluster up`. null: "
        "the service's default, or RAY_API_SERVER_ADDRESS, RAY_ADDRESS, or the only cluster that was started.",
    )
    stop_grace_s: int | None = Field(
        None,
        gt=0,
        le=3600,
        description="How long a stopped attempt may take to save its last checkpoint. Seconds. null: estimated from "
        "the size of a checkpoint, or once measured, from the time of storing one; at least 120. For a program: a "
        "minute more than script.stop_grace_s, which it must exceed.",
    )


def _refuse_itself(config: Config) -> Config:
    """Returns the config of a submitted run; raises ValueError if the run depends on itself."""
    if config.run.name is not None and config.run.name in config.job.depends_on:
        raise ValueError(f"job.depends_on: {config.run.name} depends on itself: leave it out")
    return config


class RunConfig(TrainConfig):
    """The config of a submitted run: everything that training reads, and `job`, which the service reads."""

    job: JobPart = JobPart()  # type: ignore[assignment]  # TrainConfig keeps `job` as plain data
    _waits_for_others = model_validator(mode="after")(_refuse_itself)


class ScriptRunConfig(ScriptConfig):
    """The config of a submitted run of an unmodified program."""

    job: JobPart = JobPart()  # type: ignore[assignment]
    _waits_for_others = model_validator(mode="after")(_refuse_itself)

    @model_validator(mode="after")
    def _program_has_its_grace(self) -> Self:
        given, own = self.job.stop_grace_s, self.script.stop_grace_s
        if given is not None and given <= own:
            raise ValueError(
                f"job.stop_grace_s is {given}, and script.stop_grace_s is {own}: the job would be killed before the "
                "program has saved and its files are stored; leave job.stop_grace_s out, or set it to more"
            )
        return self


AnyRunConfig = RunConfig | ScriptRunConfig
RUN_CONFIGS: Mapping[str, type[RunConfig] | type[ScriptRunConfig]] = {
    "huggingface": RunConfig,
    "script": ScriptRunConfig,
}


def gang_of(scaling: ScalingPart) -> Gang:
    """Returns the resources of a run: workers (the largest number, if elastic) and CPUs for Ray Data.

    The driver and Ray Train's controller reserve none.
    """
    return Gang(
        num_workers=scaling.max_workers,
        resources_per_worker=dict(scaling.worker_resources),
        extra={"CPU": CPUS_FOR_DATA},
        min_workers=scaling.min_workers if scaling.is_elastic else None,
    )


def variables_of(job: JobPart) -> set[str]:
    """Returns the names of variables that a job sets on each node."""
    return {*job.runtime_env.env_vars, *job.runtime_env.secrets}


@dataclass(frozen=True)
class JobSpec:
    """A recipe, resolved for submission: with a name, and paths that are valid on every machine.

    Attributes:
        overrides: Overrides of the command line, for the record.
        root: The folder that is packaged with the run; paths inside it are relative to it.
    """

    config: AnyRunConfig
    overrides: tuple[str, ...]
    root: Path

    @property
    def job(self) -> JobPart:
        return self.config.job

    @property
    def is_script(self) -> bool:
        """True if the run is an unmodified program, whose package does not need Rayscribe's code."""
        return isinstance(self.config, ScriptRunConfig)

    @property
    def has_entry(self) -> bool:
        """True if the run starts with a task.py in the packaged folder, as in a clone of the repository.

        Otherwise it starts with Rayscribe's own code, which is uploaded as well.
        """
        return not self.is_script and (self.root / ENTRY).is_file()


def load_spec(
    path: Path,
    overrides: Sequence[str],
    *,
    recipe: Mapping[str, Any] | None = None,
    here: Path | None = None,
    environment: Mapping[str, str] | None = None,
    now: datetime,
    is_local: Callable[[str | None], bool] = lambda address: False,
    say: Callable[[str], None] | None = None,
) -> JobSpec:
    """Resolves a recipe and its `key=value` overrides to the config that is submitted.

    The recipe is read from `path`, unless `recipe` is given; `path` also names a run without a name, and appears in
    messages. Relative paths in the file are relative to its folder; those in overrides and `recipe` to `here`, by
    default the current folder.
    A variable in a path, e.g. `${SPEECH}/train.csv`, is resolved here if it is set here; otherwise the job must have
    the variable, from `job.runtime_env.env_vars` or `secrets`, and the node resolves the path. A generated run name
    contains the time. If `is_local` returns True for the cluster's address (None if the recipe has none), `~` and the
    default storage path mean this user's home folder, and a relative storage path means a folder here; it is called
    only if needed. `say` receives notes on a program's command line, if given.

    Raises:
        ConfigError: the recipe is not valid; the message has every problem.
    """
    known = os.environ if environment is None else environment
    here = base = here or Path.cwd()
    if recipe is None:
        recipe, base = read_yaml(path), shipped(path).absolute().parent
    given = [parse_override(text) for text in overrides]
    content, root = _anchored(recipe, given, base, here, is_local)
    content, unread = read_ds_config(resolve_program(content, known, say, base=root))
    content, missing = _resolve_variables(content, known)
    kind = RUN_CONFIGS[trainer_of(content)]
    config, problems = examined(kind, content)
    if problems and not missing and isinstance(config, RunConfig):
        problems += _further_problems(config, root)
    secrets = [*find_literal_secrets(content), *find_literal_secrets(overrides, ("overrides",))]
    refuse([*unread, *missing, *secrets, *problems], str(path))
    assert config is not None
    if isinstance(config, RunConfig) and config.data.ship:
        config = RunConfig.model_validate(expand_home(config.model_dump(mode="json"), SHIPPED_FIELDS))
    paths = [path_in(value) for _, _, value in path_values(config.model_dump())]
    is_in_home = config.run.storage_path is None or any(path.startswith("~") for path in paths)
    if is_in_home and is_local(config.job.address):
        content = expand_home(config.model_dump(mode="json"))
        content["run"]["storage_path"] = content["run"]["storage_path"] or default_storage_path()
        config = kind.model_validate(content)
    refuse(unresolved_paths(config, variables_of(config.job)), str(path))
    return JobSpec(with_run_name(config, path, now), tuple(overrides), root)


def _further_problems(config: RunConfig, root: Path) -> Iterator[str]:
    """Yields problems that preflight would find next, if they can be found at once."""
    try:
        config.model.refuse_early()
    except ConfigError as error:
        yield str(error)
    missing = (missing_in_package(*each, root) for each in files_in_package(config, shipped=True).items())
    yield from filter(None, missing)


def files_in_package(config: RunConfig, *, shipped: bool) -> dict[str, str]:
    """Returns fields and paths of files relative to the packaged folder; with `shipped`, also those of `data.ship`."""
    fields = {*(SHIPPED_FIELDS if shipped else ()), *(("decode", name) for name in config.decode.files)}
    values = path_values(config.model_dump())
    paths = {f"{part}.{name}": path_in(path) for part, name, path in values if (part, field_of(name)) in fields}
    return {
        field: path
        for field, path in paths.items()
        if not is_absolute(path) and not path.startswith(("~", "$")) and "://" not in path
    }


def missing_in_package(field: str, path: str, root: Path) -> str | None:
    """Returns the problem of a field whose file is not in the packaged folder; None if the file exists."""
    return None if (root / path).exists() else f"{field}: {path}: no such file in {root}; fix it (--set {field}=…)"


def _anchored(
    recipe: Mapping[str, Any],
    overrides: Sequence[Override],
    base: Path,
    here: Path,
    is_local: Callable[[str | None], bool],
) -> tuple[dict[str, Any], Path]:
    """Returns a recipe with overrides, and the packaged folder; paths are absolute or relative to that folder.

    A relative storage path is kept, to be rejected later, unless the cluster is local.
    """

    def applied(root: Path | None, *, storage: bool) -> dict[str, Any]:
        given = [anchored_override(each, here, root, storage=storage) for each in overrides]
        return apply_overrides(anchored(recipe, base, root, storage=storage), given)

    absolute = applied(None, storage=True)
    folder = value_at(absolute, ("job", "runtime_env", "working_dir"))
    start = in_home(folder) if isinstance(folder, str) else here
    # A program starts in the packaged folder.
    root = start.resolve() if trainer_of(absolute) == "script" else find_root(start)
    content = applied(root, storage=False)
    address = value_at(content, ("job", "address"))
    if _storage_in(content) != _storage_in(absolute) and is_local(address if isinstance(address, str) else None):
        content = applied(root, storage=True)
    return content, root


def _storage_in(content: Mapping[str, Any]) -> list[tuple[str, str, str]]:
    return [each for each in path_values(content) if each[:2] in STORAGE_FIELDS]


def _resolve_variables(content: dict[str, Any], environment: Mapping[str, str]) -> tuple[dict[str, Any], list[str]]:
    """Replaces variables that are known here; leaves paths with variables of the job to the node."""
    job, _ = validated(JobPart, content.get("job") or {})
    brought = variables_of(job) if job is not None else set()
    missing, resolved = [], copy_levels(content)
    for part, field, value in path_values(content):
        names = variables_in(value)
        missing += [
            f"{part}.{field}: {value} names the variable {name}, which is set neither here nor for the job: "
            f"export {name}=…, or set it in job.runtime_env.env_vars"
            for name in names
            if name not in environment and name not in brought
        ]
        if names and brought.isdisjoint(names):
            set_path(resolved, part, field, with_variables(value, environment))
    return resolved, missing
