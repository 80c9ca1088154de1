"""Builds a new encoder-decoder model from a pretrained speech encoder and a pretrained text decoder."""

from pathlib import Path
from typing import Any

from transformers import AutoConfig, SpeechEncoderDecoderConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trainers.errors import ConfigError

# Embeddings shared by encoder and decoder in models such as BART, under the name that a decoder alone uses.
SHARED_EMBEDDINGS = {r"^(model\.)?shared\.": "model.decoder.embed_tokens."}
_NAME = "name a decoder of text, such as a GPT-2 or a BART"


def join(encoder: Path, decoder: Path, tokenizer: Any, folder: Path, *, weights: bool, seed: int) -> None:
    """Writes the model joined from two folders into a third folder, with or without its weights.

    The decoder's attention to the encoder, and layers that match their widths, are new and initialized from the seed,
    so that they are the same on every node.

    Raises:
        ConfigError: the decoder is not a causal language model that can attend to an encoder, or its tokenizer has
            neither start nor end token.
    """
    wanted = AutoConfig.from_pretrained(decoder, trust_remote_code=False)
    if wanted.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ConfigError(
            f"model.decoder: has model_type {wanted.model_type}, which AutoModelForCausalLM does not open: {_NAME}"
        )
    # The decoder of an encoder-decoder model always attends to an encoder.
    if not (wanted.is_encoder_decoder or hasattr(wanted, "add_cross_attention")):
        raise ConfigError(
            f"model.decoder: models of the model_type {wanted.model_type} cannot attend to an encoder: {_NAME}"
        )
    # transformers requires both, and a config need not have them (seen with 5.23).
    wanted.is_decoder = wanted.add_cross_attention = True
    ids = _tokens(wanted, tokenizer)
    config: Any
    if weights:
        _join_weights(encoder, decoder, wanted, folder, seed)
        config = SpeechEncoderDecoderConfig.from_pretrained(folder)
    else:
        parts = AutoConfig.from_pretrained(encoder, trust_remote_code=False), wanted
        config = SpeechEncoderDecoderConfig.from_encoder_decoder_configs(*parts, tie_word_embeddings=False)
    for part in (config.encoder, config.decoder):
        # The path is that of a folder on this node, and would be saved with the model.
        part._name_or_path = ""
    config.architectures = ["SpeechEncoderDecoderModel"]
    config.update(ids)
    config.save_pretrained(folder)


def _join_weights(encoder: Path, decoder: Path, wanted: Any, folder: Path, seed: int) -> None:
    # Imported lazily: the description alone needs no torch.
    import torch  # noqa: PLC0415
    from transformers import GenerationConfig, SpeechEncoderDecoderModel  # noqa: PLC0415

    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        options: dict[str, Any] = {"encoder_dtype": torch.float32, "decoder_dtype": torch.float32}
        options |= {"decoder_config": wanted, "decoder_key_mapping": SHARED_EMBEDDINGS}
        network = SpeechEncoderDecoderModel.from_encoder_decoder_pretrained(str(encoder), str(decoder), **options)
    # The decoder's own generation config would override the model's tokens.
    network.generation_config = GenerationConfig()
    network.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)


def _tokens(decoder: Any, tokenizer: Any) -> dict[str, Any]:
    """Returns the tokens around a text: the decoder's own, else the first and last ones of its tokenizer."""
    start = (
        decoder.decoder_start_token_id if hasattr(decoder, "decoder_start_token_id") else None,
        decoder.bos_token_id,
    )
    found = {
        "decoder_start_token_id": (*start, tokenizer.bos_token_id, tokenizer.cls_token_id),
        "eos_token_id": (tokenizer.eos_token_id, tokenizer.sep_token_id, decoder.eos_token_id),
    }
    ids = {name: next((value for value in values if value is not None), None) for name, values in found.items()}
    if None in ids.values():
        lacked = ", ".join(name for name, value in ids.items() if value is None)
        raise ConfigError(
            f"model.decoder: neither its config nor its tokenizer has a {lacked}: write it in config.json"
        )
    pad = tokenizer.pad_token_id if tokenizer.pad_token_id is not None else decoder.pad_token_id
    return {**ids, "pad_token_id": pad if pad is not None else ids["eos_token_id"]}
