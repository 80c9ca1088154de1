"""Ends training if its loss or weights are no longer finite, on all ranks at one step, without a wait at other steps.

A forward pass only records, on its own device, the first step with such a loss. Ranks check their records where they
synchronize anyway: when a loss is logged, and before a score or a checkpoint, so that neither is made of such weights.
In fp16, a step that overflows is skipped, and training continues as long as the loss scale can still be lowered.
"""

import math
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, cast

import torch

from trainers.errors import DivergedError

# As DeepSpeed's default `min_loss_scale`, at which DeepSpeed raises an error, too.
MIN_LOSS_SCALE = 1.0
# Text of the plain Exception that DeepSpeed raises (deepspeed/runtime/fp16/loss_scaler.py).
_DEEPSPEED_GIVES_UP = "loss scale already at minimum"


class Divergence:
    """One rank's record of losses that are not finite."""

    def __init__(self, device: torch.device, *, fp16: bool):
        self._fp16 = fp16
        self._first_step = torch.tensor(math.inf, device=device)
        self._finite_passes = torch.tensor(0.0, device=device)
        # Learning rate of each step since the ranks' last check.
        self._rates: dict[int, float] = {}

    def record(self, loss: torch.Tensor, step: int, rate: float) -> torch.Tensor:
        """Records the loss of a forward pass; returns the value to add to the sum of logged losses."""
        self._rates[step] = rate
        is_finite = torch.isfinite(loss)
        if self._fp16:
            self._finite_passes += is_finite
            # Otherwise a loss of nan would stay in every later sum.
            return loss.nan_to_num(0.0, 0.0, 0.0)
        self._first_step = torch.where(is_finite, self._first_step, self._first_step.clamp(max=step))
        return loss

    def loss_to_log(self, loss: float, accelerator: Any) -> float:
        """Returns the loss to log; in fp16, nan if no pass since the last log was finite. All ranks call this."""
        if not self._fp16:
            return loss
        finite_passes = float(accelerator.gather(self._finite_passes).sum())
        self._finite_passes.zero_()
        return loss if finite_passes else math.nan

    def raise_if_logged_loss_diverged(self, loss: float, step: int, accelerator: Any) -> None:
        """Ends training if a logged loss, which is equal on all ranks, is not finite."""
        scaler = accelerator.scaler
        # DeepSpeed has its own scale, and raises an error at the minimum.
        may_recover = self._fp16 and (scaler is None or scaler.get_scale() >= MIN_LOSS_SCALE)
        if not math.isfinite(loss) and not may_recover:
            first = accelerator.gather(self._first_step).min()
            self.raise_diverged(min(float(first), step), "the loss")

    def raise_if_any_rank_diverged(self, weights: Iterable[torch.Tensor], step: int, accelerator: Any) -> None:
        """Ends training if any rank has recorded a loss or holds a weight that is not finite. All ranks call this.

        `weights` are the trained weights, or this rank's shards of them; `step` counts completed steps.
        """
        broken = torch.where(_all_finite(weights, self._first_step.device), math.inf, float(step))
        seen = accelerator.gather(torch.stack([self._first_step, broken]))
        loss_step, weights_step = seen.view(-1, 2).amin(0).tolist()
        if loss_step < math.inf:
            self.raise_diverged(loss_step, "the loss")
        if weights_step < math.inf:
            self.raise_diverged(weights_step, "a weight")
        self._rates = {noted: rate for noted, rate in self._rates.items() if noted >= step}

    @contextmanager
    def watch_deepspeed(self, step: int) -> Iterator[None]:
        """Converts DeepSpeed's error at its minimum loss scale in a block; all ranks raise it at the same step."""
        try:
            yield
        except Exception as error:
            if _DEEPSPEED_GIVES_UP not in str(error):
                raise
            self.raise_diverged(step, "at the lowest loss scale a gradient")

    def raise_diverged(self, step: float, what: str) -> NoReturn:
        """Ends training by a DivergedError with the step and the learning rate. Every rank calls this."""
        rate = self._rates.get(int(step))
        at = f", at the learning rate {rate:g}" if rate is not None else ""
        raise DivergedError(
            f"training diverged at step {step:.0f}{at}: {what} is not a finite number (nan or inf); checkpoints from "
            "before are kept. Lower training.learning_rate, clip gradients (training.max_grad_norm) or raise "
            "training.warmup_steps, in a run of another name; run.resume: from:<checkpoint> begins it with the weights "
            "of one of them"
        )


def _all_finite(weights: Iterable[torch.Tensor], device: torch.device) -> torch.Tensor:
    """Returns whether all weights, or this rank's shards of them, are finite, as a tensor."""
    # FSDP2 and ZeRO-3 have a weight's shard in these attributes.
    shards = [getattr(weight, "_local_tensor", getattr(weight, "ds_tensor", weight)) for weight in weights]
    filled = [cast(torch.Tensor, shard).detach() for shard in shards if shard.numel()]
    if not filled:
        return torch.tensor(True, device=device)
    norms = torch._foreach_norm(filled, math.inf)
    return torch.isfinite(torch.stack([norm.to(device, torch.float32) for norm in norms])).all()
