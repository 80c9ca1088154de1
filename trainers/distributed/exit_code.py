"""How a command ends: with one message for what can go wrong, and with the exit code that says it."""

import sys
from collections.abc import Callable

from trainers.distributed.console import print_line
from trainers.distributed.signals import STOP_SIGNAL
from trainers.errors import Interruption, RayscribeError, StoppedError, StorageError, refused_by_disk


def exit_code_of(work: Callable[[], int]) -> int:
    """Does the work of a command; prints one message for what can go wrong, and returns the exit code."""
    STOP_SIGNAL.reset()
    with STOP_SIGNAL.on_signals():
        try:
            return work()
        except StoppedError as stopped:
            print_line(str(stopped), sys.stderr)
            return STOP_SIGNAL.exit_code
        except KeyboardInterrupt as stopped:
            left = (stopped if isinstance(stopped, Interruption) else Interruption()).left
            print_line(f"stopped; {left}", sys.stderr)
            return STOP_SIGNAL.exit_code
        except RayscribeError as error:
            print_line(f"error: {error}", sys.stderr)
            return error.exit_code
        except OSError as error:
            if (text := refused_by_disk(error)) is None:
                raise
            print_line(f"error: {text}", sys.stderr)
            return StorageError.exit_code
