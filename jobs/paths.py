"""Where the command line keeps its files on this machine, and its user."""

import contextlib
import getpass
import os
from pathlib import Path

from trainers.config.storage_location import in_home

FOR_ITS_OWNER, FOR_OTHERS = 0o700, 0o077


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
    """Folder of what the command line keeps on this machine: RAYSCRIBE_HOME, or ~/.rayscribe, closed to other users.

    Raises:
        ConfigError: this user has no home folder.
    """
    chosen = os.environ.get("RAYSCRIBE_HOME")
    if chosen:
        return in_home(chosen).absolute()
    folder = in_home("~/.rayscribe")
    with contextlib.suppress(OSError):
        # Earlier versions left others in. A folder that was chosen may have a purpose of its own.
        if folder.stat().st_mode & FOR_OTHERS:
            folder.chmod(FOR_ITS_OWNER)
    return folder.absolute()


def make_private_folder(folder: Path) -> None:
    """Makes a folder, and those above it that are not there, so that only this user can enter them."""
    for each in (*reversed(folder.parents), folder):
        # Not `parents=True`, which gives the mode to the last one only.
        if not each.exists():
            each.mkdir(mode=FOR_ITS_OWNER, exist_ok=True)


def token_hosts_file(token: Path) -> Path:
    """File next to a token, with the host names of the service that issued it, one a line."""
    return token.with_name(f"{token.name}.hosts")


def hosts_of_token(token: Path) -> list[str]:
    """The hosts of the service that has made the token in a file; none where that is not known."""
    try:
        return token_hosts_file(token).read_text(encoding="utf-8").split()
    except (OSError, UnicodeDecodeError):
        return []
