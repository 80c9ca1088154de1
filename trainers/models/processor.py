"""The processor of a run: a pretrained one, or one learned from its training text and kept in its folder; and labels.

Imports no torch, and works where transformers finds none: what is checked before a run needs no model.
"""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import GenerationConfig, WhisperConfig, WhisperProcessor

from trainers.config.schema import ModelPart, TrainConfig
from trainers.errors import ConfigError, DataError
from trainers.models.whisper_scratch import (
    LANGUAGES,
    START,
    language_code,
    new_config,
    new_generation_config,
    new_processor,
)
from trainers.run_folder.layout import PROCESSOR, RunFolder


def settle_processor(config: TrainConfig, folder: RunFolder, texts: Sequence[str]) -> Any:
    """Opens the processor; a scratch model's is learned once, and written to the run folder for all ranks.

    Args:
        config: The config.
        folder: The run folder.
        texts: Transcripts of the training set.
    """
    if config.model.init == "pretrained":
        return load_processor(config.model, None)
    with tempfile.TemporaryDirectory(prefix="rayscribe-") as temporary:
        local = Path(temporary) / PROCESSOR
        if folder.storage.exists(f"{PROCESSOR}/config.json"):
            folder.storage.download_folder(PROCESSOR, local)
        else:
            write_scratch_description(local, texts, config.model)
            folder.storage.upload_folder(local, PROCESSOR, last="config.json")
        return load_processor(config.model, local)


def context_and_labels(model: ModelPart, processor: Any) -> tuple[float, int]:
    """Seconds of the model's longest input, and the most label tokens that its decoder holds."""
    if model.init == "scratch":
        most = model.max_label_tokens
    else:
        most = int(
            WhisperConfig.from_pretrained(
                str(model.name_or_path), revision=model.revision or "main"
            ).max_target_positions
        )
    return float(processor.feature_extractor.chunk_length), most


def write_scratch_description(folder: Path, texts: Sequence[str], model: ModelPart) -> None:
    """Writes config and processor of a new model, everything but weights, so that all ranks build the same one."""
    processor = new_processor(texts, model)
    processor.save_pretrained(folder)
    new_config(model, processor.tokenizer).save_pretrained(folder)
    new_generation_config(model, processor.tokenizer).save_pretrained(folder)


def load_processor(model: ModelPart, description: Path | None) -> WhisperProcessor:
    """The processor, from a scratch description, or from where the pretrained weights are.

    Raises:
        ConfigError: it cannot be opened, or has no token for the language.
    """
    if description is not None:
        return WhisperProcessor.from_pretrained(description)
    multilingual = is_multilingual(model)
    if not multilingual and model.language is not None and language_code(model.language) != "en":
        raise ConfigError(
            f"model.language is {model.language}, but {model.name_or_path} knows only English: "
            "take the multilingual weights, or set model.language: null"
        )
    if multilingual and model.language is None:
        raise ConfigError(
            f"model.language is missing: {model.name_or_path} is multilingual (--set model.language=English)"
        )
    try:
        processor = WhisperProcessor.from_pretrained(str(model.name_or_path), revision=model.revision or "main")
    except (OSError, ValueError) as error:
        raise cannot_open(model, error) from error
    if multilingual and model.language is not None:
        language = LANGUAGES[language_code(model.language)]
        processor.tokenizer.set_prefix_tokens(language=language, task=model.task)
        token = f"<|{language_code(model.language)}|>"
        prefix = processor.tokenizer.convert_ids_to_tokens(processor.tokenizer.prefix_tokens)
        if token not in prefix:
            raise ConfigError(f"model.language: {model.name_or_path} has no token {token}; its prefix is {prefix}")
    return processor


def is_multilingual(model: ModelPart) -> bool:
    """Whether the pretrained weights know languages, by their generation config."""
    try:
        generation = GenerationConfig.from_pretrained(str(model.name_or_path), revision=model.revision or "main")
    except (OSError, ValueError) as error:
        raise cannot_open(model, error) from error
    return bool(getattr(generation, "is_multilingual", True))


def encode_labels(tokenizer: Any, texts: Sequence[str]) -> list[list[int]]:
    """Label ids of each text: language, task and no-timestamps tokens, the text, the end token.

    The decoder's start token is not among them, since the model puts it before the labels itself
    (transformers#29973: left in place, it is trained twice).
    """
    start = tokenizer.convert_tokens_to_ids(START)
    encoded = tokenizer(list(texts), add_special_tokens=True, verbose=False)["input_ids"] if texts else []
    return [ids[1:] if ids and ids[0] == start else ids for ids in encoded]


def check_label_lengths(lengths: Sequence[int], ids: Sequence[str], most: int, split: str) -> None:
    """Refuses transcripts that the decoder cannot hold; on a GPU they would end the process in mid-training.

    Raises:
        DataError: names the ids and their lengths.
    """
    long = [(name, length) for name, length in zip(ids, lengths, strict=True) if length > most]
    if long:
        shown = ", ".join(f"{name} ({length})" for name, length in long[:5])
        raise DataError(
            f"{split}: {len(long)} transcripts have more label tokens than the model's {most}: {shown}"
            f"{', …' if len(long) > 5 else ''}; shorten or split these utterances"
        )


def cannot_open(model: ModelPart, error: Exception) -> ConfigError:
    """The error of a model that transformers cannot open."""
    reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
    return ConfigError(
        f"model.name_or_path: {model.name_or_path} cannot be opened: {reason}; give a folder with a Whisper model, "
        "or a Hub id that this machine can reach"
    )
