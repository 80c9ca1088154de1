"""The model's files, and the transcripts as it would see them. Needs torch only for the Trainer's arguments."""

import tempfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

import numpy as np
from transformers import GenerationConfig, WhisperConfig

from trainers.config.schema import ModelPart
from trainers.errors import ConfigError, DataError
from trainers.inspection.findings import Check, Finding, named, ok, problem, skipped, warning
from trainers.inspection.subject import Split, Subject
from trainers.models.processor import (
    check_label_lengths,
    context_and_labels,
    encode_labels,
    is_multilingual,
    load_processor,
)
from trainers.models.whisper_scratch import NO_TIMESTAMPS, START, language_code, new_processor

WEIGHT_FILES = ("*.safetensors", "*.safetensors.index.json", "pytorch_model*.bin", "pytorch_model*.bin.index.json")
# Prompt tokens that leave less room for a hypothesis, see `scoring.evaluate`.
PROMPT_TOKENS = 4


@dataclass(frozen=True)
class Opened:
    """What could be opened of a model.

    Attributes:
        processor: WhisperProcessor.
        config: Sizes; None for a new model, which is made of the recipe.
        generation: Generation config; None for a new model.
    """

    processor: Any
    config: Any | None
    generation: Any | None


def _needs_model(run: Callable[[Subject, Opened], Iterator[Finding]]) -> Callable[[Subject], Iterator[Finding]]:
    """Makes a check report that it was skipped where the model is not open; `check_model` reports why."""

    @wraps(run)
    def check(subject: Subject) -> Iterator[Finding]:
        opened = open_model(subject)
        if isinstance(opened, Finding):
            yield skipped("the model could not be opened")
        else:
            yield from run(subject, opened)

    return check


def check_model(subject: Subject) -> Iterator[Finding]:
    """Opens the processor; checks that a folder has weights."""
    opened, part = open_model(subject), subject.config.model
    if isinstance(opened, Finding):
        yield opened
        return
    if part.init == "scratch":
        yield ok(f"model.init: scratch; the vocabulary of {len(opened.processor.tokenizer)} tokens can be learned")
        return
    folder = Path(str(part.name_or_path))
    if folder.is_dir() and not any(next(folder.glob(pattern), None) for pattern in WEIGHT_FILES):
        yield problem(
            f"model.name_or_path: {folder} holds no weights (model.safetensors); copy them there, or name another"
        )
        return
    yield ok(f"model.name_or_path: {part.name_or_path} opens")


@_needs_model
def check_tokens(subject: Subject, opened: Opened) -> Iterator[Finding]:
    """Checks the special tokens that every label begins with."""
    part = subject.config.model
    wanted = [START, NO_TIMESTAMPS]
    if part.language is not None and (opened.generation is None or _multilingual(opened.generation)):
        wanted += [f"<|{language_code(part.language)}|>", f"<|{part.task}|>"]
    vocabulary = opened.processor.tokenizer.get_vocab()
    missing = [token for token in wanted if token not in vocabulary]
    if missing:
        yield problem(
            f"the tokenizer of {_name(part)} has no token {', '.join(missing)}: take a model that knows "
            f"model.language {part.language} and model.task {part.task}, or name a language that it knows"
        )
    else:
        yield ok(f"the tokenizer has {' '.join(wanted)}")


@_needs_model
def check_start_token(subject: Subject, opened: Opened) -> Iterator[Finding]:
    """Compares the token that the decoder starts with: in training, in generation, in the tokenizer."""
    part = subject.config.model
    if opened.config is None:
        yield ok("a new model starts with the tokenizer's own token")
        return
    start = opened.processor.tokenizer.convert_tokens_to_ids(START)
    configs = {"config.json": opened.config, "generation_config.json": opened.generation}
    wrong = {
        file: found
        for file, content in configs.items()
        if (found := getattr(content, "decoder_start_token_id", None)) != start
    }
    for file, found in wrong.items():
        yield problem(
            f"{_name(part)}: decoder_start_token_id is {found} in {file}, but the tokenizer's {START} is {start}: "
            f"write {start} there, or the model is trained from one token and generates from another"
        )
    if not wrong:
        yield ok(f"decoder_start_token_id is {start}, the tokenizer's {START}")


