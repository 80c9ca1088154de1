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
    """Returns the URL of the ledger that is used without a service: RAYSCRIBE_DATABASE, or a file in `home()`."""
    return os.environ.get("RAYSCRIBE_DATABASE") or f"sqlite:///{home() / 'ledger.db'}"


def token_hosts_file(token: Path) -> Path:
    """Returns the path, next to a token's file, of the file with the hosts of the token's service, one per line."""
    return token.with_name(f"{token.name}.hosts")


def hosts_of_token(token: Path) -> list[str]:
    """Returns the hosts of the service of the token in a file; empty if they are not known."""
    try:
        return token_hosts_file(token).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return []
