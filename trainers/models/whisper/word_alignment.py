"""Computes word timestamps of a hypothesis, from the decoder's attention to the encoder's output.

As in OpenAI's whisper/timing.py, the attention of some heads, which the generation config names, is normalized over
the tokens and smoothed over time, and dynamic time warping finds the path of the tokens through it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from trainers.models.recognizer import Word, padded

# The encoder has one output for two frames of 10 ms.
OUTPUT_S = 0.02
# Languages without spaces between words, by their names in Whisper's tokenizer.
WITHOUT_SPACES = ("chinese", "japanese", "thai", "lao", "myanmar", "cantonese")
# A tokenizer's output for bytes that are not a complete character.
INCOMPLETE = "\ufffd"


def has_alignment_heads(network: Any) -> bool:
    """Returns True if the generation config names attention heads, all of which the decoder has."""
    heads = getattr(network.generation_config, "alignment_heads", None) or []
    layers, each = network.config.decoder_layers, network.config.decoder_attention_heads
    return bool(heads) and all(layer < layers and head < each for layer, head in heads)


@torch.no_grad()
def word_times(
    network: Any, tokenizer: Any, encoded: Any, prompts: torch.Tensor, hypotheses: Sequence[Sequence[int]]
) -> list[tuple[Word, ...]]:
    """Returns the words of each hypothesis with timestamps, by another pass of the decoder.

    Args:
        network: The model, which has alignment heads.
        tokenizer: Its tokenizer.
        encoded: The encoder's output of each utterance.
        prompts: The prompts of generation, (B, P).
        hypotheses: The generated tokens of each, without the end token.
    """
    end_id = network.generation_config.eos_token_id
    # Special tokens are left out, since they are not text.
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    hypotheses = [[token for token in tokens if token not in special] for tokens in hypotheses]
    # The output at each position predicts the next token, so those from the last token of the prompt on are used.
    rows = padded([*hypotheses, []])[:-1].to(prompts.device)
    inputs = torch.cat([prompts, rows.masked_fill(rows < 0, end_id)], dim=1)
    with _computing_attention(network):
        attended = network(encoder_outputs=encoded, decoder_input_ids=inputs, output_attentions=True).cross_attentions
    chosen = [attended[layer][:, head] for layer, head in network.generation_config.alignment_heads]
    weights = torch.stack(chosen, dim=1)[:, :, prompts.shape[1] - 1 :].float()
    return [
        _words(tokenizer, list(tokens), own[:, : len(tokens) + 1], network.config.median_filter_width)
        for tokens, own in zip(hypotheses, weights, strict=True)
    ]


def _words(tokenizer: Any, tokens: list[int], weights: torch.Tensor, width: int) -> tuple[Word, ...]:
    """Returns the words of one hypothesis, given its attention (heads, tokens and end token, encoder outputs)."""
    if not tokens:
        return ()
    deviation, mean = torch.std_mean(weights, dim=-2, keepdim=True, unbiased=False)
    smoothed = _median_filter((weights - mean) / deviation.clamp(min=1e-9), width).mean(dim=0)
    places, times = _dynamic_time_warping(-smoothed.cpu().double().numpy())
    starts_s = [float(times[places == place][0]) * OUTPUT_S for place in range(len(tokens) + 1)]
    found = []
    start = 0
    for text, count in _spelled(tokenizer, tokens):
        end = start + count
        if text.strip():
            found.append(Word(text.strip(), starts_s[start], starts_s[end]))
        start = end
    return tuple(found)


def _spelled(tokenizer: Any, tokens: list[int]) -> list[tuple[str, int]]:
    """Returns words, with adjacent punctuation, and the number of tokens of each."""
    words: list[tuple[str, int]] = []
    spaced, waiting = tokenizer.language not in WITHOUT_SPACES, 0
    for end in range(1, len(tokens) + 1):
        waiting += 1
        piece = tokenizer.decode(tokens[end - waiting : end])
        # The rest of a character is in the next token.
        if INCOMPLETE in piece and end < len(tokens):
            continue
        is_new = piece[:1].isspace() if spaced else any(map(str.isalnum, piece))
        if is_new or not words:
            words.append((piece, waiting))
        else:
            words[-1] = (words[-1][0] + piece, words[-1][1] + waiting)
        waiting = 0
    return words


@contextmanager
def _computing_attention(network: Any) -> Iterator[None]:
    """Returns a context in which the network also returns the weights of its attention."""
    usual = network.config._attn_implementation
    network.set_attn_implementation("eager")
    try:
        yield
    finally:
        network.set_attn_implementation(usual)
