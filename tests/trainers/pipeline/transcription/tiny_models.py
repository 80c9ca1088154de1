"""Models of random weights, as an export leaves them."""

from pathlib import Path
from typing import Any

from tests.trainers.synthetic import config
from trainers.models.families import family_of

TEXTS = ["one two", "three", "four five six"]
CTC = {"init": "scratch", "family": "ctc", "d_model": 16, "encoder_layers": 1, "attention_heads": 2}


def write_ctc(folder: Path, **fields: str) -> Path:
    """A CTC model of characters; `fields` are further ones of its config."""
    return _write(folder, {"model": {**CTC, **fields}})


def write_whisper(folder: Path, alignment_heads: list[list[int]] | None = None) -> Path:
    """A Whisper of English, with heads that say when words are spoken where some are named."""
    return _write(folder, {}, alignment_heads=alignment_heads)


def _write(folder: Path, changes: dict[str, Any], **generation: Any) -> Path:
    part = config(changes).model
    family = family_of(part)
    family.write_description(folder, TEXTS, part)
    recognizer = family.load_recognizer(part, folder, seed=1)
    if family.name == "whisper":
        # Random weights would write nothing else.
        tokens = recognizer.processor.tokenizer.added_tokens_decoder
        generation["suppress_tokens"] = sorted(tokens.keys() - {recognizer.processor.tokenizer.eos_token_id})
    for name, value in generation.items():
        if value is not None:
            setattr(recognizer.model.generation_config, name, value)
    recognizer.model.save_pretrained(folder)
    recognizer.processor.save_pretrained(folder)
    return folder
