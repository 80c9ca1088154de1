"""What the command line keeps on this machine, and who uses it."""

import getpass
import os
from collections.abc import Collection, Mapping
from pathlib import Path

from trainers.errors import ConfigError


def user_here() -> str:
    """Who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid-{os.getuid()}"


def default_database() -> str:
    """The ledger of a command line without a service: RAYSCRIBE_DATABASE, or a file in the home folder."""
    return os.environ.get("RAYSCRIBE_DATABASE") or f"sqlite:///{home() / 'ledger.db'}"


def home() -> Path:
    """Folder of what the command line keeps on this machine: RAYSCRIBE_HOME, or ~/.rayscribe."""
    return Path(os.environ.get("RAYSCRIBE_HOME") or Path.home() / ".rayscribe").absolute()


def grows_to_of(texts: Collection[str]) -> Mapping[str, float]:
    """Parses `GPU=16` texts.

    Raises:
        ConfigError: one is not NAME=NUMBER.
    """
    parsed = {}
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            parsed[name.strip()] = float(value)
        except ValueError:
            equals = ""
        if not equals or not name.strip():
            raise ConfigError(f"--grows-to {text}: write it as NAME=NUMBER, e.g. --grows-to GPU=16")
    return parsed
