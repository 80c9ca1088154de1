"""Reads and completes the requirements of a job at submission; builds Ray's runtime_env, with options of pip and uv.

Only `freeze` reads files; secrets are in a runtime_env only as references. If a cluster does not allow Ray's pip
environments, install_and_run.sh wraps the entrypoint. In it, RAYSCRIBE_PY_EXECUTABLE is the value for Ray's
`py_executable`, so that the workers of all nodes also start through the script, and have the same packages. The script
at the repository's root, for Ray's own command, is the same for requirements.txt, see `root_files`.
"""

import hashlib
import json
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path, PurePosixPath
from typing import Any

from pydantic import ValidationError

from runtime_env.config import RuntimeEnvPart
from runtime_env.requirements import ALL_WHEELS, SOURCE_ONLY, canonical, included_file, logical_lines, named_package
from trainers.config.optional_packages import OptionalPackage
from trainers.errors import ConfigError

SECRETS = "RAYSCRIBE_SECRETS"
DOLLAR = "RAYSCRIBE_DOLLAR"
MAX_BYTES = 4 * 1024**2
MAX_DEPTH = 20
LOCKS_OF_OTHER_FORMATS = (".toml", ".lock")


def freeze(part: RuntimeEnvPart, root: Path) -> RuntimeEnvPart:
    """Returns the part with the lines of its requirements file, or lock in the same format, instead of the name.

    Raises:
        ConfigError: a file is missing or is not a requirements file, or a line in it is not supported.
    """
    if not isinstance(part.packages, str):
        return part
    assert part.tool is not None
    field, name = f"job.runtime_env.{part.tool}", part.packages
    if PurePosixPath(name).suffix in LOCKS_OF_OTHER_FORMATS:
        raise ConfigError(
            f"{field}: {name} is not a list of requirements; make one, e.g. "
            "uv export --format requirements-txt > requirements.txt"
        )
    lines = list(dict.fromkeys(_read(root.resolve(), root / name, field, ())))
    if not lines:
        raise ConfigError(f"{field}: {name} names no package: name some in it, or set {field}: null")
    try:
        return RuntimeEnvPart.model_validate({**part.model_dump(), part.tool: lines})
    except ValidationError as error:
        reasons = "; ".join(str(item["msg"]).removeprefix("Value error, ") for item in error.errors())
        raise ConfigError(f"{field}: {name}: {reasons}") from None


def _read(root: Path, path: Path, field: str, above: tuple[Path, ...]) -> list[str]:
    real = path.resolve()
    if not real.is_relative_to(root):
        raise ConfigError(
            f"{field}: {path} is outside of the folder that is packaged with the job, {root}: name a file in it"
        )
    if real in above or len(above) > MAX_DEPTH:
        raise ConfigError(f"{field}: {path} includes itself: remove one of the lines -r")
    try:
        if real.stat().st_size > MAX_BYTES:
            raise ConfigError(f"{field}: {path} has more than {MAX_BYTES} bytes: name a list of requirements")
        text = real.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise ConfigError(f"{field}: {path}: no such file; paths in a recipe are relative to its folder") from None
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"{field}: {path} cannot be read as text: {error}") from None
    lines: list[str] = []
    for line in logical_lines(text):
        included = included_file(line)
        lines += [line] if included is None else _read(root, path.parent / included, field, (*above, real))
    return lines


