"""Builds everything of a new Whisper except weights: tokenizer, feature extractor, model and generation config.

Everything is built offline. The special tokens have the order of the released multilingual models, because the
reference tokenizer computes a language's token from that of <|startoftranscript|>.
"""

import json
from collections.abc import Iterable
from typing import Any

import transformers
from transformers import (
    AddedToken,
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperProcessor,
    WhisperTokenizer,
)

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.models.language_names import LANGUAGES
from trainers.models.tokenizer_processor import learned_bpe
from trainers.models.whisper.whisper_part import CONTEXT_S, WhisperPart, language_code

END = "<|endoftext|>"
START = "<|startoftranscript|>"
NO_TIMESTAMPS = "<|notimestamps|>"
TASKS = ("translate", "transcribe")
# Seconds between two timestamp tokens, and seconds of one output of the encoder.
TIME_PRECISION_S = 0.02
# Length of SpecAugment's masks, as in every released model.
MASK_LENGTH = 10
DROPOUTS = ("dropout", "attention_dropout", "activation_dropout")


def new_tokenizer(texts: Iterable[str], model: WhisperPart) -> WhisperTokenizer:
    """Learns a byte-level BPE from the training text alone, and adds Whisper's special tokens and timestamps."""
    learner = learned_bpe(texts, model.vocab_size - 1)
    learned = learner.get_vocab()
    merges = [tuple(pair) for pair in json.loads(learner.to_str())["model"]["merges"]]
    vocabulary = {token: learned[token] for token in sorted(learned, key=learned.__getitem__)}
    vocabulary[END] = len(vocabulary)
    tokenizer = WhisperTokenizer(
        vocab=vocabulary, merges=merges, pad_token=END, model_max_length=model.max_label_tokens
    )
    special = [
        START,
        *(f"<|{code}|>" for code in LANGUAGES),
        *(f"<|{task}|>" for task in TASKS),
        "<|startoflm|>",
        "<|startofprev|>",
        "<|nospeech|>",
        NO_TIMESTAMPS,
    ]
    tokenizer.add_tokens([AddedToken(token, special=True, normalized=False) for token in special], special_tokens=True)
    stamps = round((model.max_context_s or CONTEXT_S) / TIME_PRECISION_S) + 1
    tokenizer.add_tokens(
        [AddedToken(f"<|{index * TIME_PRECISION_S:.2f}|>", special=False, normalized=False) for index in range(stamps)]
    )
    assert model.token_language is not None
    tokenizer.set_prefix_tokens(language=LANGUAGES[language_code(model.token_language)], task=model.task)
    return tokenizer


def new_processor(texts: Iterable[str], model: WhisperPart) -> WhisperProcessor:
    """Returns a processor with a tokenizer learned from `texts`, and the feature extractor for the model's context."""
    extractor = WhisperFeatureExtractor(
        feature_size=model.num_mel_bins, sampling_rate=SAMPLING_RATE_HZ, chunk_length=model.max_context_s or CONTEXT_S
    )
    return WhisperProcessor(extractor, new_tokenizer(texts, model))


def new_config(model: WhisperPart, tokenizer: Any) -> WhisperConfig:
    """Returns the config of a new model of the sizes in the model part. Dropout is 0 unless configured."""
    ffn_dim = model.ffn_dim or 4 * model.d_model
    return WhisperConfig(
        vocab_size=len(tokenizer),
        num_mel_bins=model.num_mel_bins,
        d_model=model.d_model,
        encoder_layers=model.encoder_layers,
        decoder_layers=model.decoder_layers,
        encoder_attention_heads=model.attention_heads,
        decoder_attention_heads=model.attention_heads,
        encoder_ffn_dim=ffn_dim,
        decoder_ffn_dim=ffn_dim,
        max_source_positions=round((model.max_context_s or CONTEXT_S) / TIME_PRECISION_S),
        max_target_positions=model.max_label_tokens,
        dropout=model.dropout or 0.0,
        attention_dropout=model.attention_dropout or 0.0,
        activation_dropout=model.activation_dropout or 0.0,
        apply_spec_augment=model.apply_spec_augment,
        mask_time_prob=model.mask_time_prob,
        mask_time_length=model.mask_time_length or MASK_LENGTH,
        mask_feature_prob=model.mask_feature_prob,
        mask_feature_length=model.mask_feature_length or MASK_LENGTH,
        pad_token_id=tokenizer.pad_token_id,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        decoder_start_token_id=tokenizer.convert_tokens_to_ids(START),
        architectures=["WhisperForConditionalGeneration"],
    )


def regularization(model: WhisperPart) -> dict[str, Any]:
    """Returns the changes to a model's own config: dropout, if configured, and SpecAugment."""
    return model.masking | {name: value for name in DROPOUTS if (value := getattr(model, name)) is not None}


def new_generation_config(model: WhisperPart, tokenizer: Any) -> GenerationConfig:
    """Returns the config with which the model transcribes, also in a pipeline: start, language, task, no timestamps."""
    assert model.token_language is not None
    return generation_config_of(
        tokenizer,
        max_length=model.max_label_tokens,
        is_multilingual=True,
        **token_tables(tokenizer),
        language=LANGUAGES[language_code(model.token_language)],
        task=model.task,
        transformers_version=transformers.__version__,
    )


def generation_config_of(tokenizer: Any, **options: Any) -> GenerationConfig:
    """Returns a generation config with a tokenizer's tokens around a text, without timestamps."""
    token_id, end = tokenizer.convert_tokens_to_ids, tokenizer.eos_token_id
    return GenerationConfig(
        pad_token_id=end,
        bos_token_id=end,
        eos_token_id=end,
        decoder_start_token_id=token_id(START),
        no_timestamps_token_id=token_id(NO_TIMESTAMPS),
        prev_sot_token_id=token_id("<|startofprev|>"),
        return_timestamps=False,
        **options,
    )


def token_tables(tokenizer: Any) -> dict[str, dict[str, int]]:
    """Returns the token ids of Whisper's languages and tasks, as far as a tokenizer has them."""
    known = tokenizer.get_vocab()
    languages = {token: known[token] for code in LANGUAGES if (token := f"<|{code}|>") in known}
    tasks = {task: known[token] for task in TASKS if (token := f"<|{task}|>") in known}
    return {"lang_to_id": languages, "task_to_id": tasks}
