"""The optimizer step that all ranks end after, once somebody asks to stop; agreed on beside training, at no cost to it.

A thread of each rank hears of the request, and votes for the step that its rank is bound to do already: the one in
which it is, or which follows. From then on its rank begins no further step before the votes of all are in. The last
step is the largest vote, so no rank has gone beyond it, and all can still reach it. Without a request nothing is sent.
"""

import threading
from types import TracebackType
from typing import Any, Self

from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from transformers import TrainerCallback

from trainers.distributed.session import Session
from trainers.errors import LostWorkerError

POLL_S = 0.5
ASKED = "asked"


class LastStep(TrainerCallback):
    """Ends training with a checkpoint at the step that all ranks agree on. It must be the last of the callbacks.

    Attributes:
        stopped_at: The step that training was ended after. None: it goes on, or went to its own end.
    """

    def __init__(self, session: Session, first_step: int, store: Any = None):
        """Takes where training begins.

        Args:
            session: This rank.
            first_step: Optimizer steps that are behind it.
            store: torch.distributed.Store of all ranks. None: the one in which the process group has met.
        """
        self.stopped_at: int | None = None
        self._session, self._shared = session, store
        self._lock = threading.Lock()
        self._bound = first_step + 1
        self._heard, self._agreed, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._last = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._listen, name="last-step", daemon=True)

    def __enter__(self) -> Self:
        """Begins to listen; every rank does."""
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Ends the thread."""
        self._closed.set()
        self._thread.join()

    def cuts_short(self, args: Any) -> bool:
        """Whether a score is not waited for, since somebody asks to stop.

        Args:
            args: The Trainer's; a learning rate that follows the scores is nothing without them.
        """
        return self._heard.is_set() and args.metric_for_best_model is None

    def end_at(self, step: int) -> None:
        """Takes note that all ranks have agreed in another way to end after a step."""
        self.stopped_at = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends training after the last step, with a checkpoint and without a score, for which there is no time."""
        if self._is_last(state.global_step):
            self.stopped_at = state.global_step
            control.should_log = control.should_save = control.should_training_stop = True
            control.should_evaluate = control.should_evaluate and not self.cuts_short(args)

    def _is_last(self, step: int) -> bool:
        """Whether training ends after this step; otherwise the rank is bound to do the next one.

        Raises:
            LostWorkerError: this rank can no longer vote, for which the others would wait without end.
        """
        self._check_listening(step)
        with self._lock:
            if not self._heard.is_set():
                self._bound = step + 1
                return False
        while not self._agreed.wait(POLL_S):
            self._check_listening(step)
        return step >= self._last

    def _check_listening(self, step: int) -> None:
        if self._failure is not None:
            raise LostWorkerError(
                f"after step {step}: the ranks' shared store is gone, and a rank with it; the last checkpoint stays"
            ) from self._failure

    def _listen(self) -> None:
        try:
            self._agree(_Ballot(self._session, self._shared))
        except Exception as error:
            self._failure = error

    def _agree(self, ballot: "_Ballot") -> None:
        while not self._closed.wait(POLL_S):
            if not self._heard.is_set():
                if ballot.is_called():
                    with self._lock:
                        self._heard.set()
                        ballot.vote(self._bound)
            elif (votes := ballot.votes()) is not None:
                self._last = max(votes)
                self._agreed.set()
                return


class _Ballot:
    """Where the ranks of one process group vote: a store that each of them reaches."""

    def __init__(self, session: Session, shared: Any):
        self._session = session
        self._own: int | None = None
        if shared is None and session.world_size > 1:
            # Of its own connection, since another thread may wait long at the first one.
            first: Any = _get_default_store()
            # A process group may train twice.
            shared = PrefixStore(f"rayscribe-last-step-{session.group}", first.clone())
        self._shared = shared

    def is_called(self) -> bool:
        """Whether somebody has asked this rank to stop, or another has heard it."""
        if self._shared is None:
            return self._session.stop_asked()
        if self._shared.check([ASKED]):
            return True
        if self._session.stop_asked():
            self._shared.set(ASKED, "1")
            return True
        return False

    def vote(self, step: int) -> None:
        """Gives this rank's vote."""
        if self._shared is None:
            self._own = step
        else:
            self._shared.set(str(self._session.rank), str(step))

    def votes(self) -> list[int] | None:
        """All votes; None as long as one is missing."""
        if self._shared is None:
            assert self._own is not None
            return [self._own]
        names = [str(rank) for rank in range(self._session.world_size)]
        if not self._shared.check(names):
            return None
        return [int(self._shared.get(name)) for name in names]