@_needs_model
def check_generation(subject: Subject, opened: Opened) -> Iterator[Finding]:
    """Checks what generation needs for the language and task of the config, and reports what it ignores."""
    part = subject.config.model
    if opened.generation is None:
        yield ok("a new model's generation config is made of the recipe")
        return
    problems = list(_generation_problems(part, opened))
    yield from map(problem, problems)
    for file, content in (("config.json", opened.config), ("generation_config.json", opened.generation)):
        if ids := getattr(content, "forced_decoder_ids", None):
            # In every released model; set_language clears them.
            yield ok(f"{file} has outdated forced_decoder_ids {ids}, which are ignored: model.language and task count")
    if opened.config is not None and getattr(opened.config, "suppress_tokens", None) == []:
        yield warning(
            f"{_name(part)}: config.json has suppress_tokens [], which is ignored and goes into the exported model: "
            "remove it there (transformers#36341)"
        )
    if not problems:
        yield ok("the generation config knows language, task and timestamps")


@_needs_model
def check_labels(subject: Subject, opened: Opened) -> Iterator[Finding]:
    """Compares lengths of transcripts with what the decoder holds and with what scoring generates."""
    if not subject.splits:
        yield skipped("no manifest could be opened")
    tokenizer, config = opened.processor.tokenizer, subject.config
    _, most = context_and_labels(config.model, opened.processor)
    room = max(1, min(config.training.generation_max_length, most - PROMPT_TOKENS))
    # Of a label's tokens, all but one of these and the end token are a hypothesis's own.
    prefix = len(tokenizer.prefix_tokens) - 1
    for split in subject.splits:
        scored = split.name != "train"
        allowed = min(most, room + prefix) if scored else most
        ids, texts = (split.ids, split.texts) if scored else _trained(subject, split)
        long_ids, lengths = _longer(tokenizer, ids, texts, allowed)
        try:
            check_label_lengths(lengths, long_ids, most, split.name)
        except DataError as error:
            yield problem(str(error))
            continue
        if long_ids:
            yield warning(
                f"{split.name}: {len(long_ids)} of {len(ids)} references are longer than the {room} tokens that a "
                f"hypothesis may have ({named(long_ids)}): raise training.generation_max_length "
                f"{config.training.generation_max_length} to {max(lengths) - prefix}, or words will count as deleted"
            )
        else:
            yield ok(f"{split.name}: none of {len(ids)} transcripts has more than {allowed} label tokens")


def check_arguments(subject: Subject) -> Iterator[Finding]:
    """Builds the Trainer's arguments: unknown ones, values that transformers refuses, another metric to choose by."""
    if subject.sets_arguments:
        # Only here: it takes torch, which takes longer to load than all other checks together.
        from trainers.training.arguments import training_arguments  # noqa: PLC0415

        # Whether there is a GPU here says nothing about the workers.
        training = subject.config.training.model_copy(update={"fp16": False, "bf16": False})
        config = subject.config.model_copy(update={"training": training})
        with tempfile.TemporaryDirectory(prefix="rayscribe-") as folder:
            training_arguments(config, output_dir=Path(folder), accumulation=1, on_gpu=False)
    score = subject.config.checkpoint.checkpoint_score_attribute
    yield ok(f"transformers takes the training arguments; {score} is scored on validation and chooses the model")


@lru_cache(maxsize=1)
def open_model(subject: Subject) -> Opened | Finding:
    """Opens what the checks need, once; a finding where that is not possible."""
    part = subject.config.model
    if part.init == "scratch":
        return _new_model(subject)
    try:
        generation = _generation_config(part)
        config = WhisperConfig.from_pretrained(str(part.name_or_path), revision=part.revision or "main")
    except (ConfigError, OSError, ValueError) as error:
        is_here = Path(str(part.name_or_path)).exists()
        return problem(str(error)) if is_here else subject.unreachable(str(error))
    try:
        return Opened(load_processor(part, None), config, generation)
    except ConfigError as error:
        return problem(str(error))


