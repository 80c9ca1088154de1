"""A tiny Parakeet TDT of random weights, as `save_pretrained` writes one."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    ParakeetEncoderConfig,
    ParakeetFeatureExtractor,
    ParakeetForTDT,
    ParakeetProcessor,
    ParakeetTDTConfig,
    ParakeetTokenizer,
)

LETTERS = "abcdefghijklmnopqrstuvwxyz'"
ENCODER: dict[str, Any] = {
    **{"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32},
    **{"subsampling_conv_channels": 8, "dropout": 0.0, "dropout_positions": 0.0, "layerdrop": 0.0},
    **{"activation_dropout": 0.0, "attention_dropout": 0.0},
}


def letter_tokenizer(special: Sequence[str]) -> tuple[Tokenizer, list[str]]:
    """A tokenizer of letters, and its vocabulary, which begins with these tokens."""
    vocabulary = [*special, "▁", *LETTERS]
    backend = Tokenizer(models.BPE({token: number for number, token in enumerate(vocabulary)}, [], unk_token="<unk>"))
    backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme="never")
    backend.decoder = decoders.Metaspace(prepend_scheme="never")
    return backend, vocabulary


def write_tiny_tdt(folder: Path) -> None:
    """Writes model and processor into a folder."""
    backend, vocabulary = letter_tokenizer(["<pad>", "<unk>", "<blank>"])
    tokenizer = ParakeetTokenizer(
        tokenizer_object=backend, pad_token="<pad>", unk_token="<unk>", additional_special_tokens=["<blank>"]
    )
    processor = ParakeetProcessor(ParakeetFeatureExtractor(), tokenizer, blank_token="<blank>", decoder_type="tdt")
    torch.manual_seed(1)
    blank_id = vocabulary.index("<blank>")
    config = ParakeetTDTConfig(
        vocab_size=len(vocabulary),
        decoder_hidden_size=16,
        num_decoder_layers=1,
        encoder_config=ParakeetEncoderConfig(**ENCODER).to_dict(),
        blank_token_id=blank_id,
        pad_token_id=0,
    )
    network = ParakeetForTDT(config)
    network.generation_config.decoder_start_token_id = blank_id
    network.save_pretrained(folder)
    processor.save_pretrained(folder)
