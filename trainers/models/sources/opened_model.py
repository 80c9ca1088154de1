"""Opens the model of a config as one folder on this node, whatever the locations of its parts are."""

import hashlib
import json
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from transformers import AutoFeatureExtractor, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CTC_MAPPING_NAMES

from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.model_source import ModelSource, SourceKind
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError, RayscribeError
from trainers.models.pretrained import open_named, refuse_without_files
from trainers.models.sources.model_files import (
    CONFIG,
    DECODER,
    ENCODER,
    EXTRACTOR,
    FIELDS,
    INDEXES,
    TOKENIZER,
    WEIGHTS,
    SourcePin,
    names_in,
    weight_files,
)
from trainers.models.sources.source_reader import SourceReader, made_once

if TYPE_CHECKING:
    # Loads torch, which a family does not need.
    from trainers.distributed.session import Session

Model = TypeVar("Model", bound=ModelPart)
Pins = Mapping[str, SourcePin]

# Files of a model other than its weights and its processor.
_GENERATION = "generation_config.json"
_TOKENIZERS = ("tokenizer_config.json", "tokenizer.json", "vocab.json")


@dataclass(frozen=True)
class OpenedModel:
    """A folder with the files that a config's model part names; `folder` is None for new weights."""

    folder: Path | None = None
    pins: Pins = field(default_factory=dict)

    @property
    def is_own(self) -> bool:
        """True if others cannot refer to the weights, since no folder or repository on the Hub has them."""
        if self.folder is None:
            return False
        weights = self.pins.get(WEIGHTS)
        is_named = weights is not None and not weights.is_file and weights.kind in (SourceKind.PATH, SourceKind.HUB)
        return len(self.pins) > 1 or not is_named

    def applied_to(self, model: Model) -> Model:
        """Returns the model part with the folder in place of the sources."""
        if self.folder is None:
            return model
        return model.model_copy(update={"name_or_path": str(self.folder), "revision": None})

    def named_in(self, model: Model) -> Model:
        """Returns the model part with its revision replaced by the commit."""
        weights = self.pins.get(WEIGHTS)
        if weights is None:
            return model
        return model.model_copy(update={"name_or_path": weights.address, "revision": weights.revision})

    @contextmanager
    def named_in_errors(self) -> Iterator[None]:
        """Returns a context whose errors name the sources instead of the folder."""
        try:
            yield
        except RayscribeError as error:
            folder, text = str(self.folder), str(error)
            if self.folder is None or folder not in text:
                raise
            names = ", ".join(dict.fromkeys(pin.text for pin in self.pins.values()))
            raise type(error)(text.replace(folder, names)) from error.__cause__


def with_model(config: TrainConfig, name_or_path: str) -> TrainConfig:
    """Returns the config with other weights; keeps only `allow_pickle` of the model part, and a revision of these."""
    part = config.model
    revision = part.revision if name_or_path == part.name_or_path else None
    named = ModelPart(name_or_path=name_or_path, revision=revision, allow_pickle=part.allow_pickle)
    return config.model_copy(update={"model": named})


def pin_sources(
    config: TrainConfig, known: Mapping[str, Any] | None = None, *, hashed: bool = False
) -> dict[str, SourcePin]:
    """Returns the present state of each source of a config's model, by field; empty for new weights.

    `known` is the record of the sources at the start of the run, by the same fields. With `hashed`, local folders are
    hashed, too. Raises as `SourceReader.pin`.
    """
    model, reader = config.model, SourceReader.of(config)
    pins: dict[str, SourcePin] = {}
    if model.init == "scratch":
        return pins
    for name in FIELDS:
        if (text := getattr(model, name, None)) is None:
            continue
        source = ModelSource.parse(text, model.revision if name == WEIGHTS else None)
        before = (known or {}).get(name, {})
        pins[name] = reader.pin(name, source, before if before.get("source") == source.text else None)
    if hashed or len(pins) > 1:
        pins = {name: reader.hashed(pin) for name, pin in pins.items()}
    return pins


