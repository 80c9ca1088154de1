"""What takes part in each step of a generation: one suppresses timestamps, one keeps what is to be reported."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers import LogitsProcessor


class NoTimestamps(LogitsProcessor):
    """Suppresses timestamps: after one, generation would go back to the audio.

    They end the vocabulary. SuppressTokensLogitsProcessor looks for each token in a list at every step, which costs a
    tenth of a generated token on a CPU.
    """

    def __init__(self, first: int):
        self._first = first

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Gives the scores (B × beams, V) with minus infinity for each timestamp."""
        kept = scores.clone()
        kept[:, self._first :] = -torch.inf
        return kept


class GenerationRecorder(LogitsProcessor):
    """Keeps what generation begins with, and how likely each token is that a greedy one chooses.

    The latter by the model's own logits, before any token is suppressed. One more pass of the decoder over the
    hypotheses gives the same, and takes a fifth of the time of scoring short clips.

    Attributes:
        prompts: The start, language and task tokens, (B × beams, P).
    """

    prompts: torch.Tensor

    def __init__(self) -> None:
        # Of the pass that ran last, and of the one whose token is chosen, (B, V).
        self._newest: torch.Tensor | None = None
        self._logits: torch.Tensor | None = None
        self._logprobs: list[torch.Tensor] = []

    @contextmanager
    def listening(self, output_layer: torch.nn.Module) -> Iterator[None]:
        """Within it, it hears what the output layer gives; where it hears nothing, it keeps the prompts alone."""

        def keep(layer: torch.nn.Module, inputs: Any, logits: torch.Tensor) -> None:
            self._newest = logits[:, -1]

        handle = output_layer.register_forward_hook(keep)
        try:
            yield
        finally:
            handle.remove()

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor) -> torch.Tensor:
        """Gives the scores as they are."""
        if not hasattr(self, "prompts"):
            self.prompts = input_ids.clone()
        elif self._logits is not None:
            self._choose(input_ids[:, -1])
        self._logits = self._newest
        return scores

    def mean_logprobs(self, hypotheses: Sequence[Sequence[int]]) -> list[float]:
        """The mean log-probability of the tokens of each hypothesis, nats; its end token is one of them."""
        step = len(self._logprobs)
        last = [tokens[step] if step < len(tokens) else 0 for tokens in hypotheses]
        self._choose(torch.tensor(last, device=self.prompts.device))
        rows = torch.stack(self._logprobs, dim=1)
        return [float(row[: len(tokens)].mean()) for row, tokens in zip(rows, hypotheses, strict=True)]

    def _choose(self, tokens: torch.Tensor) -> None:
        assert self._logits is not None
        logits = self._logits.float()
        self._logprobs.append(logits.gather(1, tokens[:, None])[:, 0] - logits.logsumexp(dim=-1))
