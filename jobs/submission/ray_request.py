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
from trainers.config.submitted import CHECKPOINT_VARIABLE, CONFIG_VARIABLE, GROWTH_VARIABLE, config_text, growth_text

METADATA_UID = "rayscribe_run_uid"
# Bounds of the time to store a last checkpoint. Seconds.
LEAST_S, MOST_S = 120, 3600
# Until an attempt has measured how long storing a checkpoint takes. Seconds.
UNMEASURED_S = 600
# Time to store the output of an unmodified program, which may have any size. Seconds.
STORING_S = 60
# The last checkpoint is stored after the one before it, and is written to the node's own disk first.
CHECKPOINTS = 3


@dataclass(frozen=True)
class SubmitRequest:
    """One attempt, as Ray's Jobs API accepts it.

    Attributes:
        submission_id: Derived from run and attempt, so that a repeated request starts it once.
        runtime_env: Code, packages and variables; secrets only as references.
        resume: Describes what it starts from.
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
        """Returns the request for a cluster whose autoscaler may add nodes up to `growth`, which the job reads."""
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

    A `checkpoint` that the run is known to have must exist for the attempt to start. A run that does not start with a
    task.py of its package has a `code`, Rayscribe's own as a zip.
    """
    job = JobPart.model_validate(run.config["job"])
    arguments = [*entry_words(own_code=code is not None), "--attempt", str(attempt)]
    # Differs per attempt: Ray remembers the failure of an environment, and repeats it for an identical one.
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
    """Returns the seconds that a stopped attempt has: `job.stop_grace_s`, or by what storing a checkpoint took."""
    given = config["job"].get("stop_grace_s")
    if given is not None:
        return int(given)
    if config.get("trainer") == "script":
        # The program's own time, and the time to store its output afterwards.
        return int(config["script"]["stop_grace_s"]) + STORING_S
    if progress is None or progress.checkpoint_s is None:
        return UNMEASURED_S
    return round(min(max(LEAST_S, CHECKPOINTS * progress.checkpoint_s), MOST_S))
