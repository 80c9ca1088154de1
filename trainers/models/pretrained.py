"""Opening pretrained weights: what cannot be opened, and what may pass."""

from collections.abc import Callable
from typing import Any, TypeVar

from trainers.config.parts.model_part import ModelPart
from trainers.errors import ConfigError, StorageError
from trainers.storage.hub_errors import read_from_hub

T = TypeVar("T")

NAME_OR_PATH = "model.name_or_path"


def open_named(field: str, name: str | None, call: Callable[[], T], what: str = "a model") -> T:
    """Calls what reads files of the weights that a field names.

    Raises:
        ConfigError: they cannot be opened.
        StorageError: the Hub, the network or the disk does not respond.
    """
    try:
        return read_from_hub(call, f"{field}: {name}")
    except StorageError as error:
        if field != NAME_OR_PATH:
            raise
        new = "write the recipe of one with `rayscribe init <recordings> --model scratch`"
        raise StorageError(f"{error}; a new model needs none: {new}") from error
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(
            f"{field}: {name} cannot be opened: {reason}; give a folder with {what}, or a Hub id that this machine can "
            "reach"
        ) from error


def open_pretrained(model: ModelPart, call: Callable[[], T]) -> T:
    """Calls what reads files of pretrained weights; errors as of `open_named`."""
    return open_named(NAME_OR_PATH, model.name_or_path, call)


def from_pretrained(model: ModelPart, kind: Any, **options: Any) -> Any:
    """What a class of transformers makes of the config's pretrained weights; errors as of `open_named`."""
    name, revision = str(model.name_or_path), model.revision or "main"
    return open_pretrained(model, lambda: kind.from_pretrained(name, revision=revision, **options))


def weights_from_pretrained(model: ModelPart, kind: Any, **options: Any) -> Any:
    """The network that a class of transformers makes of the config's pretrained weights; errors as of `open_named`.

    Of safetensors, unless the config allows pickles.
    """
    # With None transformers takes what there is.
    return from_pretrained(model, kind, use_safetensors=None if model.allow_pickle else True, **options)


def attention(model: ModelPart) -> dict[str, Any]:
    """The keyword argument of `from_pretrained` for `attn_implementation`."""
    return {"attn_implementation": model.attn_implementation} if model.attn_implementation is not None else {}
