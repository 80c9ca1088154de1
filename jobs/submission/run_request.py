"""RunRequest, which the command line sends to the service, and its conversion to a Run. Pure."""

import json
import re
from collections.abc import Callable
from itertools import count, islice
from typing import Annotated, Any

from pydantic import Field, GetCoreSchemaHandler, GetJsonSchemaHandler, TypeAdapter
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema

from jobs.model import Record, Run
from jobs.submission.job_spec import RUN_CONFIGS, AnyRunConfig, JobPart, gang_of, variables_of
from jobs.submission.ray_request import build_request
from runtime_env.secret_arguments import find_literal_secrets
from trainers.config.locations import storage_path_of, unresolved_paths
from trainers.config.schema import trainer_of
from trainers.config.storage_location import VARIABLES_OF_FIELDS, is_absolute, unsupported_url
from trainers.config.validation import MAX_PROBLEMS, refuse, validated
from trainers.errors import ConfigError
from trainers.run_folder.layout import CHECKPOINTS
from trainers.scripts.recipe import resolve_program

# Linux limits a variable and an argument to 128 KiB each. Ray passes the runtime_env as JSON in one variable and one
# argument, with some paths of its own.
MAX_RUNTIME_ENV_BYTES = 120_000
MAX_ATTEMPT = 999_999


class _AsRunConfig:
    """Any JSON object, with the JSON schema of AnyRunConfig; `run_of` validates it, for messages with field and fix."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return handler(source)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        # The schema of a union is a reference to itself, which must be resolved.
        return handler.resolve_ref_schema(handler(TypeAdapter(AnyRunConfig).core_schema))


class RunRequest(Record):
    """Request for a run: its config (with `run.name`; defaults may be left out) and its package's SHA-256."""

    config: Annotated[dict[str, Any], _AsRunConfig()]
    package: str = Field(pattern=r"^[0-9a-f]{64}$")


def run_of(run_request: RunRequest, *, uid: str, user: str, address_of: Callable[[JobPart], str], now_s: float) -> Run:
    """Builds the run of a run request; raises one ConfigError with every problem."""
    # The command line sends programs that are already resolved.
    content = resolve_program(run_request.config, {})
    config, problems = validated(RUN_CONFIGS[trainer_of(content)], content)
    secrets = islice(find_literal_secrets(content), MAX_PROBLEMS)
    refuse([*secrets, *problems], "submission")
    assert config is not None
    if config.run.name is None:
        raise ConfigError("run.name: missing; a submitted run has a name (--set run.name=…)")
    refuse([*unresolved_paths(config, variables_of(config.job)), *_other_endpoints(config)], "submission")
    job = config.job
    run = Run(
        id=config.run.name,
        uid=uid,
        user=user,
        queue=job.queue,
        priority=job.priority,
        address=address_of(job),
        config=config.model_dump(mode="json"),
        package=run_request.package,
        gang=gang_of(config.scaling),
        tags=sorted(set(job.tags)),
        depends_on=sorted(set(job.depends_on)),
        max_retries=job.max_retries,
        run_folder=f"{storage_path_of(config)}/{config.run.name}",
        reason="just submitted",
        submitted_s=now_s,
        queued_s=now_s,
        updated_s=now_s,
    )
    request = build_request(run, MAX_ATTEMPT, package=f"gcs://_ray_pkg_{run.package}.zip", resume="")
    size = len(json.dumps(request.runtime_env))
    if size > MAX_RUNTIME_ENV_BYTES:
        raise ConfigError(
            f"submission: the config makes a runtime_env of {size} bytes, but the limit is {MAX_RUNTIME_ENV_BYTES}: "
            "shorten the largest lists; requirements (job.runtime_env.pip or uv) without hashes are much shorter"
        )
    return run


def branch(run: Run, checkpoint: str, name_exists: Callable[[str], bool]) -> RunRequest:
    """Builds a request for a copy of a queue's run that begins from a checkpoint, see `branched`."""
    config = branched(run, checkpoint, name_exists)
    config["job"] = {**config["job"], "depends_on": [], "address": run.address}
    return RunRequest(config=config, package=run.package)


def branched(run: Run, checkpoint: str, name_exists: Callable[[str], bool]) -> dict[str, Any]:
    """Returns the config of a run that begins from a checkpoint of another run, or from a folder or URL.

    The new run has its own name and folder, so that later results of the other run are not overwritten.

    Raises:
        ConfigError: the checkpoint is a URL that cannot be opened.
    """
    if problem := unsupported_url(checkpoint):
        raise ConfigError(f"--from {checkpoint}: {problem}")
    source = checkpoint if is_absolute(checkpoint) else f"{run.run_folder}/{CHECKPOINTS}/{checkpoint}"
    stem = re.sub(r"-from-\d+$", "", run.id)
    name = next(name for name in (f"{stem}-from-{number}" for number in count(1)) if not name_exists(name))
    return {**run.config, "run": {**run.config["run"], "name": name, "resume": f"from:{source}"}}


def _other_endpoints(config: AnyRunConfig) -> list[str]:
    """Returns a problem for each variable of the job that would move its storage to a server that the service lacks."""
    path = storage_path_of(config)
    fields = next((fields for scheme, fields in VARIABLES_OF_FIELDS.items() if path.startswith(scheme)), {})
    return [
        f"job.runtime_env: {name} would set the server of run.storage_path for the job only: set run.{field} instead"
        for field, names in fields.items()
        for name in names
        if getattr(config.run, field) is None and name in variables_of(config.job)
    ]
