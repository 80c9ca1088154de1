"""A barrier that logs which ranks it waits for, since torch's collectives are silent.

Each rank writes its position to the process group's store. Ranks that arrive early poll the store, and enter a
collective only once all ranks have arrived, so that the collective returns at once.
"""

import itertools
import json
import time
from collections.abc import Callable
from datetime import timedelta
from typing import Any

from torch.distributed.distributed_c10d import PrefixStore, _get_default_store

from trainers.config.wording import format_duration
from trainers.errors import LostWorkerError

# A rank may prepare a large set, or download a large checkpoint, while the others wait.
LONGEST_WAIT = timedelta(hours=12)
# Timeout of collectives in training, where ranks only compute: if one takes longer, a rank hangs.
COLLECTIVE_TIMEOUT = timedelta(minutes=30)
# Seconds before the first line about a wait; the interval doubles up to the second value.
FIRST_LINE_S, BETWEEN_LINES_S = 60.0, 600.0
# Seconds between two polls; doubles, too.
FIRST_LOOK_S, BETWEEN_LOOKS_S = 0.001, 0.25
_SHOWN_RANKS = 10


class LoggedBarrier:
    """The barriers of all ranks of a process group, called in the same order on each.

    `store` is a torch.distributed.Store of all ranks; `print_line` must reach the user from any rank.
    """

    def __init__(self, rank: int, world_size: int, print_line: Callable[[str], None], store: Any):
        self._rank, self._world_size, self._print_line, self._store = rank, world_size, print_line, store
        self._numbers = itertools.count(1)

    def wait(self, what: str) -> None:
        """Waits until every rank is here; `what` describes the step in lines about a long wait.

        Raises:
            LostWorkerError: some ranks have not arrived within LONGEST_WAIT.
        """
        number = next(self._numbers)
        self._store.set(f"at/{self._rank}", json.dumps([number, what]))
        if self._store.add(f"came/{number}", 1) == self._world_size:
            # Every rank has left the previous barrier, or it would not be here.
            for key in (f"came/{number - 1}", f"all/{number - 1}"):
                self._store.delete_key(key)
            self._store.set(f"all/{number}", "1")
            return
        self._wait(number, what)

    def _wait(self, number: int, what: str) -> None:
        began, look_s, line_s = time.monotonic(), FIRST_LOOK_S, FIRST_LINE_S
        while not self._store.check([f"all/{number}"]):
            waited_s = time.monotonic() - began
            if waited_s > LONGEST_WAIT.total_seconds():
                raise LostWorkerError(self._line(number, what, waited_s))
            if waited_s >= line_s:
                line_s += min(line_s, BETWEEN_LINES_S)
                # Only the first waiting rank prints.
                if not any(self._place_of(rank)[0] >= number for rank in range(self._rank)):
                    self._print_line(self._line(number, what, waited_s))
            time.sleep(look_s)
            look_s = min(2 * look_s, BETWEEN_LOOKS_S)

    def _line(self, number: int, what: str, waited_s: float) -> str:
        places = {rank: self._place_of(rank) for rank in range(self._world_size)}
        away = [(rank, place) for rank, (reached, place) in places.items() if reached < number]
        shown = ", ".join(f"rank {rank} (last: {place})" for rank, place in away[:_SHOWN_RANKS])
        more = f" and {len(away) - _SHOWN_RANKS} more" if len(away) > _SHOWN_RANKS else ""
        return f"{what}: {format_duration(waited_s)} of waiting for {shown}{more}, of {self._world_size} ranks"

    def _place_of(self, rank: int) -> tuple[int, str]:
        key = f"at/{rank}"
        if not self._store.check([key]):
            return 0, "its start"
        number, what = json.loads(self._store.get(key))
        return number, what


def open_logged_barrier(rank: int, world_size: int, print_line: Callable[[str], None]) -> LoggedBarrier:
    """Returns the barrier of this process's process group."""
    global _opened  # noqa: PLW0603 -- one for each process group, like torch's own state
    first: Any = _get_default_store()
    if _opened is None or _opened[0] is not first:
        # A separate connection, since another thread may block on the first one.
        store = PrefixStore("rayscribe-barriers", first.clone())
        _opened = first, LoggedBarrier(rank, world_size, print_line, store)
    return _opened[1]


_opened: tuple[Any, LoggedBarrier] | None = None
