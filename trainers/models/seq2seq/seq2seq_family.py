"""Defines the family of encoder-decoder models other than Whisper, whose processors are pretrained.

A new model begins with a pretrained speech encoder and a pretrained text decoder (`join`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import version
from itertools import starmap
from pathlib import Path
from typing import Any, ClassVar

import transformers
from transformers import AutoConfig, AutoFeatureExtractor, AutoTokenizer, SpeechEncoderDecoderConfig
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trainers.data.frame_count import MEL_WINDOW, Convolution, FrameCount
from trainers.errors import ConfigError
from trainers.models.adaptation.network_parts import PROJECTOR, Parts, encoder_decoder_parts
from trainers.models.family import Family
from trainers.models.label_codec import Limits
from trainers.models.language_names import code_or_name
from trainers.models.pretrained import (
    from_pretrained,
    open_pretrained,
    refuse_without_processor,
)
from trainers.models.seq2seq.seq2seq_part import Seq2SeqPart
from trainers.models.tokenizer_processor import refuse_other_rate, refuse_tokens_beyond, tokenizer_fingerprint

# Limits attention to the outputs of two minutes of audio.
CONTEXT_S = 120.0
# Maximum number of label tokens for a decoder whose config has no number of positions.
LABEL_TOKENS = 1024
# The layers over samples of MoonshineEncoder, which are not in any config.
MOONSHINE_LAYERS = (Convolution(127, 64), Convolution(7, 3), Convolution(3, 2))
# Embeddings shared by encoder and decoder in models such as BART, under the name that a decoder alone uses.
SHARED_EMBEDDINGS = {r"^(model\.)?shared\.": "model.decoder.embed_tokens."}
_INSTEAD = "name a decoder of text, such as a GPT-2 or a BART"
POSITIONS = ("max_target_positions", "max_position_embeddings", "n_positions")


@dataclass(frozen=True)
class Seq2SeqProcessor:
    """Feature extractor and tokenizer, and the decoder's tokens around a text.

    Attributes:
        start_id: The decoder's start token, which is given, and is in no label.
        end_id: Last token of each label.
        pad_id: Padding of shorter labels.
        language_id: The token of the language, the first of each label, with which hypotheses are forced to begin.
            None if the tokenizer has no such tokens.
    """

    feature_extractor: Any
    tokenizer: Any
    start_id: int
    end_id: int
    pad_id: int
    language_id: int | None = None

    def save_pretrained(self, folder: str | Path) -> None:
        self.feature_extractor.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


def processor_of(name_or_path: str | Path, revision: str, config: Any, language: str | None = None) -> Seq2SeqProcessor:
    """Opens a processor with labels in a language, by default that with which the tokenizer was saved.

    Raises ConfigError if it does not match the model, or has no token for the language.
    """
    extractor = AutoFeatureExtractor.from_pretrained(name_or_path, revision=revision)
    refuse_other_rate(extractor, str(name_or_path))
    tokenizer = AutoTokenizer.from_pretrained(name_or_path, revision=revision)
    names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    start_id, end_id, pad_id = (_id_of(config, name, str(name_or_path)) for name in names)
    language_id = _set_language(tokenizer, language, name_or_path)
    outputs = getattr(config, "decoder", config).vocab_size
    refuse_tokens_beyond(tokenizer, outputs, (start_id, end_id, pad_id, language_id), str(name_or_path))
    return Seq2SeqProcessor(extractor, tokenizer, start_id, end_id, pad_id, language_id)


def _set_language(tokenizer: Any, language: str | None, origin: str | Path) -> int | None:
    """Makes a tokenizer with language tokens (multilingual Speech2Text) begin labels with one, and returns its id.

    Returns None for a tokenizer without such tokens, which can write any language.
    """
    if getattr(tokenizer, "lang_codes", None) is None:
        return None
    if language is not None:
        token = token_of(tokenizer, language)
        if token is None:
            known = ", ".join(sorted(tokenizer.lang_code_to_id))
            raise ConfigError(f"model.language is {language}, and {origin} has tokens for {known}: name one of these")
        tokenizer.tgt_lang = token
    return int(tokenizer.lang_code_to_id[tokenizer.tgt_lang])


def token_of(tokenizer: Any, language: str) -> str | None:
    """Returns a tokenizer's code for a language, preferring the given one; None if it has no token for the language."""
    if language in tokenizer.lang_code_to_id:
        return language
    return next((own for own in tokenizer.lang_code_to_id if code_or_name(own) == code_or_name(language)), None)


def _id_of(config: Any, name: str, origin: str) -> int:
    """Returns a token id of the decoder, which a composed model's config has at the top or in its decoder part."""
    found = [getattr(part, name, None) for part in (config, getattr(config, "decoder", None))]
    if (number := next((each for each in found if each is not None), None)) is None:
        raise ConfigError(f"{origin}: config.json has no {name}: write there which token it is")
    return int(number)


