"""Keeps what a Whisper's encoder says at its whole context near what the one that training began with says there."""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from trainers.models.adaptation.base_weights import Base
from trainers.models.recognizer import computing_in
from trainers.models.whisper.whisper_recognizer import WhisperRecognizer


class FullContextMatching:
    """The mean squared difference of two encoders' last hidden states: the trained one's, and a frozen original's.

    It is computed within the network's own forward pass, so that whatever wraps the network for training (DDP) sees one
    pass, and is given as the `loss` of its output, which nothing else fills where labels are not passed.

    Attributes:
        base: The weights that training began with.
        weight: What the difference is multiplied by before it is added to the loss.
    """

    def __init__(self, recognizer: WhisperRecognizer, base: Base, weight: float, autocast: torch.dtype | None):
        """Copies the encoder, which must still have the weights of `base`.

        Args:
            recognizer: Its network is trained.
            base: See above.
            weight: See above.
            autocast: Lower precision of training, or None for float32.
        """
        self.base, self.weight = base, weight
        self._recognizer, self._autocast = recognizer, autocast
        self._original = copy.deepcopy(recognizer.model.get_encoder()).eval().requires_grad_(False)
        self._given: tuple[torch.Tensor, torch.Tensor] | None = None
        recognizer.model.register_forward_hook(self._add)

    @property
    def has_own_base(self) -> bool:
        """Whether only this run has the weights that it began with."""
        return self.base.folder is not None

    @contextmanager
    def of(self, features: torch.Tensor, shares: torch.Tensor) -> Iterator[None]:
        """Within it, a forward pass gives the difference too.

        Args:
            features: Of the clips that are matched, padded to the whole context, (B, mel bins, frames).
            shares: What each counts of the step's difference, float32 (B,); they add to 1 over all ranks and passes.
        """
        self._given = features, shares.to(features.device)
        try:
            yield
        finally:
            self._given = None

    def _add(self, network: Any, inputs: Any, output: Any) -> None:
        # Generation calls the network, too.
        if self._given is not None:
            output["loss"] = self._difference(network, *self._given)

    def _difference(self, network: Any, features: torch.Tensor, shares: torch.Tensor) -> torch.Tensor:
        self._original.to(features.device)
        with computing_in(self._autocast, features.device):
            with torch.no_grad():
                wanted = self._original(features).last_hidden_state
            with self._recognizer.input_frames(features.shape[-1]):
                given = network.get_encoder()(features).last_hidden_state
        difference: torch.Tensor = (given.float() - wanted.float()).square().mean(dim=(1, 2)) @ shares
        return difference
