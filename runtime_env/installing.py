"""What pip and uv are told, whoever starts them: Ray on a node, or the install script. Pure."""

from runtime_env.config import RuntimeEnvPart
from runtime_env.requirements import ALL_WHEELS
from trainers.errors import ConfigError


def requirement_lines(part: RuntimeEnvPart) -> list[str]:
    """The lines of the requirements file, options for the indexes first.

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
    """Options of `pip install` or `uv pip install`, in place of Ray's own, which switch the cache off."""
    if part.tool == "uv":
        return [] if part.cache else ["--no-cache"]
    options = ["--disable-pip-version-check", "--no-input"]
    if part.index_references:
        # pip says the user's name, though not the password, of each index that it looks into.
        options.append("--quiet")
    return options if part.cache else [*options, "--no-cache-dir"]


def fewer_retries(part: RuntimeEnvPart) -> dict[str, str]:
    """Variables for pip or uv where Ray starts it: Ray starts each three times, and the service another attempt.

    Variables, since `job.runtime_env.env_vars` may say otherwise. Timeouts stay: 15 s of pip, 30 s of uv, in which an
    index that fetches the file from elsewhere first has to begin its answer.
    """
    if part.tool is None or part.install != "runtime_env":
        return {}
    # Ray installs uv itself with pip.
    return {"PIP_RETRIES": "1"} | ({"UV_HTTP_RETRIES": "1"} if part.tool == "uv" else {})