def _least_samples(config: Any, extractor: Any) -> int:
    """Returns the number of samples of the shortest clip that has an output."""
    if extractor.model_input_names[0] == "input_features":
        # The variance over frames, used in normalization, requires two frames.
        return MEL_WINDOW.kernel + MEL_WINDOW.stride
    if config.model_type == "moonshine":
        return FrameCount(MOONSHINE_LAYERS).least_samples
    encoder = getattr(config, "encoder", config)
    kernels, strides = getattr(encoder, "conv_kernel", ()), getattr(encoder, "conv_stride", ())
    return FrameCount(tuple(starmap(Convolution, zip(kernels, strides, strict=True)))).least_samples


class Seq2SeqFamily(Family[Seq2SeqPart]):
    """Models of AutoModelForSpeechSeq2Seq that need no additional inputs."""

    name = "seq2seq"
    model_types: tuple[str, ...] = ("speech_to_text", "speech-encoder-decoder", "moonshine")

    context_s = CONTEXT_S
    recognizer: ClassVar[str] = f"{__package__}.seq2seq_recognizer:Seq2SeqRecognizer"

    def auto_class(self, config: Any) -> Any:
        return transformers.AutoModelForSpeechSeq2Seq

    def parts(self, network: Any) -> Parts:
        parts = encoder_decoder_parts(network)
        return {**parts, PROJECTOR: ["enc_to_dec_proj"]} if hasattr(network, "enc_to_dec_proj") else parts

    def open_processor(self, model: Seq2SeqPart, description: Path | None) -> Seq2SeqProcessor:
        if description is not None:
            return processor_of(description, "main", AutoConfig.from_pretrained(description), model.language)
        refuse_without_processor(model)
        name, revision = str(model.name_or_path), model.revision or "main"
        config = from_pretrained(model, AutoConfig)
        return open_pretrained(model, lambda: processor_of(name, revision, config, model.language))

    def limits(self, config: Any, processor: Any) -> Limits:
        """Returns the limits of a model; padding is assumed to change outputs, as in some models."""
        decoder = getattr(config, "decoder", config)
        found = (getattr(decoder, name, None) for name in POSITIONS)
        tokens = next((int(size) for size in found if size), LABEL_TOKENS)
        return Limits(
            context_s=CONTEXT_S,
            label_tokens=tokens,
            prefix_tokens=0,
            new_tokens=tokens - 1,
            full_context=False,
            padding_affects_output=True,
            has_bins=processor.feature_extractor.model_input_names[0] == "input_features",
            least_samples=_least_samples(config, processor.feature_extractor),
        )

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        """Returns the tokenizer's label ids of each text, without the decoder's start token, and with one end token."""
        encoded = processor.tokenizer(list(texts)).input_ids if texts else []
        inner = [list(ids[1:] if ids and ids[0] == processor.start_id else ids) for ids in encoded]
        return [ids if ids and ids[-1] == processor.end_id else [*ids, processor.end_id] for ids in inner]

    def labels_fingerprint(self, processor: Any) -> str:
        """Returns a hash of the tokenizer's files and the tokens around a text."""
        tokens = (processor.start_id, processor.end_id, version("transformers"), version("tokenizers"))
        return tokenizer_fingerprint(processor.tokenizer, repr(tokens))

    def language_prefix(self, processor: Seq2SeqProcessor | None, language: str | None) -> list[int]:
        if processor is None or processor.language_id is None:
            return []
        if language is None:
            return [processor.language_id]
        tokens: dict[str, int] = processor.tokenizer.lang_code_to_id
        token = token_of(processor.tokenizer, language)
        if token is None:
            raise ConfigError(f"the model has tokens for {', '.join(sorted(tokens))}")
        return [tokens[token]]


def join(encoder: Path, decoder: Path, tokenizer: Any, folder: Path, *, weights: bool, seed: int) -> None:
    """Writes the model joined from two folders into a third folder, with or without its weights.

    The decoder's attention to the encoder, and layers that match their widths, are new and initialized from the seed,
    so that they are the same on every node. Raises ConfigError if the decoder is not a causal language model that can
    attend to an encoder, or its tokenizer has neither start nor end token.
    """
    wanted = AutoConfig.from_pretrained(decoder, trust_remote_code=False)
    if wanted.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ConfigError(
            f"model.decoder: has model_type {wanted.model_type}, which AutoModelForCausalLM does not open: {_INSTEAD}"
        )
    # The decoder of an encoder-decoder model always attends to an encoder.
    if not (wanted.is_encoder_decoder or hasattr(wanted, "add_cross_attention")):
        raise ConfigError(
            f"model.decoder: models of the model_type {wanted.model_type} cannot attend to an encoder: {_INSTEAD}"
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
        # This path of a folder on this node would be saved with the model.
        part._name_or_path = ""
    config.architectures = ["SpeechEncoderDecoderModel"]
    config.update(ids)
    config.save_pretrained(folder)


def _join_weights(encoder: Path, decoder: Path, wanted: Any, folder: Path, seed: int) -> None:
    # Imported here because the description alone needs no torch.
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
    """Returns the tokens around a text: the decoder's own, else the first and last tokens of its tokenizer."""
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