def open_sources(config: TrainConfig, pins: Pins, *, weights: bool, cached: bool = False) -> OpenedModel:
    """Makes the files of sources available in one local folder; without `weights`, only the model's description.

    With `cached`, another process of the node has done this already.

    Raises as `SourceReader.folder`, and ConfigError if the parts do not match.
    """
    reader = SourceReader.of(config)
    folders = {name: reader.folder(pin, weights=weights, cached=cached) for name, pin in pins.items()}
    if not folders:
        return OpenedModel()
    if WEIGHTS in folders and TOKENIZER not in folders and _is_converted(folders[WEIGHTS], pins[WEIGHTS]):
        # Imported here because it loads torch, which the conversion has already loaded.
        from trainers.models.whisper.openai_checkpoint import tokenizer_for  # noqa: PLC0415

        raise ConfigError(
            f"{pins[WEIGHTS].name}: holds no tokenizer, as OpenAI's checkpoints have none: set model.tokenizer_name: "
            f"{tokenizer_for(folders[WEIGHTS])}"
        )
    if len(folders) == 1:
        return OpenedModel(next(iter(folders.values())), pins)
    key = json.dumps(
        [[asdict(pin) | {"kind": pin.kind.value} for pin in pins.values()], config.run.seed], sort_keys=True
    )
    folder = made_once(
        "composed",
        hashlib.sha256(key.encode()).hexdigest(),
        "model" if weights else "description",
        lambda folder: _compose(folders, pins, folder, weights=weights, seed=config.run.seed),
    )
    return OpenedModel(folder, pins)


def open_once_a_node(config: TrainConfig, pins: Pins, session: "Session") -> OpenedModel:
    """Opens the sources with weights on every rank; the first rank of each node downloads. Every rank must call it."""
    opened = None
    with session.failing_together("downloading the model"):
        if session.local_rank == 0:
            opened = open_sources(config, pins, weights=True)
    return opened if opened is not None else open_sources(config, pins, weights=True, cached=True)


def _is_converted(folder: Path, pin: SourcePin) -> bool:
    """Returns True for the folder of a converted checkpoint of OpenAI's Whisper, which has no tokens."""
    if not pin.is_file or any((folder / name).exists() for name in (_GENERATION, *_TOKENIZERS)):
        return False
    return bool(json.loads((folder / CONFIG).read_bytes()).get("model_type") == "whisper")


def _compose(folders: Mapping[str, Path], pins: Pins, target: Path, *, weights: bool, seed: int) -> None:
    """Writes one folder from several sources, in which weights are links."""
    base = folders.get(WEIGHTS)
    tokenizer = _open(AutoTokenizer, (TOKENIZER, DECODER, WEIGHTS), folders, pins)
    extractor = _open(AutoFeatureExtractor, (EXTRACTOR, ENCODER, WEIGHTS), folders, pins)
    if base is None:
        # Imported here because most models have a single source.
        from trainers.models.seq2seq.seq2seq_family import join  # noqa: PLC0415

        def make() -> None:
            join(folders[ENCODER], folders[DECODER], tokenizer, target, weights=weights, seed=seed)

        open_named(f"model.{ENCODER}, model.{DECODER}", f"{pins[ENCODER].text}, {pins[DECODER].text}", make)
    else:
        _take_over(base, target, pins[WEIGHTS].name, weights=weights)
    extractor.save_pretrained(target)
    tokenizer.save_pretrained(target)
    if base is not None and TOKENIZER in folders:
        _fit_outputs(target, tokenizer)
    if base is not None and _is_converted(base, pins[WEIGHTS]):
        from trainers.models.whisper.openai_checkpoint import add_tokens  # noqa: PLC0415

        add_tokens(target, tokenizer)


def _fit_outputs(folder: Path, tokenizer: Any) -> None:
    """Configures an encoder without an output layer, from which a CTC model starts, to get one for the tokenizer.

    An existing output layer is unchanged, and a tokenizer that does not match it is refused when it is opened.
    """
    content = json.loads((folder / CONFIG).read_bytes())
    ctc = MODEL_FOR_CTC_MAPPING_NAMES.get(content.get("model_type"))
    if ctc is None or any(name.endswith("ForCTC") for name in content.get("architectures") or ()):
        return
    ids = {"vocab_size": len(tokenizer), "pad_token_id": tokenizer.pad_token_id}
    (folder / CONFIG).write_text(json.dumps({**content, **ids, "architectures": [ctc]}, indent=2))


def _take_over(base: Path, target: Path, origin: str, *, weights: bool) -> None:
    """Copies a folder's files except those of a processor; weights become links."""
    names = names_in(base)
    for name in (CONFIG, _GENERATION, *INDEXES):
        if name in names:
            shutil.copyfile(base / name, target / name)
    # Pickled weights have been refused, unless allowed, when the folder was opened.
    for name in weight_files(names, origin, allow_pickle=True) if weights else ():
        (target / name).symlink_to((base / name).absolute())


def _open(kind: Any, fields: tuple[str, ...], folders: Mapping[str, Path], pins: Pins) -> Any:
    """Opens the first of the fields that is given, with a class of transformers."""
    name = next(each for each in fields if each in folders)
    folder = folders[name]
    refuse_without_files(folder, fields[0], pins[name].name)
    return open_named(f"model.{name}", pins[name].text, lambda: kind.from_pretrained(folder, trust_remote_code=False))
