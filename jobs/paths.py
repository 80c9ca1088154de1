"""Paths of the command line's files on this machine, and its user."""

import getpass
import os
from pathlib import Path

from trainers.distributed.machine import home


def current_user() -> str:
    """Returns the user who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid-{os.getuid()}"


def default_database() -> str:
    """Returns the ledger of a command line without a service: RAYSCRIBE_DATABASE, or a file in the home folder."""
    return os.environ.get("RAYSCRIBE_DATABASE") or f"sqlite:///{home() / 'ledger.db'}"


def token_hosts_file(token: Path) -> Path:
    """Returns the path next to a token of a file with host names of the service that issued it, one a line."""
    return token.with_name(f"{token.name}.hosts")


def hosts_of_token(token: Path) -> list[str]:
    """Returns the hosts of the service that issued the token in a file; none if they are not known."""
    try:
        return token_hosts_file(token).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return []
