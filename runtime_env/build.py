"""RuntimeEnvPart → the runtime_env that Ray gets. Pure; secrets are in it only as references."""

import json
from collections.abc import Mapping
from typing import Any

from runtime_env.config import RuntimeEnvPart
from runtime_env.installing import fewer_retries, install_options, requirement_lines

SECRETS = "RAYSCRIBE_SECRETS"
DOLLAR = "RAYSCRIBE_DOLLAR"


def build_runtime_env(
    part: RuntimeEnvPart,
    *,
    package: str,
    stop_grace_s: int,
    environment: Mapping[str, str] | None = None,
    setup_log: str | None = None,
) -> dict[str, Any]:
    """Builds the runtime_env for `JobSubmissionClient.submit_job`.

    Args:
        part: The key `job.runtime_env`, its requirements read (`freeze`).
        package: Path of the zip with the working directory on this machine, or a URI of it. Not sent to an image.
        stop_grace_s: How long the job may go on after it was asked to stop.
        environment: Further plain variables of the driver and all workers. Ray remembers for ten minutes that an
            environment could not be made, and answers the very same one with the same failure without a new attempt:
            give one that differs from attempt to attempt.
        setup_log: Name of a file among Ray's logs on each node, for what pip or uv prints there.
    """
    runtime_env: dict[str, Any] = {}
    if part.image_uri is not None:
        runtime_env["image_uri"] = part.image_uri
    else:
        runtime_env["working_dir"] = package
    variables = _variables(part, stop_grace_s) | dict(environment or {})
    if part.tool is not None and part.install == "runtime_env":
        lines = requirement_lines(part)
        if part.tool == "pip":
            runtime_env["pip"] = {"packages": lines, "pip_install_options": install_options(part)}
        else:
            # Ray writes a line for uv with the values of all $NAME into a file on the node. What it writes here is
            # ${NAME} again, which uv then replaces itself. For pip, Ray writes lines as they are.
            packages = [line.replace("$", f"${{{DOLLAR}}}") for line in lines]
            runtime_env["uv"] = {"packages": packages, "uv_pip_install_options": install_options(part)}
            if packages != lines:
                variables[DOLLAR] = "$"
    runtime_env["env_vars"] = dict(sorted(variables.items()))
    runtime_env["config"] = {"setup_timeout_seconds": part.setup_timeout_s}
    if setup_log is not None and {"pip", "uv"} & runtime_env.keys():
        runtime_env["config"]["log_files"] = [setup_log]
    return runtime_env


def _variables(part: RuntimeEnvPart, stop_grace_s: int) -> dict[str, str]:
    variables = {"PYTHONUNBUFFERED": "1", "RAY_TRAIN_ENABLE_STATE_TRACKING": "1"}
    variables |= fewer_retries(part) | part.env_vars
    # Read by Ray's JobSupervisor, which sends the signal to the entrypoint and all its children, and kills them after
    # the time. The time must be a whole number.
    variables |= {"RAY_JOB_STOP_SIGNAL": "SIGTERM", "RAY_JOB_STOP_WAIT_TIME_S": str(stop_grace_s)}
    if part.secrets:
        references = {name: ref.model_dump(exclude_none=True) for name, ref in sorted(part.secrets.items())}
        variables[SECRETS] = json.dumps(references, sort_keys=True)
    return variables
