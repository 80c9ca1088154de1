"""Converts RuntimeEnvPart to Ray's runtime_env, and builds the options of pip and uv, whoever starts them.

Pure; secrets are in it only as references. If a cluster allows none of Ray's pip environments, install_and_run.sh
wraps the entrypoint: inside, RAYSCRIBE_PY_EXECUTABLE has the value for Ray's `py_executable`, so that the workers of
all nodes start through the script, too, and have the same packages. The script at the repository's root, for Ray's
own command, is the same for requirements.txt: see `root_files`.
"""

import hashlib
import json
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from runtime_env.config import RuntimeEnvPart
from runtime_env.requirements import ALL_WHEELS
from trainers.errors import ConfigError

SECRETS = "RAYSCRIBE_SECRETS"
DOLLAR = "RAYSCRIBE_DOLLAR"


def build_runtime_env(
    part: RuntimeEnvPart,
    *,
    package: str,
    stop_grace_s: int,
    environment: Mapping[str, str] | None = None,
    setup_log: str | None = None,
    code: str | None = None,
) -> dict[str, Any]:
    """Builds the runtime_env for `JobSubmissionClient.submit_job`.

    Args:
        part: The key `job.runtime_env`, its requirements read (`freeze`).
        package: Path of the zip with the working directory on this machine, or a URI of it. Not sent to an image.
        stop_grace_s: Seconds that the job may continue after it was asked to stop.
        environment: Further plain variables of the driver and all workers. Ray remembers for ten minutes that an
            environment could not be created, and fails an identical one without a new try: pass a variable that
            differs from attempt to attempt.
        setup_log: Name of a file among Ray's logs on each node, for the output of pip or uv.
        code: Path or URI of another zip, with Python packages that each node can import. Not sent to an image, either.
    """
    runtime_env: dict[str, Any] = {}
    if part.image_uri is not None:
        runtime_env["image_uri"] = part.image_uri
    else:
        runtime_env["working_dir"] = package
        if code:
            runtime_env["py_modules"] = [code]
    variables = _variables(part, stop_grace_s) | dict(environment or {})
    if part.tool is not None and part.install == "runtime_env":
        lines = requirement_lines(part)
        if part.tool == "pip":
            runtime_env["pip"] = {"packages": lines, "pip_install_options": install_options(part)}
        else:
            # For uv, Ray replaces all $NAME in a line by their values and writes it to a file on the node. Here that
            # yields ${NAME} again, which uv then replaces itself. For pip, Ray writes lines unchanged.
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
    if part.tool is not None and part.install == "runtime_env":
        # Ray starts each three times, and the service another attempt. Timeouts are kept: 15 s of pip, 30 s of uv, in
        # which an index that fetches the file from elsewhere must begin its response. Ray installs uv itself with
        # pip.
        variables |= {"PIP_RETRIES": "1"} | ({"UV_HTTP_RETRIES": "1"} if part.tool == "uv" else {})
    variables |= part.env_vars
    # Read by Ray's JobSupervisor, which sends the signal to the entrypoint and all its children, and kills them after
    # this time, which must be an integer.
    variables |= {"RAY_JOB_STOP_SIGNAL": "SIGTERM", "RAY_JOB_STOP_WAIT_TIME_S": str(stop_grace_s)}
    if part.secrets:
        references = {name: ref.model_dump(exclude_none=True) for name, ref in sorted(part.secrets.items())}
        variables[SECRETS] = json.dumps(references, sort_keys=True)
    return variables


def requirement_lines(part: RuntimeEnvPart) -> list[str]:
    """Returns the lines of the requirements file, options for the indexes first.

    Raises:
        ConfigError: the part still names a file, which only `freeze` reads.
    """
    assert part.tool is not None
    if not isinstance(part.packages, list):
        raise ConfigError(
            f"job.runtime_env.{part.tool}: {part.packages} was not read when the run was submitted: submit it again"
        )
    lines = [f"--index-url {part.index_url}"] if part.index_url else []
    lines += [f"--extra-index-url {url}" for url in part.extra_index_urls]
    if part.tool == "pip" and part.index_references:
        # To build from source, pip starts another pip with the index URLs, credentials included, in its command line.
        lines.append(ALL_WHEELS)
    return [*lines, *part.packages]


def install_options(part: RuntimeEnvPart) -> list[str]:
    """Returns options of `pip install` or `uv pip install`, in place of Ray's own, which disable the cache."""
    if part.tool == "uv":
        return [] if part.cache else ["--no-cache"]
    options = ["--disable-pip-version-check", "--no-input"]
    if part.index_references:
        # pip prints the user's name, though not the password, of each index that it reads.
        options.append("--quiet")
    return options if part.cache else [*options, "--no-cache-dir"]


SCRIPT = "install_and_run.sh"
# Exit code of the script if it could not install; no entrypoint of ours uses it.
EXIT_CODE = 12
TEMPLATE = "install_and_run.template.sh"


def script_files(part: RuntimeEnvPart) -> dict[str, bytes]:
    """Returns files to add to the package: path → content. Empty if no script installs anything."""
    return {SCRIPT: render(part).encode()} if _by_script(part) else {}


def wrap_entrypoint(part: RuntimeEnvPart, entrypoint: str) -> str:
    """Returns the entrypoint, wrapped in the script if that installs packages."""
    return f"bash {SCRIPT} {entrypoint}" if _by_script(part) else entrypoint


def render(part: RuntimeEnvPart) -> str:
    """Returns the script's text with the requirements, but no credentials: pip and uv read those on the node."""
    lines, options = requirement_lines(part), install_options(part)
    key = hashlib.sha256("\n".join([str(part.tool), *options, *lines]).encode()).hexdigest()[:16]
    text = _template()
    values = {
        "@KEY@": key,
        "@TOOL@": str(part.tool),
        "@OPTIONS@": shlex.join(options),
        "@EXIT_CODE@": str(EXIT_CODE),
        "@REQUIREMENTS@": "\n".join(lines),
    }
    for name, value in values.items():
        text = text.replace(name, value)
    return text


def is_install_script(path: Path) -> bool:
    """Returns True if the file was written by `render`, for any requirements."""
    head = _template().partition("key=")[0].encode()
    return path.is_file() and path.read_bytes().startswith(head)


def _template() -> str:
    text = Path(__file__).with_name(TEMPLATE).read_text(encoding="utf-8")
    return text.replace("@SCRIPT@", SCRIPT)


def _by_script(part: RuntimeEnvPart) -> bool:
    return part.install == "script" and part.tool is not None
