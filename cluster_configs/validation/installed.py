"""Software of this machine: versions, Ray's schema, bash. The only module of the package that reads the machine."""

import json
import re
import shutil
import subprocess
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

from cluster_configs.validation.cluster_file import Installed
from trainers.errors import ConfigError

SYNTAX_TIMEOUT_S = 20


def read_installed() -> Installed:
    """Reads versions and schemas, without importing Ray.

    Raises:
        ConfigError: bash or Ray's schema is not there.
    """
    spec = find_spec("ray")
    folders = [] if spec is None else [*(spec.submodule_search_locations or [])]
    schema = next(
        (path for folder in folders if (path := Path(folder, "autoscaler", "ray-schema.json")).is_file()), None
    )
    if schema is None:
        raise ConfigError("autoscaler/ray-schema.json of Ray was not found: install Ray as pyproject.toml says")
    if shutil.which("bash") is None:
        raise ConfigError("bash is not on PATH: install it; it checks the syntax of commands (bash -n)")
    ray_schema = json.loads(schema.read_text(encoding="utf-8"))
    return Installed(version("ray"), version("rayscribe"), ray_schema, syntax_error)


def syntax_error(script: str) -> tuple[int, str] | None:
    """Returns line (from 1) and message of the first error that `bash -n` finds; it runs nothing.

    Raises:
        ConfigError: bash does not end within SYNTAX_TIMEOUT_S.
    """
    try:
        answer = subprocess.run(
            ["bash", "--norc", "-n"],
            input=script,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=SYNTAX_TIMEOUT_S,
            check=False,
            env={"PATH": "/usr/bin:/bin", "LC_ALL": "C"},
        )
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"bash -n did not end within {SYNTAX_TIMEOUT_S} s: shorten the script") from error
    found = re.search(r"line (\d+): (.*)", answer.stderr)
    if found is None:
        return None
    return int(found[1]), found[2].removeprefix("syntax error: ")
