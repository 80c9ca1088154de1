"""Whether this process can use obstore: one that is forked has none of its threads, and would wait for them forever."""

import os

_PROCESS = os.getpid()


def is_forked() -> bool:
    """Whether the process was forked from one that has loaded this module, as all that load obstore do."""
    return os.getpid() != _PROCESS
