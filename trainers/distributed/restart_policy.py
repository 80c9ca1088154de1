"""Decides whether failed workers restart from the last checkpoint, and which failures count. Pure."""

from dataclasses import dataclass
from typing import Self

from trainers.config.schema import AnyConfig, ScriptConfig
from trainers.errors import LostNodeError, RayscribeError, RegroupError, ScriptError

# Nodes that an elastic run may lose before its next checkpoint.
MAX_LOSSES = 20


@dataclass
class RestartPolicy:
    """Decides after each failure of a worker group; one policy for all groups of an attempt.

    Attributes:
        max_failures: Number of failures after which workers still restart; -1 means any number.
        is_elastic: True if lost nodes are not counted, since the next group may be smaller.
        restarts_left: Number of restarts left for a program that fails by itself.
    """

    max_failures: int
    is_elastic: bool
    restarts_left: int
    _failures: int = 0
    _losses: int = 0

    @classmethod
    def of(cls, config: AnyConfig) -> Self:
        restarts = config.script.max_restarts if isinstance(config, ScriptConfig) else 0
        return cls(config.run.max_failures, config.scaling.is_elastic, restarts)

    def is_final(self, error: RayscribeError) -> bool:
        """Returns True if the error would recur, or if its program has no restarts left."""
        return error.final or (isinstance(error, ScriptError) and not self.restarts_left)

    def note_progress(self) -> None:
        """Resets the count of lost nodes; called when the workers have stored another checkpoint."""
        self._losses = 0

    def count(self, error: RayscribeError, *, is_preempted: bool = False) -> str | None:
        """Counts a failure that is not final; a preempted node is never counted.

        Returns:
            The message that the workers restart; None if there were too many failures.
        """
        has_failed_itself = isinstance(error, ScriptError)
        # The workers ended with a checkpoint, so this is not a failure.
        is_left = isinstance(error, RegroupError)
        is_loss = self.is_elastic and isinstance(error, LostNodeError) and not is_left
        self._losses = 0 if is_left else self._losses + is_loss
        self.restarts_left -= has_failed_itself
        counts = not (is_preempted or is_left or is_loss or has_failed_itself)
        self._failures += counts
        if self.max_failures >= 0 and (self.max_failures < self._failures or self._losses > MAX_LOSSES):
            return None
        of_all = f"{self._failures} of at most {self.max_failures}" if self.max_failures >= 0 else f"{self._failures}"
        return f"the workers restart from the last checkpoint ({of_all if counts else 'not counted'}): {error}"
