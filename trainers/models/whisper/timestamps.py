"""Generates Whisper's timestamps, and encodes labels with them.

A label with timestamps has no no-timestamps token; each segment is between the tokens of its start and its end, in
steps of 0.02 s, and its text begins with a space, as in Whisper's own training (Radford et al. 2022, section 2.3).
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from transformers import GenerationMixin
from transformers.generation.logits_process import LogitsProcessorList, WhisperTimeStampLogitsProcessor
from transformers.modeling_outputs import BaseModelOutput

from trainers.models.recognizer import Segment, Timestamps

STEP_S = 0.02
# The token before the text that precedes a clip.
PREVIOUS_TEXT = "<|startofprev|>"


def generate_segments(
    model: Any, tokenizer: Any, encoded: Any, prompts: torch.Tensor, most_tokens: int
) -> list[list[Segment] | None]:
    """Generates each clip's text with timestamps, greedily; None for a clip whose last segment does not end.

    Args:
        model: The WhisperForConditionalGeneration.
        tokenizer: Its tokenizer.
        encoded: Output of its encoder.
        prompts: Start, language and task tokens of each clip, int64 (B, P).
        most_tokens: Maximum number of generated tokens.
    """
    generation = model.generation_config
    rules = WhisperTimeStampLogitsProcessor(generation, begin_index=prompts.shape[1])
    tokens = GenerationMixin.generate(
        model,
        encoder_outputs=BaseModelOutput(encoded.last_hidden_state),
        decoder_input_ids=prompts,
        max_new_tokens=most_tokens,
        num_beams=1,
        do_sample=False,
        logits_processor=LogitsProcessorList([rules]),
    )[:, prompts.shape[1] :]
    first, last = generation.no_timestamps_token_id + 1, generation.eos_token_id

    def decode(ids: Sequence[int]) -> str:
        text: str = tokenizer.decode(ids, skip_special_tokens=True)
        return text.strip()

    return [segments_in(row[: row.index(last)] if last in row else row, first, decode) for row in tokens.tolist()]


def segments_in(tokens: Sequence[int], first: int, decode: Callable[[Sequence[int]], str]) -> list[Segment] | None:
    """Returns the segments of generated tokens, without the end token; None if one does not begin or end.

    `first` is the id of the token of 0 s.
    """
    found: list[Segment] = []
    start: int | None = None
    text: list[int] = []
    for token in tokens:
        if token < first:
            text.append(token)
            continue
        if text:
            if start is None:
                return None
            found.append(Segment(decode(text), (start - first) * STEP_S, (token - first) * STEP_S))
            start, text = None, []
        else:
            start = token
    return None if text else [each for each in found if each.text]


def timed_label(segments: Sequence[Segment], tokenizer: Any, timestamps: Timestamps, longest_s: float) -> Iterator[int]:
    """Yields the label ids of segments, whose times never decrease and are at most `longest_s`."""
    at_s = 0.0
    for each in segments:
        # Segments may overlap a little, such as by rounding.
        start_s = max(each.start_s, at_s)
        at_s = max(each.end_s, start_s)
        yield timestamps.id_of(start_s, longest_s)
        yield from tokenizer.backend_tokenizer.encode(f" {each.text}", add_special_tokens=False).ids
        yield timestamps.id_of(at_s, longest_s)
