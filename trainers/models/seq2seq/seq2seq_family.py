"""The family of encoder-decoder models other than Whisper: processors, labels and limits, all of pretrained weights."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoFeatureExtractor, AutoTokenizer

from trainers.config.parts.model_part import CTC_FIELDS, ModelPart
from trainers.errors import ConfigError
from trainers.models.family import Limits
from trainers.models.pretrained import open_pretrained
from trainers.models.tokenizer_processor import code_or_name, refuse_other_rate, tokenizer_fingerprint

if TYPE_CHECKING:
    from trainers.models.recognizer import Recognizer

# Attention over the outputs of two minutes.
CONTEXT_S = 120.0
# Most label tokens of a decoder whose config names no number of positions.
LABEL_TOKENS = 1024
# Of a config: where it came from, what it was loaded with, and what loading switches off.
NOT_ARCHITECTURE = (
    "_name_or_path",
    "transformers_version",
    "dtype",
    "torch_dtype",
    "layerdrop",
    "apply_spec_augment",
)
POSITIONS = ("max_target_positions", "max_position_embeddings", "n_positions")


@dataclass(frozen=True)
class Seq2SeqProcessor:
    """Feature extractor and tokenizer, and the decoder's tokens around a text.

    Attributes:
        feature_extractor: A transformers feature extractor.
        tokenizer: A transformers tokenizer.
        start_id: The decoder's start token, which it is given and which stands in no label.
        end_id: Ends each label.
        pad_id: Stands behind shorter labels.
        language_id: The token of the language, the first of each label, which every hypothesis is made to begin with.
            None: the tokenizer has no such tokens.
    """

    feature_extractor: Any
    tokenizer: Any
    start_id: int
    end_id: int
    pad_id: int
    language_id: int | None = None

    def save_pretrained(self, folder: str | Path) -> None:
        """Writes both parts."""
        self.feature_extractor.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


class Seq2SeqFamily:
    """See `family.Family`; models of AutoModelForSpeechSeq2Seq that need no more than their inputs."""

    name = "seq2seq"
    model_types: tuple[str, ...] = ("speech_to_text", "speech-encoder-decoder", "moonshine")
    foreign_fields: tuple[str, ...] = (
        *CTC_FIELDS,
        "model.task",
        "model.borrowed_language",
        "model.dropout",
        "model.attention_dropout",
        "model.activation_dropout",
        "model.apply_spec_augment",
        "training.full_context_fraction",
        "training.full_context_matching",
    )

    def context_s(self, model: ModelPart) -> float:
        """See `Family`."""
        return float(model.max_context_s or CONTEXT_S)

    def learns_processor(self, model: ModelPart) -> bool:
        """See `Family`."""
        return False

    def keeps_saved_processor(self, model: ModelPart) -> bool:
        """See `Family`: where the tokenizer has tokens of languages, which were not always chosen by the config."""
        own = model.model_copy(update={"language": None})
        return model.language is not None and self.open_processor(own, None).language_id is not None

    def new_processor(self, texts: Sequence[str], model: ModelPart) -> Any:
        """Refused: there are no new models.

        Raises:
            ConfigError: always.
        """
        raise ConfigError("model.family is seq2seq: its models begin with weights; set model.init: pretrained")

    def write_description(self, folder: Path, texts: Sequence[str], model: ModelPart) -> None:
        """Refused, see `new_processor`."""
        self.new_processor(texts, model)

    def adopt_description(self, source: Path, folder: Path, model: ModelPart) -> None:
        """See `Family`."""
        config, wanted = AutoConfig.from_pretrained(source), _read_config(model)
        if _architecture(config.to_dict()) != _architecture(wanted.to_dict()):
            raise ConfigError(
                f"run.resume: the checkpoint's model is of another architecture or size than {model.name_or_path}: "
                "set model to what the checkpoint was trained with"
            )
        _processor_of(source, "main", config, model.language).save_pretrained(folder)
        config.save_pretrained(folder)

    def open_processor(self, model: ModelPart, description: Path | None) -> Seq2SeqProcessor:
        """See `Family`."""
        if description is not None:
            return _processor_of(description, "main", AutoConfig.from_pretrained(description))
        name, revision = str(model.name_or_path), model.revision or "main"
        config = _read_config(model)
        return open_pretrained(model, lambda: _processor_of(name, revision, config, model.language))

    def limits(self, model: ModelPart, processor: Any) -> Limits:
        """See `Family`."""
        return self.limits_of(_read_config(model), processor)

    def limits_of(self, config: Any, processor: Any) -> Limits:
        """The limits of a model of this config; padding is taken to move outputs, as it does of some."""
        decoder = getattr(config, "decoder", config)
        found = (getattr(decoder, name, None) for name in POSITIONS)
        tokens = next((int(size) for size in found if size), LABEL_TOKENS)
        return Limits(
            context_s=CONTEXT_S,
            label_tokens=tokens,
            prefix_tokens=0,
            new_tokens=tokens - 1,
            whole_context=False,
            sees_padding=True,
            has_bins=processor.feature_extractor.model_input_names[0] == "input_features",
        )

    def encode_labels(self, processor: Any, texts: Sequence[str]) -> list[list[int]]:
        """Label ids of each text: the tokenizer's own without the decoder's start token, and one end token."""
        encoded = processor.tokenizer(list(texts)).input_ids if texts else []
        return [_between(ids, processor.start_id, processor.end_id) for ids in encoded]

    def check_texts(self, processor: Any, texts: Iterable[str]) -> str | None:
        """See `Family`: its tokens write any text."""
        return None

    def labels_fingerprint(self, processor: Any) -> str:
        """See `Family`: what the tokenizer saves, and the tokens around a text."""
        tokens = (processor.start_id, processor.end_id, version("transformers"), version("tokenizers"))
        return tokenizer_fingerprint(processor.tokenizer, repr(tokens))

    def language_code(self, language: str) -> str:
        """See `Family`; of a language that Whisper does not know, what the config says."""
        return code_or_name(language)

    def load_recognizer(
        self, model: ModelPart, description: Path | None, seed: int, *, weights: Path | None = None
    ) -> Recognizer:
        """See `Family`."""
        # Only now: it takes torch.
        from trainers.models.seq2seq.seq2seq_recognizer import load  # noqa: PLC0415

        return load(model, self.open_processor(model, description), weights)

    def write_for_all_readers(self, folder: Path) -> set[str]:
        """See `Family`: they read what is there."""
        return set()

    def open_exported(self, folder: Path) -> Recognizer:
        """See `Family`."""
        from trainers.models.seq2seq.seq2seq_recognizer import open_exported  # noqa: PLC0415

        return open_exported(folder, _processor_of(folder, "main", AutoConfig.from_pretrained(folder)))


def _read_config(model: ModelPart) -> Any:
    name, revision = str(model.name_or_path), model.revision or "main"
    return open_pretrained(model, lambda: AutoConfig.from_pretrained(name, revision=revision))


def _processor_of(
    name_or_path: str | Path, revision: str, config: Any, language: str | None = None
) -> Seq2SeqProcessor:
    extractor = AutoFeatureExtractor.from_pretrained(name_or_path, revision=revision)
    refuse_other_rate(extractor, str(name_or_path))
    tokenizer = AutoTokenizer.from_pretrained(name_or_path, revision=revision)
    names = ("decoder_start_token_id", "eos_token_id", "pad_token_id")
    start_id, end_id, pad_id = (_id_of(config, name, str(name_or_path)) for name in names)
    language_id = _set_language(tokenizer, language, name_or_path)
    return Seq2SeqProcessor(extractor, tokenizer, start_id, end_id, pad_id, language_id)


def _set_language(tokenizer: Any, language: str | None, origin: str | Path) -> int | None:
    """Has a tokenizer with tokens of languages (multilingual Speech2Text) begin labels with the language's.

    Args:
        tokenizer: A transformers tokenizer; one without such tokens writes any language.
        language: The config's. None: that which the tokenizer was saved with.
        origin: Where it came from, for the message.

    Returns:
        The token's id; None for a tokenizer without such tokens.

    Raises:
        ConfigError: it has no token for the language.
    """
    if getattr(tokenizer, "lang_codes", None) is None:
        return None
    if language is not None:
        code = code_or_name(language)
        if code not in tokenizer.lang_code_to_id:
            known = ", ".join(sorted(tokenizer.lang_code_to_id))
            raise ConfigError(f"model.language is {language}, and {origin} has tokens for {known}: name one of these")
        tokenizer.tgt_lang = code
    return int(tokenizer.lang_code_to_id[tokenizer.tgt_lang])


def _id_of(config: Any, name: str, origin: str) -> int:
    """A token of the decoder, which a composed model's config has on top or in its decoder's part."""
    found = getattr(config, name, None)
    if found is None:
        found = getattr(getattr(config, "decoder", None), name, None)
    if found is None:
        raise ConfigError(f"{origin}: config.json has no {name}: write there which token it is")
    return int(found)


def _between(ids: Sequence[int], start: int, end: int) -> list[int]:
    text = list(ids[1:] if ids and ids[0] == start else ids)
    return text if text and text[-1] == end else [*text, end]


def _architecture(content: dict[str, Any]) -> dict[str, Any]:
    """A config, and those in it, without `NOT_ARCHITECTURE`."""
    return {
        name: _architecture(value) if isinstance(value, dict) else value
        for name, value in content.items()
        if name not in NOT_ARCHITECTURE
    }
