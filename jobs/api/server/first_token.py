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
        A line that says so, without the token, or how to make one where the ledger has others' only. None: there is
        nothing to say.

    Raises:
        ConfigError: the file cannot be written; no token was made.
    """
    names = [token.name for token in ledger.tokens.all()]
    if names:
        others = user not in names and not path.exists()
        fix = f"`rayscribe token add {user}` makes yours, for RAYSCRIBE_TOKEN"
        return f"tokens are there for {', '.join(names[:10])}; {fix}" if others else None
    before = path.with_name(f"{path.name}.before")
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Opened first: a token whose file could not be written would be lost. Only its owner may read it.
        descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(ledger.tokens.add(user, now_s) + "\n")
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
