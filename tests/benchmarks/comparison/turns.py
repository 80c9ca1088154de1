"""Turns: the sides of a comparison are all started, and then work one after the other, a few seconds each.

Only rank 0 of a side holds the line to the benchmark; its other ranks wait for it in a collective of its own. In the
next one of training they would wait too late: a rank that computes its gradients while another side has its turn slows
that side, and has less to do in its own. What else runs on the machine then slows both sides alike, and nobody waits
for imports twice.
"""

import time
from multiprocessing.connection import Client, Connection
from typing import Any

import torch.distributed
from transformers import TrainerCallback

KEY = b"benchmark"
GO, STOP = "go", "stop"


class Turns:
    """A side's end of the line. On ranks other than 0 there is no line, and nothing to wait for."""

    def __init__(self, address: str, rank: int):
        self._line: Connection | None = Client(address, authkey=KEY) if rank == 0 else None

    def wait(self) -> bool:
        """Waits for this side's next turn, on all ranks; False when there is none."""
        word = [self._line.recv() if self._line is not None else None]
        if torch.distributed.is_initialized():
            torch.distributed.broadcast_object_list(word, src=0)
        return word[0] == GO

    def done(self, figures: dict[str, Any]) -> None:
        """Ends the turn with its figures."""
        if self._line is not None:
            self._line.send(figures)


class TrainingTurns(TrainerCallback):
    """Lets a Trainer of any kind take its optimizer steps in turns; one step goes before the first, uncounted."""

    address = ""
    rank = 0
    steps = 1
    epoch_clips: int | None = None
    step_clips = 1

    def __init__(self) -> None:
        self._turns: Turns | None = None
        self._began_s = self._began_epoch = 0.0

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if (state.global_step - 1) % self.steps:
            return
        if self._turns is None:
            self._turns = Turns(self.address, self.rank)
        else:
            seconds = time.perf_counter() - self._began_s
            clips = float(self.steps * self.step_clips)
            if self.epoch_clips is not None:
                clips = round(self.epoch_clips * (state.epoch - self._began_epoch), 1)
            self._turns.done({"clips": clips, "seconds": seconds})
        if state.global_step < state.max_steps:
            self._turns.wait()
            self._began_s, self._began_epoch = time.perf_counter(), state.epoch


def training_turns(
    address: str, rank: int, steps: int, step_clips: int, epoch_clips: int | None = None
) -> type[TrainingTurns]:
    """The callback with its settings bound, for whoever makes callbacks by their class.

    A turn has this many steps, and a step this many clips over all ranks; or, where they differ, its share of an epoch.
    """
    bound = {"address": address, "rank": rank, "steps": steps, "step_clips": step_clips, "epoch_clips": epoch_clips}
    return type("BoundTrainingTurns", (TrainingTurns,), bound)
