"""Writes and reads the environment variables of a job: its config as JSON, and facts that it cannot find out itself.

The ledger stores the same text of the config, byte for byte. On the node, only `${NAME}` of the job's own variables and
paths relative to the package are resolved.
"""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from trainers.config.locations import expand_variables, make_paths_absolute, unresolved_paths
from trainers.config.schema import CONFIGS, AnyConfig, trainer_of
from trainers.config.strict_loading import YamlError, load_yaml_file
from trainers.config.validation import refuse, validated
from trainers.errors import ConfigError

CONFIG_VARIABLE = "RAYSCRIBE_CONFIG"
# The variable with a checkpoint that the service knows of.
CHECKPOINT_VARIABLE = "RAYSCRIBE_CHECKPOINT"
# Set for a cluster's head and its jobs, e.g. `CPU=64,GPU=16`. Ray has no call that returns its autoscaler's limits.
GROWTH_VARIABLE = "RAYSCRIBE_GROWS_TO"
# The client's overrides, in the package, only for the record; the config does not depend on them.
OVERRIDES_RECORD = ".rayscribe/overrides.yaml"


def config_text(config: Mapping[str, Any]) -> str:
    """Returns the canonical text of a config, compact JSON; raises ConfigError for a number that is not finite."""
    try:
        text = json.dumps(config, separators=(",", ":"), allow_nan=False)
    except ValueError:
        raise ConfigError("the config has a number that is not finite, which JSON does not allow: correct it") from None
    # On the node, Ray expands $NAME in the values of variables, and quotes the variables of a container with '.
    return text.replace("$", "\\u0024").replace("'", "\\u0027")


def read_submitted(environment: Mapping[str, str], working_dir: Path) -> AnyConfig:
    """Returns this attempt's config, from the process's variables and the package; raises ConfigError if invalid."""
    try:
        content = json.loads(environment[CONFIG_VARIABLE])
        runtime_env = content["job"].get("runtime_env", {})
        brought = {*runtime_env.get("env_vars", {}), *runtime_env.get("secrets", {})}
    except (ValueError, LookupError, TypeError, AttributeError):
        raise ConfigError(
            f"{CONFIG_VARIABLE} has no submitted config: the service sets it; unset it to run task.py by hand"
        ) from None
    known = {name: environment[name] for name in brought if name in environment}
    expanded, missing = expand_variables(content, known)
    config, problems = validated(CONFIGS[trainer_of(expanded)], expanded)
    if config is not None and not missing:
        problems = unresolved_paths(config, ())
    refuse([*missing, *problems], CONFIG_VARIABLE)
    assert config is not None
    return make_paths_absolute(config, working_dir)


def growth_text(growth: Mapping[str, float]) -> str:
    """Returns the value of GROWTH_VARIABLE for the maximum of each logical resource that the cluster can grow to."""
    return ",".join(f"{name}={most:g}" for name, most in sorted(growth.items()))


def read_growth(text: str) -> dict[str, float]:
    """Parses a value of GROWTH_VARIABLE, which is empty if the cluster does not grow; raises ConfigError if invalid."""
    growth = {}
    for item in filter(None, text.split(",")):
        name, _, value = (part.strip() for part in item.partition("="))
        try:
            growth[name] = float(value)
        except ValueError:
            growth[name] = math.nan
        if not name or not 0 <= growth[name] < math.inf:
            raise ConfigError(f"{GROWTH_VARIABLE}: {item!r} is not a limit: write NAME=NUMBER, e.g. GPU=16")
    return growth


def write_record(overrides: list[str]) -> bytes:
    """Returns the content of the overrides record in the package."""
    return yaml.safe_dump(overrides, allow_unicode=True).encode()


def read_record(working_dir: Path) -> list[str]:
    """Returns the overrides recorded in the package; empty if there is no readable record."""
    try:
        content = load_yaml_file(working_dir / OVERRIDES_RECORD)
    except (OSError, YamlError):
        return []
    return [item for item in content if isinstance(item, str)] if isinstance(content, list) else []
