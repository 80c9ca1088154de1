"""Functions shared by families whose processors are an extractor and a tokenizer of any kind. Loads no torch."""

import hashlib
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import AutoFeatureExtractor

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.errors import ConfigError
from trainers.findings import named


def tokenizer_fingerprint(tokenizer: Any, surroundings: str) -> str:
    """Returns a hash of a tokenizer's files, and of what else its label ids depend on: 16 hexadecimal digits."""
    content = hashlib.sha256(surroundings.encode())
    with tempfile.TemporaryDirectory(prefix="rayscribe-") as folder:
        tokenizer.save_pretrained(folder)
        for file in sorted(Path(folder).iterdir()):
            content.update(file.name.encode() + file.read_bytes())
    return content.hexdigest()[:16]


def learned_bpe(texts: Iterable[str], vocab_size: int, special_tokens: Sequence[str] = ()) -> Tokenizer:
    """Returns a byte-level BPE that is learned from texts, without a decoder."""
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=list(special_tokens),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    learner.train_from_iterator(texts, trainer)
    return learner


def split_processor(folder: Path) -> None:
    """Saves the extractor of a saved processor in its own file.

    transformers before version 5 requires that, and so do converters made for it; newer versions read it, too.
    """
    AutoFeatureExtractor.from_pretrained(folder).save_pretrained(folder)
    (folder / "processor_config.json").unlink(missing_ok=True)


def refuse_other_rate(extractor: Any, origin: str) -> None:
    """Raises ConfigError for an extractor whose sampling rate is not that of stored clips."""
    if extractor.sampling_rate != SAMPLING_RATE_HZ:
        raise ConfigError(
            f"{origin}: its feature extractor takes {extractor.sampling_rate} Hz, and Rayscribe stores clips at "
            f"{SAMPLING_RATE_HZ} Hz: use a model of that rate"
        )


def refuse_tokens_beyond(
    tokenizer: Any, outputs: int, always: Iterable[int | None], origin: str, *, ignored: str | None = None
) -> None:
    """Raises ConfigError, which names them, if labels may have tokens for which a model has no output.

    For such a token, a CTC loss reads beyond the outputs, and a cross-entropy ends the process.

    Args:
        tokenizer: A transformers tokenizer.
        outputs: The model's number of outputs.
        always: Ids that labels or their padding have for any text; other special tokens are not in labels.
        origin: Source of both, for the message.
        ignored: Prefix of tokens that no text produces, although they are not special.
    """
    used = {number for number in always if number is not None}
    special = set(tokenizer.all_special_ids) - used
    beyond = {
        number: token
        for token, number in tokenizer.get_vocab().items()
        if number >= outputs
        and number not in special
        and (number in used or ignored is None or not token.startswith(ignored))
    }
    beyond |= {number: "" for number in used if number not in beyond and not 0 <= number < outputs}
    if beyond:
        names = named([f"{token} ({number})".strip() for number, token in sorted(beyond.items())])
        raise ConfigError(
            f"{origin}: the model has {outputs} outputs, and its tokenizer {len(beyond)} tokens beyond them: {names}; "
            "use a tokenizer that belongs to the weights, or weights with an output for each of its tokens"
        )
