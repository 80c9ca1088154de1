"""Builds SubmitRequest, the request to Ray for one attempt of a run. Pure and printable."""

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
# Name of the log, among Ray's logs on each node, of installing an attempt's packages.
SETUP_LOG = "runtime_env_setup-{submission_id}.log"
# Bounds of the time to store a last checkpoint. Seconds.
LEAST_S, MOST_S = 120, 3600
# Time to store the output of an unmodified program, which may have any size. Seconds.
STORING_S = 60
# Assumed rate of a file server or a bucket, until an attempt has measured its own.
ASSUMED_BYTES_PER_S = 50e6
# A stop may need three writes: the previous checkpoint, and the last one to the node's disk and to the storage.
CHECKPOINTS = 3


@dataclass(frozen=True)
class SubmitRequest:
    """One attempt, in the form of Ray's Jobs API.

    Attributes:
        submission_id: Derived from run and attempt, so that a repeated request starts the attempt only once.
        runtime_env: Code, packages and variables; secrets only as references.
        resume: Text on the checkpoint or weights from which it starts.
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
        """Returns the request with a variable that tells the job to what size (`growth`) the cluster can grow."""
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
    """Builds the request to Ray for an attempt.

    The attempt starts only if `checkpoint`, if given, exists. `code` is the zip of Rayscribe's own code, for a run that
    does not start with its package's task.py; "" if the nodes have the code.
    """
    job = JobPart.model_validate(run.config["job"])
    arguments = [*entry_words(own_code=code is not None), "--attempt", str(attempt)]
    # Different for each attempt, since Ray caches the failure of an environment, and repeats it for an identical one.
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
            # Shown as the name in the dashboard's list of jobs.
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
    """Returns the start of a driver's command line."""
    return ["python", *(OWN_ENTRY if own_code else (ENTRY,))]


def stop_grace_s(config: Mapping[str, Any], progress: Progress | None) -> int:
    """Returns the seconds until a stopped attempt is killed: `job.stop_grace_s`, or an estimate from its checkpoint."""
    given = config["job"].get("stop_grace_s")
    if given is not None:
        return int(given)
    if config.get("trainer") == "script":
        # The program's own time, and the time to store its output afterwards.
        return int(config["script"]["stop_grace_s"]) + STORING_S
    measured = progress.checkpoint_s if progress is not None else None
    if measured is None:
        measured = checkpoint_bytes_of(config) / ASSUMED_BYTES_PER_S
    return round(min(max(LEAST_S, CHECKPOINTS * measured), MOST_S))


def checkpoint_bytes_of(config: Mapping[str, Any]) -> float:
    """Returns an approximate upper bound of a checkpoint's size; 0 if the model's size is not known."""
    (weights, width), adapt = size_of(config["model"]), config["adapt"]
    if config["strategy"]["name"] != "ddp":
        # Shards of the weights, and the optimizer's own copy of them, in addition to the content of each checkpoint.
        return weights * (BYTES_PER_WEIGHT + 2 * BYTES_PER_NUMBER)
    if adapt["method"] == "lora":
        # r × (m + n) weights for an m × n layer with n ≥ m ≥ width, at most 2 × r / width of the layer's weights.
        share: float = 2 * adapt["r"] / max(1, width)
        return weights * min(1.0, share) * BYTES_PER_WEIGHT
    return weights * BYTES_PER_WEIGHT


def size_of(model: Mapping[str, Any]) -> SizeEstimate:
    """Returns the size of a run's model, estimated from its config."""
    part, fields = part_for(model)
    return part.model_construct(**fields).size
