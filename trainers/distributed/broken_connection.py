"""Whether an error means that a connection to another rank broke, and not why. Imports neither torch nor Ray."""

import re

# Of gloo, NCCL and torch's store, where the other end is gone.
_TEXTS = re.compile(
    "Connection closed by (remote )?peer|Connection reset by peer|Broken pipe|remote process exit|Socket Timeout"
    r"|NCCL communicator|failed to recv, got 0 bytes|client socket has timed out|Timed out waiting \d+ms"
)


def is_broken_connection(text: str) -> bool:
    """Whether a text, such as the last lines of a program, has such an error."""
    return _TEXTS.search(text) is not None
