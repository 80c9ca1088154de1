"""Run → SubmitRequest, the request to Ray for one attempt. Pure and printable."""

import shlex
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Self

from jobs.model import Gang, Progress, Run, submission_id_of
from jobs.submission.job_spec import JobPart
from runtime_env.build import build_runtime_env, wrap_entrypoint
from runtime_env.own_code import OWN_ENTRY
from runtime_env.tree import ENTRY
from trainers.config.family_table import part_for
from trainers.config.parts.model_part import SizeEstimate
from trainers.config.parts.run_part import BYTES_PER_NUMBER, BYTES_PER_WEIGHT
from trainers.config.submitted import CHECKPOINT_VARIABLE, CONFIG_VARIABLE, GROWTH_VARIABLE, config_text, growth_text

METADATA_UID = "rayscribe_run_uid"
# Among Ray's logs, on each node that installs an attempt's packages.
SETUP_LOG = "runtime_env_setup-{submission_id}.log"
# Of the grace to store a last checkpoint.
LEAST_S, MOST_S = 120, 3600
# What an unmodified program leaves, which may be of any size.
STORING_S = 60
# Of a file server or a bucket, until an attempt has measured its own.
ASSUMED_BYTES_PER_S = 50e6
# The last checkpoint is stored after the one before it, and was written to the node's own disk first.
CHECKPOINTS = 3


@dataclass(frozen=True)
class SubmitRequest:
    """One attempt, as Ray's Jobs API takes it.

    Attributes:
        submission_id: Derived from run and attempt, so that a repeated request starts it once.
        runtime_env: Code, packages and variables; secrets only as references.
        resume: What it starts from, as text.
    """

    submission_id: str
    address: str
    entrypoint: str
    runtime_env: Mapping[str, Any]
    metadata: Mapping[str, str]
    gang: Gang
    run_folder: str
    resume: str

    def growing_to(self, growth: Mapping[str, float]) -> Self:
        """The same on a cluster whose autoscaler may add nodes up to `growth`, of which the job is told."""
        if not growth:
            return self
        variables = {GROWTH_VARIABLE: growth_text(growth), **self.runtime_env.get("env_vars", {})}
        return replace(self, runtime_env={**self.runtime_env, "env_vars": variables})

    def content(self) -> dict[str, Any]:
        return {
            "submission_id": self.submission_id,
            "address": self.address,
            "entrypoint": self.entrypoint,
            "runtime_env": dict(self.runtime_env),
            "metadata": dict(self.metadata),
            "resources": {
                "num_workers": self.gang.num_workers,
                "resources_per_worker": self.gang.resources_per_worker,
                "extra": self.gang.extra,
                "gang": self.gang.total,
            },
            "storage": {"run_folder": self.run_folder},
            "resume": self.resume,
        }


def build_request(
    run: Run,
    attempt: int,
    *,
    package: str,
    resume: str,
    checkpoint: str | None = None,
    code: str | None = None,
) -> SubmitRequest:
    """Builds what Ray is asked for an attempt.

    A `checkpoint` that the run is known to have must be there for the attempt to start. A run that does not start with
    a task.py of its package has a `code`, Rayscribe's own as a zip; "" where the nodes have it.
    """
    job = JobPart.model_validate(run.config["job"])
    arguments = [*entry_words(own_code=code is not None), "--attempt", str(attempt)]
    # Ray would answer the very same environment with a failure that it remembers.
    variables = {"RAYSCRIBE_ATTEMPT": str(attempt), CONFIG_VARIABLE: config_text(run.config)}
    if checkpoint is not None:
        variables[CHECKPOINT_VARIABLE] = checkpoint
    submission_id = submission_id_of(run.id, attempt)
    return SubmitRequest(
        submission_id=submission_id,
        address=run.address,
        entrypoint=wrap_entrypoint(job.runtime_env, shlex.join(arguments)),
        runtime_env=build_runtime_env(
            job.runtime_env,
            package=package,
            stop_grace_s=stop_grace_s(run.config, run.progress),
            environment=variables,
            setup_log=SETUP_LOG.format(submission_id=submission_id),
            code=code,
        ),
        metadata={
            # The column of names in the dashboard's list of jobs.
            "job_name": run.id,
            "rayscribe_run": run.id,
            METADATA_UID: run.uid,
            "rayscribe_attempt": str(attempt),
            "rayscribe_user": run.user,
        },
        gang=run.gang,
        run_folder=run.run_folder,
        resume=resume,
    )


def entry_words(*, own_code: bool) -> list[str]:
    """The words of a command line with which a driver starts."""
    return ["python", *(OWN_ENTRY if own_code else (ENTRY,))]


def stop_grace_s(config: Mapping[str, Any], progress: Progress | None) -> int:
    """Seconds that a stopped attempt has: `job.stop_grace_s`, or by how long its last checkpoint took, or would."""
    given = config["job"].get("stop_grace_s")
    if given is not None:
        return int(given)
    if config.get("trainer") == "script":
        # The program's own, and the time to store what it then leaves.
        return int(config["script"]["stop_grace_s"]) + STORING_S
    measured = progress.checkpoint_s if progress is not None else None
    if measured is None:
        measured = checkpoint_bytes_of(config) / ASSUMED_BYTES_PER_S
    return round(min(max(LEAST_S, CHECKPOINTS * measured), MOST_S))


def checkpoint_bytes_of(config: Mapping[str, Any]) -> float:
    """About how large a checkpoint is at most; 0 where the model's name does not say it.

    A config of a version without `adapt` or `strategy` trains all weights by DDP.
    """
    (weights, width), adapt = size_of(config["model"]), config.get("adapt", {})
    if config.get("strategy", {}).get("name", "ddp") != "ddp":
        # Shards of the weights, and the optimizer's own copy of them, in addition to what each checkpoint holds.
        return weights * (BYTES_PER_WEIGHT + 2 * BYTES_PER_NUMBER)
    if adapt.get("method") == "lora":
        # r × (m + n) weights for an m × n layer with n ≥ m ≥ width: 2 × r / width of the layer's at most.
        share: float = 2 * adapt["r"] / max(1, width)
        return weights * min(1.0, share) * BYTES_PER_WEIGHT
    return weights * BYTES_PER_WEIGHT


def size_of(model: Mapping[str, Any]) -> SizeEstimate:
    """How large the model of a run is, as far as its config tells."""
    part, fields = part_for(model)
    return part.model_construct(**fields).size
