"""A tiny Qwen3-ASR of random weights, as `save_pretrained` writes one."""

from pathlib import Path

import torch
from transformers import (
    PreTrainedTokenizerFast,
    Qwen3ASRConfig,
    Qwen3ASRFeatureExtractor,
    Qwen3ASRForConditionalGeneration,
    Qwen3ASRProcessor,
)

from speech_tenants.tiny_tdt import letter_tokenizer

SPECIAL = ("<|endoftext|>", "<unk>", "<|im_start|>", "<|im_end|>", "<|audio_start|>", "<|audio_pad|>", "<|audio_end|>")


def write_tiny_qwen3(folder: Path) -> None:
    """Writes model and processor into a folder."""
    backend, vocabulary = letter_tokenizer([*SPECIAL, "<asr_text>", "\n", *"EGSF"])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<|endoftext|>",
        eos_token="<|im_end|>",
        unk_token="<unk>",
        additional_special_tokens=["<|im_start|>", "<asr_text>"],
        extra_special_tokens={
            "audio_token": "<|audio_pad|>",
            "audio_bos_token": "<|audio_start|>",
            "audio_eos_token": "<|audio_end|>",
        },
    )
    torch.manual_seed(1)
    config = Qwen3ASRConfig(
        audio_config={
            **{"encoder_layers": 2, "encoder_attention_heads": 2, "encoder_ffn_dim": 32, "d_model": 16},
            **{"output_dim": 16, "downsample_hidden_size": 8},
        },
        text_config={
            **{"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2},
            **{"num_key_value_heads": 2, "head_dim": 8, "vocab_size": len(vocabulary), "tie_word_embeddings": True},
        },
        audio_token_id=vocabulary.index("<|audio_pad|>"),
        pad_token_id=vocabulary.index("<|endoftext|>"),
        eos_token_id=vocabulary.index("<|im_end|>"),
    )
    network = Qwen3ASRForConditionalGeneration(config)
    with torch.no_grad():
        # It writes letters: of other tokens each output is 0.
        network.model.language_model.embed_tokens.weight[: vocabulary.index("▁")] = 0.0
    network.save_pretrained(folder)
    Qwen3ASRProcessor(Qwen3ASRFeatureExtractor(), tokenizer).save_pretrained(folder)