def _new_model(subject: Subject) -> Opened | Finding:
    part = subject.config.model
    try:
        language_code(str(part.language))
    except ConfigError as error:
        return problem(str(error))
    train = subject.split("train")
    if train is None:
        return skipped("the vocabulary is learned from data.train, which could not be opened here")
    return Opened(new_processor(train.texts, part), None, None)


def _generation_config(part: ModelPart) -> Any:
    is_multilingual(part)  # opens it too, with a better message where it cannot
    return GenerationConfig.from_pretrained(str(part.name_or_path), revision=part.revision or "main")


def _generation_problems(part: ModelPart, opened: Opened) -> Iterator[str]:
    tokenizer, generation = opened.processor.tokenizer, opened.generation
    assert generation is not None
    fix = "copy generation_config.json from the released model of this size"
    stamp = tokenizer.convert_tokens_to_ids(NO_TIMESTAMPS)
    if (found := getattr(generation, "no_timestamps_token_id", None)) != stamp:
        yield (
            f"{_name(part)}: generation_config.json has no_timestamps_token_id {found}, the tokenizer {stamp}: the "
            f"model would generate timestamps, which labels do not have; {fix}"
        )
    if part.language is None or not _multilingual(generation):
        return
    token = f"<|{language_code(part.language)}|>"
    for table, key, wanted in (("lang_to_id", token, token), ("task_to_id", part.task, f"<|{part.task}|>")):
        found = (getattr(generation, table, None) or {}).get(key)
        if found != tokenizer.convert_tokens_to_ids(wanted):
            yield (
                f"{_name(part)}: generation_config.json is outdated: its {table} has {found} for {key}, the tokenizer "
                f"{tokenizer.convert_tokens_to_ids(wanted)}; {fix}"
            )


def _longer(tokenizer: Any, ids: Sequence[str], texts: Sequence[str], allowed: int) -> tuple[list[str], list[int]]:
    """Ids and label lengths of the transcripts with more label tokens than are allowed."""
    # A byte-level token is a byte or more, so that short texts need not be encoded to know it.
    bytes_allowed = allowed - len(tokenizer.prefix_tokens)
    rows = [row for row, text in enumerate(texts) if len(text.encode()) > bytes_allowed]
    lengths = [len(labels) for labels in encode_labels(tokenizer, [texts[row] for row in rows])]
    long = [(ids[row], length) for row, length in zip(rows, lengths, strict=True) if length > allowed]
    return [name for name, _ in long], [length for _, length in long]


def _trained(subject: Subject, split: Split) -> tuple[list[str], list[str]]:
    """Ids and texts of the clips that will not be left out, as far as is known."""
    durations_s = subject.recordings(split).durations_s
    longest_s = min(subject.config.data.max_duration_s, subject.context_s)
    # NaN, a duration that is not known, is neither longer nor shorter.
    left_out = (durations_s > longest_s) | (durations_s < subject.config.data.min_duration_s)
    rows = [int(row) for row in np.flatnonzero(~left_out) if split.texts[row]]
    ids = split.ids
    return [ids[row] for row in rows], [split.texts[row] for row in rows]


def _multilingual(generation: Any) -> bool:
    return bool(getattr(generation, "is_multilingual", True))


def _name(part: ModelPart) -> str:
    return str(part.name_or_path or "the new model")


CHECKS = (
    Check("arguments", "transformers takes the training arguments", check_arguments),
    Check("model", "the model's files open", check_model),
    Check("tokens", "the tokenizer knows language and task", check_tokens),
    Check("start_token", "the decoder starts with the right token", check_start_token),
    Check("generation", "the generation config is up to date", check_generation),
    Check("labels", "no transcript is longer than the decoder", check_labels),
)
