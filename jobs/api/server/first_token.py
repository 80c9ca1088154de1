"""The first token of a ledger, so that `rayscribe` works on the service's machine without further setup."""

import os
import tempfile
from collections.abc import Sequence
from pathlib import Path

from jobs.errors import ConflictError
from jobs.ledger import Ledger
from jobs.paths import token_hosts_file
from trainers.distributed.machine import make_private_folder
from trainers.errors import ConfigError


def create_first_token(ledger: Ledger, path: Path, user: str, now_s: float, hosts: Sequence[str] = ()) -> str | None:
    """Creates a token if the ledger has none, and writes it to a file that only its owner can read.

    An existing file is renamed, since it may be for another service. The `hosts` are names and addresses of the host
    where the service runs: clients send the token to no other.

    Returns:
        A message, without the token: where it is, or how to create one if the ledger only has other users' tokens.
        None: no message is needed.

    Raises:
        ConfigError: the file cannot be written; no token was created.
    """
    names = [token.name for token in ledger.tokens.all()]
    if names:
        others_only = user not in names and not path.exists()
        fix = f"create yours with `rayscribe token add {user}` and set RAYSCRIBE_TOKEN"
        return f"there are tokens for {', '.join(names[:10])}; {fix}" if others_only else None
    backup = path.with_name(f"{path.name}.before")
    try:
        make_private_folder(path.parent)
        # Created first: a token whose file cannot be written would be lost. Only its owner can read it.
        descriptor, new = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}-")
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                file.write(ledger.tokens.add(user, now_s) + "\n")
            renamed = path.exists()
            if renamed:
                path.replace(backup)
            # Before the token: until then, what it names are the hosts of no token.
            token_hosts_file(path).write_text("".join(f"{host}\n" for host in hosts), encoding="utf-8")
            Path(new).replace(path)
        finally:
            Path(new).unlink(missing_ok=True)
    except ConflictError:  # another service, started at the same time, has created it
        return None
    except OSError as error:
        raise ConfigError(f"{path}: the first token cannot be written: {error.strerror}; set RAYSCRIBE_HOME") from None
    note = f"; the previous file is now {backup.name}" if renamed else ""
    return f"created the first token, for {user}, in {path}, where `rayscribe` on this machine finds it{note}"
