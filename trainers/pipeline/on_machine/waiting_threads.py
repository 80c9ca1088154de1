"""How the threads of one computation on CPUs wait for each other.

By default they spin, for what comes next without a moment's delay. Where anything else works on the machine, a thread
then spins for one that has no core: a step takes five times as long as with threads that sleep (docs/speed.md).
"""

import os

# Read when torch is loaded; what a user has set stays.
ASLEEP = {"OMP_WAIT_POLICY": "passive"}


def wait_asleep() -> None:
    """Has the threads of torch, which is not loaded yet, sleep while they wait."""
    for name, value in ASLEEP.items():
        os.environ.setdefault(name, value)
