"""What a Whisper model's tokenizer and generation config must agree on, and often do not in published weights."""

import copy
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from transformers import GenerationConfig, WhisperConfig

from trainers.findings import Check, Finding, ok, problem, warning
from trainers.models.family import OpenModel
from trainers.models.pretrained import from_pretrained
from trainers.models.whisper.whisper_generation import is_multilingual, language_of, resolve_generation
from trainers.models.whisper.whisper_part import WhisperPart, language_code
from trainers.models.whisper.whisper_scratch import NO_TIMESTAMPS, START


def check_tokens(opened: OpenModel) -> Iterator[Finding]:
    """Checks the special tokens that every label begins with."""
    part: WhisperPart = opened.part
    wanted = [START, NO_TIMESTAMPS]
    if part.token_language is not None and (
        part.init == "scratch" or is_multilingual(from_pretrained(part, GenerationConfig))
    ):
        wanted += [f"<|{language_code(part.token_language)}|>", f"<|{part.task}|>"]
    vocabulary = opened.processor.tokenizer.get_vocab()
    missing = [token for token in wanted if token not in vocabulary]
    if missing:
        yield problem(
            f"the tokenizer of {part.name_or_path or 'the new model'} has no token {', '.join(missing)}: take a model "
            f"that knows model.language {part.language} and model.task {part.task}, or name a language that it knows"
        )
    else:
        yield ok(f"the tokenizer has {' '.join(wanted)}")


def check_start_token(opened: OpenModel) -> Iterator[Finding]:
    """Compares the token that the decoder starts with: in training, in generation, in the tokenizer."""
    part: WhisperPart = opened.part
    if part.init == "scratch":
        yield ok("a new model starts with the tokenizer's own token")
        return
    start = opened.processor.tokenizer.convert_tokens_to_ids(START)
    wrong = {
        file: found
        for file, content in _configs(part).items()
        if (found := getattr(content, "decoder_start_token_id", None)) != start
    }
    for file, found in wrong.items():
        yield problem(
            f"{part.name_or_path}: decoder_start_token_id is {found} in {file}, but the tokenizer's {START} is "
            f"{start}: write {start} there, or the model is trained from one token and generates from another"
        )
    if not wrong:
        yield ok(f"decoder_start_token_id is {start}, the tokenizer's {START}")


def check_generation(opened: OpenModel) -> Iterator[Finding]:
    """Checks what generation needs for the language and task of the config, and reports what it ignores."""
    part: WhisperPart = opened.part
    if part.init == "scratch":
        yield ok("a new model's generation config is made of the recipe")
        return
    configs = _configs(part)
    generation = copy.deepcopy(configs["generation_config.json"])
    notes = resolve_generation(generation, opened.processor.tokenizer, language_of(generation, part))
    yield from (warning(f"{part.name_or_path}: {note}") for note in notes)
    for file, content in configs.items():
        if ids := getattr(content, "forced_decoder_ids", None):
            # In every released model.
            yield ok(f"{file} has outdated forced_decoder_ids {ids}, which are ignored: model.language and task count")
    if getattr(configs["config.json"], "suppress_tokens", None) == []:
        yield warning(
            f"{part.name_or_path}: config.json has suppress_tokens [], which is ignored and goes into the exported "
            "model: remove it there (transformers#36341)"
        )
    if not notes:
        yield ok("the generation config knows language, task and timestamps")


@lru_cache(maxsize=1)
def _configs(part: WhisperPart) -> dict[str, Any]:
    files = {"config.json": WhisperConfig, "generation_config.json": GenerationConfig}
    return {file: from_pretrained(part, kind) for file, kind in files.items()}


CHECKS = (
    Check("tokens", "the tokenizer knows language and task", check_tokens),
    Check("start_token", "the decoder starts with the right token", check_start_token),
    Check("generation", "the generation config is up to date", check_generation),
)
