"""Where the command line keeps its files on this machine, and its user."""

import getpass
import os
from pathlib import Path

from trainers.distributed.machine import home


def current_user() -> str:
    """The user who runs this process."""
    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        return f"uid-{os.getuid()}"


def default_database() -> str:
    """The ledger of a command line without a service: RAYSCRIBE_DATABASE, or a file in the home folder."""
    return os.environ.get("RAYSCRIBE_DATABASE") or f"sqlite:///{home() / 'ledger.db'}"


def token_hosts_file(token: Path) -> Path:
    """File next to a token, with the host names of the service that issued it, one a line."""
    return token.with_name(f"{token.name}.hosts")


def hosts_of_token(token: Path) -> list[str]:
    """The hosts of the service that has made the token in a file; none where that is not known."""
    try:
        return token_hosts_file(token).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return []
