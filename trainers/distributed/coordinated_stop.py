"""The ranks agree on the optimizer step after which a requested stop ends training, without slowing training down.

A thread of each rank polls for the request, and votes for the step that its rank will complete in any case: the current
or the next step. After its vote, a rank starts no further step until all votes are in. The last step is the largest
vote, so no rank has passed it, and all can complete it. The rank that votes last counts the votes for all, so that
the number of requests grows with the number of ranks, not with its square.
"""

import threading
from typing import Any, Self

from torch.distributed import HashStore  # type: ignore[attr-defined]
from torch.distributed.distributed_c10d import PrefixStore, _get_default_store
from transformers import TrainerCallback

from trainers.distributed.session import Session
from trainers.errors import LostWorkerError

POLL_S = 0.5
# Keys of the shared store, in addition to the ranks' votes.
REQUESTED, CAST, OUTCOME = "requested", "cast", "outcome"


class LastStep(TrainerCallback):
    """Ends training with a checkpoint at the step that all ranks agree on. Must be the last of the callbacks.

    `first_step` optimizer steps are already done; `store` is a torch.distributed.Store of all ranks, by default that of
    the process group. `stopped_at` is the step after which training was stopped; None if it was not.
    """

    def __init__(self, session: Session, first_step: int, store: Any = None):
        self.stopped_at: int | None = None
        self._session, self._shared = session, store
        self._lock = threading.Lock()
        self._committed_step = first_step + 1
        self._requested, self._agreed, self._closed = threading.Event(), threading.Event(), threading.Event()
        self._last = 0
        self._failure: BaseException | None = None
        self._thread = threading.Thread(target=self._poll, name="last-step", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._closed.set()
        self._thread.join()

    def skips_evaluation(self, args: Any) -> bool:
        """Returns True if a stop was requested, unless the learning rate schedule depends on the scores."""
        return self._requested.is_set() and args.metric_for_best_model is None

    def end_at(self, step: int) -> None:
        """Ends training after a step that all ranks have agreed on in another way."""
        self.stopped_at = step

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Ends training after the last step, with a checkpoint but without an evaluation, which would take too long."""
        if self._is_last(state.global_step):
            self.stopped_at = state.global_step
            control.should_log = control.should_save = control.should_training_stop = True
            control.should_evaluate = control.should_evaluate and not self.skips_evaluation(args)

    def _is_last(self, step: int) -> bool:
        """Returns True if training ends after this step; otherwise this rank commits to the next step."""
        self._check_polling(step)
        with self._lock:
            if not self._requested.is_set():
                self._committed_step = step + 1
                return False
        while not self._agreed.wait(POLL_S):
            self._check_polling(step)
        return step >= self._last

    def _check_polling(self, step: int) -> None:
        if self._failure is not None:
            raise LostWorkerError(
                f"after step {step}: lost the connection to the ranks' shared store, so a rank has probably died; "
                "the last checkpoint is kept"
            ) from self._failure

    def _poll(self) -> None:
        try:
            store = self._shared
            if store is None and self._session.world_size == 1:
                store = HashStore()
            elif store is None:
                first: Any = _get_default_store()
                # A separate connection, since another thread may block on the first one. The prefix is unique, since
                # training may run twice in one process group.
                store = PrefixStore(f"rayscribe-last-step-{self._session.group}", first.clone())
            self._agree(store)
        except Exception as error:
            self._failure = error

    def _agree(self, store: Any) -> None:
        while not self._closed.wait(POLL_S):
            if not self._requested.is_set():
                is_known = store.check([REQUESTED])
                if is_known or self._session.stop_requested():
                    if not is_known:
                        store.set(REQUESTED, "1")
                    with self._lock:
                        self._requested.set()
                        vote(self._session, store, self._committed_step)
            elif (last := outcome(store)) is not None:
                self._last = last
                self._agreed.set()
                return


def vote(session: Session, store: Any, step: int) -> None:
    """Votes for a step; the rank that votes last counts the votes for all."""
    size = session.world_size
    store.set(str(session.rank), str(step))
    if store.add(CAST, 1) == size:
        store.set(OUTCOME, str(max(int(store.get(str(rank))) for rank in range(size))))


def outcome(store: Any) -> int | None:
    """Returns the largest vote; None if a vote is missing."""
    return int(store.get(OUTCOME)) if store.check([OUTCOME]) else None
