"""Whisper with the modules, and so the names of weights, of OpenAI's own code (whisper/model.py), to check against."""

from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional

DIMS = {
    "n_mels": 80,
    "n_audio_ctx": 1500,
    "n_audio_state": 32,
    "n_audio_head": 2,
    "n_audio_layer": 2,
    "n_vocab": 51_865,
    "n_text_ctx": 448,
    "n_text_state": 32,
    "n_text_head": 2,
    "n_text_layer": 2,
}


class MultiHeadAttention(nn.Module):
    """Attention whose keys have no bias."""

    def __init__(self, width: int, heads: int):
        super().__init__()
        self.heads = heads
        self.query, self.value, self.out = (nn.Linear(width, width) for _ in range(3))
        self.key = nn.Linear(width, width, bias=False)

    def forward(self, x: Tensor, other: Tensor, *, causal: bool) -> Tensor:
        parts = (self.query(x), self.key(other), self.value(other))
        q, k, v = (each.unflatten(-1, (self.heads, -1)).transpose(1, 2) for each in parts)
        mixed = functional.scaled_dot_product_attention(q, k, v, is_causal=causal)
        output: Tensor = self.out(mixed.transpose(1, 2).flatten(2))
        return output


class ResidualAttentionBlock(nn.Module):
    """A layer of encoder or decoder."""

    def __init__(self, width: int, heads: int, *, cross_attention: bool):
        super().__init__()
        self.attn, self.attn_ln = MultiHeadAttention(width, heads), nn.LayerNorm(width)
        self.cross_attn = MultiHeadAttention(width, heads) if cross_attention else None
        self.cross_attn_ln = nn.LayerNorm(width) if cross_attention else None
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))
        self.mlp_ln = nn.LayerNorm(width)

    def forward(self, x: Tensor, audio: Tensor | None) -> Tensor:
        normed = self.attn_ln(x)
        x = x + self.attn(normed, normed, causal=audio is not None)
        if self.cross_attn is not None and self.cross_attn_ln is not None and audio is not None:
            x = x + self.cross_attn(self.cross_attn_ln(x), audio, causal=False)
        output: Tensor = x + self.mlp(self.mlp_ln(x))
        return output


def sinusoids(length: int, channels: int) -> Tensor:
    """Positions of the encoder, (length, channels)."""
    scales = torch.exp(-np.log(10_000) / (channels // 2 - 1) * torch.arange(channels // 2))
    time = torch.arange(length)[:, None] * scales[None]
    return torch.cat([time.sin(), time.cos()], dim=1)


class AudioEncoder(nn.Module):
    """Log-mel (B, F, T) to audio (B, T / 2, D)."""

    positional_embedding: Tensor

    def __init__(self, mels: int, context: int, width: int, heads: int, layers: int):
        super().__init__()
        self.conv1 = nn.Conv1d(mels, width, kernel_size=3, padding=1)
        self.conv2 = nn.Conv1d(width, width, kernel_size=3, stride=2, padding=1)
        self.register_buffer("positional_embedding", sinusoids(context, width))
        blocks = (ResidualAttentionBlock(width, heads, cross_attention=False) for _ in range(layers))
        self.blocks, self.ln_post = nn.ModuleList(blocks), nn.LayerNorm(width)

    def forward(self, mel: Tensor) -> Tensor:
        x = functional.gelu(self.conv2(functional.gelu(self.conv1(mel)))).transpose(1, 2) + self.positional_embedding
        for block in self.blocks:
            x = block(x, None)
        output: Tensor = self.ln_post(x)
        return output


class TextDecoder(nn.Module):
    """Tokens (B, L) and audio to logits (B, L, V)."""

    def __init__(self, vocabulary: int, context: int, width: int, heads: int, layers: int):
        super().__init__()
        self.token_embedding = nn.Embedding(vocabulary, width)
        self.positional_embedding = nn.Parameter(torch.randn(context, width) / 10)
        blocks = (ResidualAttentionBlock(width, heads, cross_attention=True) for _ in range(layers))
        self.blocks, self.ln = nn.ModuleList(blocks), nn.LayerNorm(width)

    def forward(self, tokens: Tensor, audio: Tensor) -> Tensor:
        x = self.token_embedding(tokens) + self.positional_embedding[: tokens.shape[-1]]
        for block in self.blocks:
            x = block(x, audio)
        logits: Tensor = self.ln(x) @ self.token_embedding.weight.T
        return logits


class Whisper(nn.Module):
    """The model of `DIMS`, with random weights."""

    def __init__(self) -> None:
        super().__init__()
        sizes = list(DIMS.values())
        self.encoder, self.decoder = AudioEncoder(*sizes[:5]), TextDecoder(*sizes[5:])

    def forward(self, mel: Tensor, tokens: Tensor) -> Tensor:
        logits: Tensor = self.decoder(tokens, self.encoder(mel))
        return logits


def write_checkpoint(file: Path, model: Whisper, dtype: torch.dtype = torch.float32) -> Path:
    """Writes a checkpoint as OpenAI publishes them; the released ones are of float16."""
    weights = {name: weight.to(dtype) for name, weight in model.state_dict().items()}
    torch.save({"dims": dict(DIMS), "model_state_dict": weights}, file)
    return file
