"""When a Whisper speaks each word of a hypothesis: where the decoder looks at the encoder's output while it writes.

As in OpenAI's whisper/timing.py: attention of some heads, which the generation config names, is normalized over the
tokens and smoothed over time, and dynamic time warping finds the path of the tokens through it.
"""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from transformers.models.whisper.generation_whisper import _dynamic_time_warping, _median_filter

from trainers.models.decoder_labels import padded
from trainers.models.recognizer import Word

# The encoder halves frames of 10 ms.
OUTPUT_S = 0.02
# As Whisper's tokenizer names them.
WITHOUT_SPACES = ("chinese", "japanese", "thai", "lao", "myanmar", "cantonese")
# What a tokenizer writes for bytes that are no character.
INCOMPLETE = "\ufffd"


def has_alignment_heads(network: Any) -> bool:
    """Whether the generation config names heads that the decoder has."""
    heads = getattr(network.generation_config, "alignment_heads", None) or []
    layers, each = network.config.decoder_layers, network.config.decoder_attention_heads
    return bool(heads) and all(layer < layers and head < each for layer, head in heads)


@torch.no_grad()
def word_times(
    network: Any, tokenizer: Any, encoded: Any, prompts: torch.Tensor, hypotheses: Sequence[Sequence[int]]
) -> list[tuple[Word, ...]]:
    """The words of each hypothesis, by one more pass of the decoder.

    Args:
        network: The model, which has alignment heads.
        tokenizer: Its tokenizer.
        encoded: The encoder's output of each utterance.
        prompts: What generation begins with, (B, P).
        hypotheses: The tokens that were generated of each, without its end token.
    """
    end_id = network.generation_config.eos_token_id
    # They are no text, either.
    special = {number for number, token in tokenizer.added_tokens_decoder.items() if token.special}
    hypotheses = [[token for token in tokens if token not in special] for tokens in hypotheses]
    # The output at each position is the next token: those of the prompt's last and of all that follow are wanted.
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
    """The words of one hypothesis by its attention, (heads, tokens and the end token, outputs of the encoder)."""
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
    """Words, with what is written right before and behind them, and how many tokens each has."""
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
    """Within it, attention is computed so that its weights are known."""
    usual = network.config._attn_implementation
    network.set_attn_implementation("eager")
    try:
        yield
    finally:
        network.set_attn_implementation(usual)
