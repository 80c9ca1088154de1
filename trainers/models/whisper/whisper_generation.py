"""Makes the generation config of a Whisper model consistent with its tokenizer and with the run's config.

Published weights often have a generation config that is outdated, requests timestamps, or names no language, so that
hypotheses are wrong, or scoring fails. What the tokenizer determines is corrected, and reported.
"""

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import Any

from trainers.errors import ConfigError
from trainers.models.language_names import LANGUAGES
from trainers.models.whisper.whisper_part import WhisperPart, language_code
from trainers.models.whisper.whisper_scratch import NO_TIMESTAMPS, token_tables

# Start, language, task and no-timestamps tokens precede the first generated token.
PROMPT_TOKENS = 4


def is_multilingual(generation: Any) -> bool:
    """Returns True if a generation config is of a multilingual model."""
    return bool(getattr(generation, "is_multilingual", True))


def language_of(generation: Any, model: WhisperPart) -> tuple[str, str] | None:
    """Returns the config's language code and task, else the weights' own; None for an English-only model.

    The same rule applies to weights in a folder, in a bucket and on the Hub.

    Raises:
        ConfigError: Neither has a language, so the model would guess that of each clip; or it knows only English,
            and another language is requested.
    """
    if not is_multilingual(generation):
        if model.token_language is not None and language_code(model.token_language) != "en":
            raise ConfigError(
                f"model.language is {model.language}, but {model.name_or_path} knows only English: "
                "use the multilingual weights, or set model.language: null"
            )
        return None
    if model.token_language is not None:
        return language_code(model.token_language), model.task
    own = getattr(generation, "language", None)
    if own is None:
        raise ConfigError(
            f"model.language is missing: {model.name_or_path} is multilingual (--set model.language=English)"
        )
    # The value may be `English`, `en` or `<|en|>`.
    return language_code(str(own).strip("<|>")), getattr(generation, "task", None) or model.task


def resolve_generation(generation: Any, tokenizer: Any, language: tuple[str, str] | None) -> list[str]:
    """Makes a generation config consistent with the tokenizer, and sets the language (`language_of`) to transcribe.

    Returns a line for each change that affects the result.
    """
    wanted = _wanted(generation, tokenizer)
    used = {f"<|{language[0]}|>", language[1]} if language is not None else set()
    outdated = [name for name, value in wanted.items() if not _agrees(getattr(generation, name, None), value, used)]
    notes = []
    if outdated:
        notes.append(f"generation_config.json is outdated: {', '.join(outdated)} taken from the tokenizer instead")
        for name in outdated:
            setattr(generation, name, wanted[name])
    if getattr(generation, "return_timestamps", False):
        notes.append("generation_config.json requests timestamps, which transcripts do not have: they are turned off")
        generation.return_timestamps = False
    generation.forced_decoder_ids = None
    if language is not None:
        generation.language, generation.task = LANGUAGES[language[0]], language[1]
    return notes


@contextmanager
def allowing_text(generation: Any, tokenizer: Any) -> Iterator[None]:
    """Returns a context in which no text is suppressed.

    Whisper's released weights suppress quotes, brackets and the like, which causes errors if texts are compared as
    written.
    """
    suppressed = getattr(generation, "suppress_tokens", None)
    added = set(tokenizer.get_added_vocab().values())
    # None, since an empty list is refused (transformers#36341).
    generation.suppress_tokens = [token for token in suppressed or [] if token in added] or None
    try:
        yield
    finally:
        generation.suppress_tokens = suppressed


def suppressed_tokens(model: Any, tokenizer: Any, *, as_written: bool) -> list[int]:
    """Returns the token ids that a model never generates: those suppressed by its generation config, and timestamps.

    If texts are compared `as_written`, no text is suppressed.
    """
    generation = model.generation_config
    with allowing_text(generation, tokenizer) if as_written else nullcontext():
        suppressed = {*(generation.suppress_tokens or ())}
    # Timestamps are the last tokens of the vocabulary.
    return sorted(suppressed | {*range(generation.no_timestamps_token_id + 1, model.config.vocab_size)})


def _wanted(generation: Any, tokenizer: Any) -> dict[str, Any]:
    wanted: dict[str, Any] = {"no_timestamps_token_id": tokenizer.get_vocab().get(NO_TIMESTAMPS)}
    return wanted | ({"is_multilingual": True, **token_tables(tokenizer)} if is_multilingual(generation) else {})


def _agrees(found: Any, wanted: Any, used: set[str]) -> bool:
    if not isinstance(wanted, dict):
        return bool(found == wanted)
    # A table may have fewer languages than the tokenizer, since not all need be trained.
    return isinstance(found, dict) and found.items() <= wanted.items() and used & set(wanted) <= set(found)
