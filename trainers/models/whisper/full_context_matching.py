"""Keeps what a Whisper's encoder says at its full context near what the one that training began with says there."""

import copy
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from trainers.models.recognizer import Recognizer, computing_in
from trainers.models.whisper.whisper_part import WhisperPart


@contextmanager
def input_frames(network: Any, frames: int) -> Iterator[None]:
    """Within it, a Whisper takes inputs of exactly `frames` frames; generation follows.

    The encoder asks its config for the length and its position table for the number of rows; both are set for
    the moment, and no weight is touched, so that nothing of it can be saved.
    """
    config, positions = network.config, network.get_encoder().embed_positions
    full = config.max_source_positions
    config.max_source_positions = positions.num_embeddings = frames // 2
    try:
        yield
    finally:
        config.max_source_positions = positions.num_embeddings = full


class FullContextMatching:
    """The mean squared difference of two encoders' last hidden states: the trained one's, and a frozen original's.

    It is computed within the network's own forward pass, so that whatever wraps the network for training (DDP) sees one
    pass, and is given as the `loss` of its output, which nothing else fills where labels are not passed.
    """

    name = "full_context_matching"

    def __init__(self, recognizer: Recognizer, part: WhisperPart, autocast: torch.dtype | None):
        """Copies the encoder, which must still have the weights that training began with."""
        self.weight, self.fraction = part.full_context_matching, part.full_context_matching_fraction
        self._recognizer, self._features, self._autocast = recognizer, recognizer.new_features(), autocast
        self._context_s = recognizer.limits.context_s
        self._original = copy.deepcopy(recognizer.model.get_encoder()).eval().requires_grad_(False)
        self._given: tuple[torch.Tensor, torch.Tensor] | None = None
        recognizer.model.register_forward_hook(self._add)

    @contextmanager
    def of(self, clips: Sequence[torch.Tensor], shares: torch.Tensor) -> Iterator[None]:
        device = clips[0].device
        inputs = self._features.to(device).inputs(clips, self._context_s)
        self._given = self._recognizer.in_type_of_weights(inputs)["input_features"], shares.to(device)
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
            with input_frames(network, features.shape[-1]):
                given = network.get_encoder()(features).last_hidden_state
        difference: torch.Tensor = (given.float() - wanted.float()).square().mean(dim=(1, 2)) @ shares
        return difference
