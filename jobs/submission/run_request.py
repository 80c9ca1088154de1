"""RunRequest: what the command line sends to the service; and the Run that it becomes. Pure."""

from collections.abc import Callable
from typing import Any

from pydantic import BaseModel, ConfigDict, Field

from jobs.model import Run
from jobs.submission.job_spec import JobPart, gang_of
from jobs.submission.literal_secrets import written_secrets
from trainers.config.loader import refuse, refuse_relative_storage, validated
from trainers.config.locations import storage_path_of
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError


class RunRequest(BaseModel):
    """A run that is asked for.

    Attributes:
        config: The whole config, its run named and its `job` included.
        spec_path: The recipe, relative to the package's root.
        overrides: `key=value` texts that make the recipe that config.
        package: SHA-256 of the uploaded zip.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    config: dict[str, Any]
    spec_path: str = Field(max_length=1000)
    overrides: list[str] = Field(max_length=1000)
    package: str = Field(pattern=r"^[0-9a-f]{64}$")


def run_of(run_request: RunRequest, *, uid: str, user: str, address_of: Callable[[JobPart], str], now_s: float) -> Run:
    """The run that a run request becomes.

    Args:
        run_request: What was asked for; whoever sent it, it is validated here.
        uid: Unique for ever.
        user: Who asks.
        address_of: Chooses the cluster.
        now_s: The time.

    Raises:
        ConfigError: one message with every fault.
    """
    config, faults = validated(TrainConfig, run_request.config)
    job, job_faults = validated(JobPart, run_request.config.get("job") or {}, ("job",))
    secrets = [*written_secrets(run_request.config), *written_secrets(run_request.overrides, ("overrides",))]
    refuse([*secrets, *faults, *job_faults], "submission")
    assert config is not None and job is not None
    if config.run.name is None:
        raise ConfigError("run.name: missing; a submitted run has a name (--set run.name=…)")
    refuse_relative_storage(config)
    return Run(
        id=config.run.name,
        uid=uid,
        user=user,
        queue=job.queue,
        priority=job.priority,
        address=address_of(job),
        spec_path=run_request.spec_path,
        overrides=run_request.overrides,
        config={**config.model_dump(mode="json"), "job": job.model_dump(mode="json")},
        package=run_request.package,
        gang=gang_of(config),
        tags=sorted(set(job.tags)),
        depends_on=sorted(set(job.depends_on)),
        max_retries=job.max_retries,
        run_folder=f"{storage_path_of(config)}/{config.run.name}",
        reason="just submitted",
        submitted_s=now_s,
        queued_s=now_s,
        updated_s=now_s,
    )
