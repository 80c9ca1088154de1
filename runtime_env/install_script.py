"""install_and_run.sh: the job's packages without Ray's pip environments, for clusters that allow none. Pure.

The script wraps the entrypoint. Inside, RAYSCRIBE_PY_EXECUTABLE names what to give Ray as `py_executable`, so that the
workers of all nodes start through the script too, and have the same packages. The script at the repository's root, for
Ray's own command, is the same for requirements.txt: see `root_files`.
"""

import hashlib
import shlex
from pathlib import Path

from runtime_env.build import install_options, requirement_lines
from runtime_env.config import RuntimeEnvPart

SCRIPT = "install_and_run.sh"
# What the script exits with when it could not install; no entrypoint of ours ends so.
EXIT_CODE = 12
TEMPLATE = "install_and_run.template.sh"


def script_files(part: RuntimeEnvPart) -> dict[str, bytes]:
    """What has to be added to the package: path → content. Empty where nothing is installed by a script."""
    return {SCRIPT: render(part).encode()} if _by_script(part) else {}


def wrap_entrypoint(part: RuntimeEnvPart, entrypoint: str) -> str:
    """The entrypoint, run by the script where that installs."""
    return f"bash {SCRIPT} {entrypoint}" if _by_script(part) else entrypoint


def render(part: RuntimeEnvPart) -> str:
    """The script's text, which holds the requirements but no credentials: pip and uv look those up on the node."""
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
    """Whether the file was made by `render`, for whatever requirements."""
    head = _template().partition("key=")[0].encode()
    return path.is_file() and path.read_bytes().startswith(head)


def _template() -> str:
    text = Path(__file__).with_name(TEMPLATE).read_text(encoding="utf-8")
    return text.replace("@SCRIPT@", SCRIPT)


def _by_script(part: RuntimeEnvPart) -> bool:
    return part.install == "script" and part.tool is not None
