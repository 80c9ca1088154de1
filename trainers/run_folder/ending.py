"""The last word of an attempt: its status, and what a run that was stopped has. Imports no torch."""

import os
from types import TracebackType
from typing import Self

from trainers.config.locations import cache_url_of
from trainers.config.schema import TrainConfig
from trainers.errors import FencedError, Interruption, RayscribeError
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import CHECKPOINTS, RunFolder


class Ending:
    """Around all that an attempt does.

    Attributes:
        attempt: Its number; None as long as it has none.
        headline: What it came to.
    """

    def __init__(self, config: TrainConfig, folder: RunFolder, attempt: int | None):
        """Takes what is known at the beginning."""
        self.attempt, self.headline = attempt, ""
        self._config, self._folder = config, folder

    def __enter__(self) -> Self:
        """Nothing has ended yet."""
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Writes the last status, once for all ranks; a request to stop learns what the run has."""
        if isinstance(error, Interruption):
            error.left = self._left()
        # The attempt's number, too, may be another's by now.
        if isinstance(error, FencedError) or os.environ.get("RANK", "0") != "0":
            return
        words = self.headline if error is None else f"stopped; {error.left}" if isinstance(error, Interruption) else ""
        with StatusWriter(self._folder, self.attempt) as status:
            status.show(Phase.ENDED, detail=words or str(error) or type(error).__name__, eta_s=None)

    def _left(self) -> str:
        try:
            checkpoints = Journal(self._folder).read().checkpoints
        except RayscribeError:
            checkpoints = ()
        if not checkpoints:
            return f"what is prepared stays in {cache_url_of(self._config)}; the same command continues from there"
        # In the order of steps.
        newest, where = checkpoints[-1].name, self._folder.storage.url(CHECKPOINTS)
        return f"{newest} is in {where}; the same command, or `rayscribe resume`, continues from there"
