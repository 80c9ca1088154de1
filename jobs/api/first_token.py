"""The first token of a ledger, so that the command line on the service's own machine just works."""

import os
import tempfile
from pathlib import Path

from jobs.errors import ConflictError
from jobs.ledger import Ledger
from trainers.errors import ConfigError


def give_first_token(ledger: Ledger, path: Path, user: str, now_s: float) -> str | None:
    """Makes a token where the ledger has none, and keeps it in a file that only its owner reads.

    Args:
        ledger: Where tokens are.
        path: The file. One that is there is kept beside it, since it may be for another service.
        user: Whom the token is for.
        now_s: The time.

    Returns:
        A line that says so, without the token. None: the ledger has tokens.

    Raises:
        ConfigError: the file cannot be written; no token was made.
    """
    if ledger.tokens():
        return None
    before = path.with_name(f"{path.name}.before")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Opened first: a token whose file could not be written would be lost. Only its owner may read it.
        descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(ledger.add_token(user, now_s) + "\n")
            kept = path.exists()
            if kept:
                path.replace(before)
            Path(new).replace(path)
        finally:
            Path(new).unlink(missing_ok=True)
    except ConflictError:  # another service, started at the same moment, has made it
        return None
    except OSError as error:
        raise ConfigError(
            f"{path}: the first token cannot be kept there: {error.strerror}; set RAYSCRIBE_HOME"
        ) from None
    note = f"; what was there is {before.name} now" if kept else ""
    return f"made the first token, for {user}: it is in {path}, where `rayscribe` on this machine finds it{note}"
