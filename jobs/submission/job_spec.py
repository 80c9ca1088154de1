"""JobSpec: what a user submits: the one YAML, whose `job:` key the service reads and training only carries."""

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Annotated, Any

from pydantic import Field, StringConstraints

from jobs.model import DEFAULT_QUEUE, Gang
from jobs.submission.literal_secrets import written_secrets
from runtime_env.config import RuntimeEnvPart
from trainers.config.loader import (
    PATH_FIELDS,
    apply_overrides,
    override_of,
    parse_override,
    read_yaml,
    refuse,
    refuse_relative_storage,
    validated,
    variables_in,
)
from trainers.config.schema import CPUS_FOR_DATA, NAME, URL, Part, TrainConfig

Name = Annotated[str, StringConstraints(pattern=NAME, max_length=100)]
Tag = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9._:=/-]*$", max_length=60)]
MOST_PRIORITY = 1000


class JobPart(Part):
    """The `job:` key: what the service needs to know to run the config on a cluster."""

    runtime_env: RuntimeEnvPart = Field(RuntimeEnvPart(), description="Code and packages that the job brings along.")
    queue: Name = Field(DEFAULT_QUEUE, description="Queue to wait in; its caps are the service's.")
    priority: int = Field(
        0, ge=-MOST_PRIORITY, le=MOST_PRIORITY, description="Larger goes first within the queue; equals by their time."
    )
    max_retries: int = Field(
        3, ge=0, le=100, description="New attempts after failures that may pass. Lost nodes are not counted."
    )
    depends_on: list[Name] = Field([], description="Runs that must succeed before this one starts.")
    tags: list[Tag] = Field([], max_length=20, description="Free words to find and to account the run by.")
    address: str | None = Field(
        None,
        pattern=URL,
        description="URL of the Ray cluster's dashboard. null: the service's, or RAY_API_SERVER_ADDRESS.",
    )
    stop_grace_s: int = Field(
        120, gt=0, le=3600, description="How long a stopped attempt may take to leave its last checkpoint. Seconds."
    )


@dataclass(frozen=True)
class JobSpec:
    """A recipe, read and validated for submission.

    Attributes:
        config: The config with the run's name settled.
        job: Its `job` key.
        path: The recipe's file.
        overrides: `key=value` texts that turn the file into the config: what the user set, what was resolved here.
    """

    config: TrainConfig
    job: JobPart
    path: Path
    overrides: tuple[str, ...]

    @property
    def run_id(self) -> str:
        """The run's name, by which it is known everywhere."""
        assert self.config.run.name is not None
        return self.config.run.name

    @property
    def gang(self) -> Gang:
        """What the run holds at once: the workers, and the CPUs that Ray Data needs beside them."""
        return gang_of(self.config)


def gang_of(config: TrainConfig) -> Gang:
    """The whole gang's resources; the driver and Ray Train's controller take none."""
    scaling = config.scaling
    return Gang(
        num_workers=scaling.num_workers,
        resources_per_worker=dict(scaling.worker_resources),
        extra={"CPU": CPUS_FOR_DATA},
    )


def load_spec(
    path: Path, sets: Sequence[str], *, environment: Mapping[str, str] | None = None, now: datetime
) -> JobSpec:
    """Reads a recipe and its overrides for submission.

    A path that names a variable, `${SPEECH}/train.csv`, takes its value here if it is set here; otherwise it must be
    one that the job will have, from `job.runtime_env.env_vars` or `secrets`, and is resolved on the node.

    Args:
        path: The YAML file.
        sets: `key=value` overrides.
        environment: Variables of this machine. None: the process's own.
        now: The time that a made-up run name carries.

    Raises:
        ConfigError: one message with every fault.
    """
    here = os.environ if environment is None else environment
    content = apply_overrides(read_yaml(path), [parse_override(text) for text in sets])
    job, faults = validated(JobPart, content.get("job") or {}, ("job",))
    there = {*job.runtime_env.env_vars, *job.runtime_env.secrets} if job is not None else set()
    resolved, missing = _resolve(content, here, there)
    content = apply_overrides(content, [parse_override(text) for text in resolved])
    config, train_faults = validated(TrainConfig, content)
    if job is not None and config is not None and config.run.name in job.depends_on:
        faults.append(f"job.depends_on: {config.run.name} depends on itself: name another run")
    refuse([*missing, *written_secrets(content), *train_faults, *faults], str(path))
    assert config is not None and job is not None
    refuse_relative_storage(config)
    if config.run.name is None:
        name = _made_name(path, now)
        config = config.model_copy(update={"run": config.run.model_copy(update={"name": name})})
        resolved.append(f"run.name={name}")
    return JobSpec(config, job, path, (*sets, *resolved))


def _resolve(content: Mapping[str, Any], here: Mapping[str, str], there: set[str]) -> tuple[list[str], list[str]]:
    resolved, missing = [], []
    for part, field in PATH_FIELDS:
        value = content[part].get(field) if isinstance(content.get(part), dict) else None
        names = variables_in(value) if isinstance(value, str) else []
        unknown = [name for name in names if name not in here and name not in there]
        missing += [
            f"{part}.{field}: {value} names the variable {name}, which is set neither here nor for the job: "
            f"export {name}=…, or give it under job.runtime_env.env_vars"
            for name in unknown
        ]
        if names and not unknown and all(name in here and name not in there for name in names):
            assert isinstance(value, str)
            for name in names:
                value = value.replace(f"${{{name}}}", here[name])
            resolved.append(override_of(f"{part}.{field}", value))
    return resolved, missing


def _made_name(path: Path, now: datetime) -> str:
    stem = re.sub(r"[^A-Za-z0-9.-]+", "-", path.stem).strip("-.") or "run"
    return f"{stem}-{now:%Y%m%d-%H%M%S}"
