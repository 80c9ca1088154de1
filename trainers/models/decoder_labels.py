"""Labels of models with a decoder: how they are padded, what each row costs, and where a hypothesis ends."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from trainers.models.recognizer import IGNORED_LABEL, label_loss


def padded(labels: Sequence[Sequence[int]]) -> torch.Tensor:
    """Labels of each utterance with -100 behind the shorter ones, int64 (B, L)."""
    rows = [torch.tensor(row, dtype=torch.int64) for row in labels]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED_LABEL)


def pad_labels(
    labels: Sequence[Sequence[int]], samples: Sequence[int] = (), *, start_id: int, pad_id: int
) -> dict[str, torch.Tensor]:
    """Pads labels by their lengths (never by token id: Whisper's padding token is its end token); a `LabelCollator`.

    Returns:
        int64 labels (B, L), -100 behind each, and int64 decoder_input_ids (B, L): labels moved right by one.
    """
    targets = padded(labels)
    inputs = torch.cat([torch.full((len(labels), 1), start_id, dtype=torch.int64), targets[:, :-1]], dim=1)
    return {"labels": targets, "decoder_input_ids": inputs.masked_fill(inputs == IGNORED_LABEL, pad_id)}


def row_losses(network: Any, given: Mapping[str, Any], collated: Mapping[str, Any], first: int = 0) -> list[float]:
    """Cross-entropy of each row of collated labels from its token `first` on, nats."""
    inputs = {name: value.to(network.device) for name, value in collated.items()}
    targets = inputs.pop("labels")
    logits = network(**given, **inputs).logits
    rows = zip(logits[:, first:], targets[:, first:], strict=True)
    return [float(label_loss(row[None], target[None], 1)) for row, target in rows]


def without_end(tokens: Sequence[int], padding: Collection[int]) -> list[int]:
    """Tokens of a hypothesis without its end token and what is behind it."""
    length = len(tokens)
    while length and tokens[length - 1] in padding:
        length -= 1
    return list(tokens[:length])
