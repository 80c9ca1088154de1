"""A tiny Canary of random weights, as `save_pretrained` writes one."""

from pathlib import Path

import torch
from transformers import (
    CanaryConfig,
    CanaryForConditionalGeneration,
    CanaryProcessor,
    ParakeetFeatureExtractor,
    PreTrainedTokenizerFast,
)

from speech_tenants.canary_family import BEFORE, BEHIND, START
from speech_tenants.tiny_tdt import ENCODER, letter_tokenizer


def write_tiny_canary(folder: Path) -> None:
    """Writes model and processor into a folder."""
    prompt = [START, *BEFORE, *BEHIND, "<|en|>", "<|de|>"]
    backend, vocabulary = letter_tokenizer(["<pad>", "<unk>", "<|endoftext|>", *prompt])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=backend,
        pad_token="<pad>",
        unk_token="<unk>",
        eos_token="<|endoftext|>",
        additional_special_tokens=prompt,
    )
    torch.manual_seed(1)
    sizes = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}
    special = {"pad_token_id": 0, "eos_token_id": 2, "bos_token_id": 3}
    decoder = {"num_key_value_heads": 2, "head_dim": 8, "max_position_embeddings": 64, "vocab_size": len(vocabulary)}
    config = CanaryConfig(
        encoder_config={**ENCODER, "model_type": "parakeet_encoder"},
        decoder_config={**sizes, **decoder, **special},
        vocab_size=len(vocabulary),
        decoder_start_token_id=tokenizer.convert_tokens_to_ids(START),
        **special,
    )
    network = CanaryForConditionalGeneration(config)
    with torch.no_grad():
        # It writes letters, and other ones for other clips.
        network.model.decoder.embed_tokens.weight.mul_(10)
        network.proj_out.bias[: vocabulary.index("▁")] = -10.0
    network.save_pretrained(folder)
    CanaryProcessor(ParakeetFeatureExtractor(), tokenizer).save_pretrained(folder)
