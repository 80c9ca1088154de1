"""Where the command line keeps its files on this machine, and its user."""

import getpass
import os
from pathlib import Path


def current_user() -> str:
    """The user who runs this process."""
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
