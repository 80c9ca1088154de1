"""What families whose processors are an extractor and a tokenizer of any kind have in common. Loads no torch."""

import hashlib
import tempfile
from pathlib import Path
from typing import Any

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.errors import ConfigError
from trainers.models.whisper.whisper_scratch import language_code


def tokenizer_fingerprint(tokenizer: Any, surroundings: str) -> str:
    """Hash of what a tokenizer saves, and of what else its label ids depend on: 16 hexadecimal digits."""
    content = hashlib.sha256(surroundings.encode())
    with tempfile.TemporaryDirectory(prefix="rayscribe-") as folder:
        tokenizer.save_pretrained(folder)
        for file in sorted(Path(folder).iterdir()):
            content.update(file.name.encode() + file.read_bytes())
    return content.hexdigest()[:16]


def code_or_name(language: str) -> str:
    """The code of a language; of one that Whisper does not know, what the config says."""
    try:
        return language_code(language)
    except ConfigError:
        return language.lower()


def refuse_other_rate(extractor: Any, origin: str) -> None:
    """Refuses an extractor of another sampling rate than that of stored clips.

    Raises:
        ConfigError: it has one.
    """
    if extractor.sampling_rate != SAMPLING_RATE_HZ:
        raise ConfigError(
            f"{origin}: its feature extractor takes {extractor.sampling_rate} Hz, and Rayscribe stores clips at "
            f"{SAMPLING_RATE_HZ} Hz: take a model of that rate"
        )
