"""Labels of models with a decoder: padding, the loss of each row, and the end of a hypothesis."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import torch

from trainers.models.recognizer import IGNORED_LABEL, label_loss


def padded(labels: Sequence[Sequence[int]]) -> torch.Tensor:
    """Returns the labels of all utterances, int64 (B, L), shorter ones padded with -100."""
    rows = [torch.tensor(row, dtype=torch.int64) for row in labels]
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=IGNORED_LABEL)


def pad_labels(
    labels: Sequence[Sequence[int]], samples: Sequence[int] = (), *, start_id: int, pad_id: int
) -> dict[str, torch.Tensor]:
    """Pads labels by length (never by token id: Whisper's padding token is its end token); a `LabelCollator`.

    Returns:
        int64 labels (B, L), padded with -100, and int64 decoder_input_ids (B, L): labels shifted right by one.
    """
    targets = padded(labels)
    inputs = torch.cat([torch.full((len(labels), 1), start_id, dtype=torch.int64), targets[:, :-1]], dim=1)
    return {"labels": targets, "decoder_input_ids": inputs.masked_fill(inputs == IGNORED_LABEL, pad_id)}


def row_losses(network: Any, given: Mapping[str, Any], collated: Mapping[str, Any], first: int = 0) -> list[float]:
    """Returns the cross-entropy of each row of collated labels from its token `first` on, nats."""
    inputs = {name: value.to(network.device) for name, value in collated.items()}
    targets = inputs.pop("labels")
    logits = network(**given, **inputs).logits
    rows = zip(logits[:, first:], targets[:, first:], strict=True)
    return [float(label_loss(row[None], target[None], 1)) for row, target in rows]


def without_end(tokens: Sequence[int], padding: Collection[int]) -> list[int]:
    """Returns a hypothesis's tokens without the end token and everything after it."""
    length = len(tokens)
    while length and tokens[length - 1] in padding:
        length -= 1
    return list(tokens[:length])
