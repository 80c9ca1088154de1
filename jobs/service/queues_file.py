"""Reads queues.yaml, the limits of queues and users.

patience_s: 21600
queues:
  default: {}
  research: {max_gpus: 16, max_running: 8, per_user: {max_gpus: 4}}
"""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from jobs.scheduler.limits import QueuesConfig
from trainers.config.strict_loading import YamlError, load_yaml_file
from trainers.config.validation import refuse, validated
from trainers.config.wording import yaml_kind
from trainers.distributed.machine import home
from trainers.errors import ConfigError

# The form of job.queue.
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,99}")


def find_queues(path: Path | None = None) -> QueuesConfig:
    """Reads the limits of all queues: from `path`, the file in RAYSCRIBE_QUEUES, or queues.yaml in `home()`.

    Only the last may be missing; then queues have no limits.
    """
    named = os.environ.get("RAYSCRIBE_QUEUES")
    path = path or (Path(named) if named else None)
    if path is not None:
        return read_queues(path)
    default = home() / "queues.yaml"
    return read_queues(default) if default.is_file() else QueuesConfig()


def read_queues(path: Path) -> QueuesConfig:
    """Reads the limits of all queues; a queue without keys has no limits.

    Raises:
        ConfigError: the file is missing, not YAML or not valid; the message has every error with key, value and fix.
    """
    try:
        content = load_yaml_file(path)
    except FileNotFoundError:
        raise ConfigError(f"{path}: no such file; write one, e.g. queues: {{default: {{max_gpus: 8}}}}") from None
    except (OSError, YamlError) as error:
        raise ConfigError(f"{path}: cannot be read as YAML: {error}") from None
    content = {} if content is None else content
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: has {yaml_kind(content)}, not the keys {', '.join(QueuesConfig.model_fields)}")
    queues = content.get("queues")
    errors = []
    if isinstance(queues, Mapping):
        content = {**content, "queues": {name: {} if part is None else part for name, part in queues.items()}}
        errors = [
            f"queues.{name}: a queue's name is letters, digits and . _ -, at most 100"
            for name in queues
            if not (isinstance(name, str) and NAME.fullmatch(name))
        ]
    config, problems = validated(QueuesConfig, content)
    refuse([*errors, *(problem for problem in problems if problem not in errors)], str(path))
    assert config is not None
    return config