def with_needed_packages(
    part: RuntimeEnvPart, needs: Sequence[OptionalPackage], pins: Mapping[str, str]
) -> RuntimeEnvPart:
    """Adds missing packages that the config needs; changes nothing for a job that uses the nodes' packages.

    If pip installs only wheels (see `requirement_lines`), packages without wheels are left out, unless the config
    needs them. `pins` are versions by canonical name; other packages are added without a version.

    Raises:
        ConfigError: the requirements have hashes, or pip would have to build a package that is needed.
    """
    if part.tool is None:
        return part
    assert isinstance(part.packages, list)
    field, lines = f"job.runtime_env.{part.tool}", list(part.packages)
    wanted = {canonical(name): need for need in needs for name in need.requirements}
    wheels_only = part.tool == "pip" and bool(part.index_references)
    if wheels_only:
        lines = [line for line in lines if (named_package(line) or "") not in SOURCE_ONLY - wanted.keys()]
    present = {named_package(line) for line in lines}
    for name, need in wanted.items():
        if wheels_only and name in SOURCE_ONLY:
            raise ConfigError(
                f"{field}: {need.value} needs {name}, which has no wheels, but with ${{NAME}} in an index URL pip "
                "installs only wheels: use job.runtime_env.uv"
            )
        if name in present:
            continue
        if any("--hash" in line for line in lines):
            raise ConfigError(
                f"{field}: {need.value} needs {name}, which is not in these requirements, and they have hashes: "
                "add it there"
            )
        lines.append(f"{name}=={pins[name]}" if name in pins else name)
    return part.model_copy(update={part.tool: lines})


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
        part: The key `job.runtime_env`, with requirements read in by `freeze`.
        package: Path on this machine, or URI, of the zip with the working directory. Not used with an image.
        stop_grace_s: Seconds after a requested stop until the job is killed.
        environment: Further variables of the driver and all workers, without secrets. Ray caches the failure of an
            environment for ten minutes, and fails an identical one without a new try, so include a variable that
            differs in each attempt.
        setup_log: Name of a file among Ray's logs on each node, for the output of pip or uv.
        code: Path or URI of another zip, with Python packages that each node can import. Not used with an image.
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
            # For uv, Ray expands all $NAME in a line and writes the line to a file on the node. With DOLLAR, this
            # yields ${NAME} again, which uv then expands itself. For pip, Ray writes lines unchanged.
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
        # Fewer retries, since Ray runs pip or uv three times, and the service may start another attempt. Timeouts keep
        # their defaults (pip 15 s, uv 30 s), so that an index that first fetches a file from elsewhere can respond. Ray
        # installs uv itself with pip.
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
        ConfigError: the part still has the name of a file, which `freeze` must read first.
    """
    assert part.tool is not None
    if not isinstance(part.packages, list):
        raise ConfigError(
            f"job.runtime_env.{part.tool}: {part.packages} was not read at submission: submit the run again"
        )
    lines = [f"--index-url {part.index_url}"] if part.index_url else []
    lines += [f"--extra-index-url {url}" for url in part.extra_index_urls]
    if part.tool == "pip" and part.index_references:
        # When pip builds from source, it starts another pip with the index URLs and credentials in its command line.
        lines.append(ALL_WHEELS)
    return [*lines, *part.packages]


def install_options(part: RuntimeEnvPart) -> list[str]:
    """Returns the options of `pip install` or `uv pip install`; they replace Ray's own, which disable the cache."""
    if part.tool == "uv":
        return [] if part.cache else ["--no-cache"]
    options = ["--disable-pip-version-check", "--no-input"]
    if part.index_references:
        # pip prints the user name, but not the password, of each index that it reads.
        options.append("--quiet")
    return options if part.cache else [*options, "--no-cache-dir"]


SCRIPT = "install_and_run.sh"
# Exit code of the script if it could not install; Rayscribe's entrypoint never uses it.
EXIT_CODE = 12
TEMPLATE = "install_and_run.template.sh"


def script_files(part: RuntimeEnvPart) -> dict[str, bytes]:
    """Returns the contents of files to add to the package, by path; empty if the packages need no script."""
    return {SCRIPT: render(part).encode()} if _by_script(part) else {}


def wrap_entrypoint(part: RuntimeEnvPart, entrypoint: str) -> str:
    """Returns the entrypoint, wrapped in the script if the script installs packages."""
    return f"bash {SCRIPT} {entrypoint}" if _by_script(part) else entrypoint


def render(part: RuntimeEnvPart) -> str:
    """Returns the script's text with the requirements, but without credentials, which pip and uv read on the node."""
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
