"""Opens the description of pretrained weights, and classifies errors as permanent or temporary."""

from collections.abc import Callable, Sequence
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeVar

from transformers.utils.generic import flatten_dict

from trainers.config.parts.model_part import ModelPart
from trainers.errors import ConfigError, RayscribeError, StorageError
from trainers.findings import named
from trainers.models.sources.model_files import EXTRACTOR, EXTRACTOR_FILES, TOKENIZER, TOKENIZER_FILES
from trainers.storage.hub_errors import read_from_hub

T = TypeVar("T")

NAME_OR_PATH = "model.name_or_path"
_PROCESSORS = {EXTRACTOR: ("feature extractor", EXTRACTOR_FILES), TOKENIZER: ("tokenizer", TOKENIZER_FILES)}
# Fields of a config.json about its origin and loading, and those that loading turns off.
_NOT_ARCHITECTURE = (
    *("_name_or_path", "transformers_version", "dtype", "torch_dtype"),
    *("layerdrop", "apply_spec_augment", "use_cache"),
)


def open_named(field: str, name: str | None, call: Callable[[], T], what: str = "a model") -> T:
    """Calls a function that reads files of the weights that a field names.

    Raises ConfigError if the files cannot be opened, and StorageError if the Hub, the network or the disk does not
    respond.
    """
    try:
        return read_from_hub(call, f"{field}: {name}")
    except StorageError as error:
        if field != NAME_OR_PATH:
            raise
        new = "write its recipe with `rayscribe init <recordings> --model scratch`"
        raise StorageError(f"{error}; a new model needs no weights: {new}") from error
    except (RayscribeError, ImportError, MemoryError):
        raise
    # transformers, tokenizers, safetensors and torch may raise any exception for an invalid file.
    except Exception as error:
        raise ConfigError(
            f"{field}: {name} cannot be opened: {reason_of(error)}; give a folder with {what}, or a Hub id that this "
            "machine can reach"
        ) from error


def reason_of(error: Exception) -> str:
    """Returns one line on why a model's file cannot be read."""
    if isinstance(error, UnpicklingError):
        # torch's own message recommends to run the pickle's code.
        return "its pickle is damaged, or has more than tensors, which is never run"
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    # A line that introduces a list of problems, with the first of them.
    text = " ".join(lines[:2] if lines and lines[0].endswith(":") else lines[:1])
    return text if isinstance(error, OSError | ValueError) and text else f"{type(error).__name__}: {text}"


def open_pretrained(model: ModelPart, call: Callable[[], T]) -> T:
    """Calls a function that reads files of pretrained weights; raises as `open_named`."""
    return open_named(NAME_OR_PATH, model.name_or_path, call)


def from_pretrained(model: ModelPart, kind: Any, **options: Any) -> Any:
    """Returns what `from_pretrained` of a transformers class makes of the weights; raises as `open_named`."""
    name, revision = str(model.name_or_path), model.revision or "main"
    return open_pretrained(model, lambda: kind.from_pretrained(name, revision=revision, **options))


def refuse_other_sizes(found: Any, wanted: Any, names: Sequence[str] | None) -> None:
    """Raises ConfigError if a checkpoint's config.json differs from the wanted one in `names`, or if None in any."""
    sizes, asked = flatten_dict(found.to_dict()), flatten_dict(wanted.to_dict())
    if names is None:
        names = [name for name in sizes | asked if name.rpartition(".")[2] not in _NOT_ARCHITECTURE]
    other = [f"{name} {sizes.get(name)}, not {asked.get(name)}" for name in names if sizes.get(name) != asked.get(name)]
    if other:
        raise ConfigError(
            f"run.resume: the checkpoint's model differs from the config's: {named(other)}: "
            "set model to what the checkpoint was trained with"
        )


def refuse_without_processor(model: ModelPart, *, tokenizer: bool = True) -> None:
    """Raises ConfigError if a folder of weights lacks the files of a feature extractor or of a tokenizer."""
    for field in (EXTRACTOR, TOKENIZER) if tokenizer else (EXTRACTOR,):
        refuse_without_files(Path(str(model.name_or_path)), field, f"{NAME_OR_PATH}: {model.name_or_path}")


def refuse_without_files(folder: Path, field: str, origin: str) -> None:
    """Raises ConfigError if a folder lacks a field's files; transformers may make an empty tokenizer."""
    what, patterns = _PROCESSORS[field]
    if folder.is_dir() and not any(path.is_file() for pattern in patterns for path in folder.glob(pattern)):
        raise ConfigError(
            f"{origin} holds no {what} ({' or '.join(patterns)}): copy the complete folder, or name where it is "
            f"(model.{field})"
        )


def network_options(model: ModelPart) -> dict[str, Any]:
    """Returns arguments of `from_pretrained`: the type of weights, and `attn_implementation` if configured."""
    chosen = {} if model.attn_implementation is None else {"attn_implementation": model.attn_implementation}
    return {"dtype": model.dtype, **chosen}
