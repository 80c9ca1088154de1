"""Opening pretrained weights: what cannot be opened, what may pass, and a download once a node."""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from trainers.config.parts.model_part import ModelPart
from trainers.errors import ConfigError
from trainers.storage.hub_errors import read_from_hub

if TYPE_CHECKING:
    # It loads torch, which a family does without.
    from trainers.distributed.session import Session

T = TypeVar("T")


def open_named(field: str, name: str | None, call: Callable[[], T], what: str = "a model") -> T:
    """Calls what reads files of the weights that a field names.

    Raises:
        ConfigError: they cannot be opened.
        StorageError: the Hub, the network or the disk does not respond.
    """
    try:
        return read_from_hub(call, f"{field}: {name}")
    except (OSError, ValueError) as error:
        reason = next(iter(str(error).strip().splitlines()), type(error).__name__)
        raise ConfigError(
            f"{field}: {name} cannot be opened: {reason}; give a folder with {what}, or a Hub id that this machine can "
            "reach"
        ) from error


def open_pretrained(model: ModelPart, call: Callable[[], T]) -> T:
    """Calls what reads files of pretrained weights; errors as of `open_named`."""
    return open_named("model.name_or_path", model.name_or_path, call)


def from_pretrained(model: ModelPart, kind: Any, **options: Any) -> Any:
    """What a class of transformers makes of the config's pretrained weights; errors as of `open_named`."""
    name, revision = str(model.name_or_path), model.revision or "main"
    return open_pretrained(model, lambda: kind.from_pretrained(name, revision=revision, **options))


def attention(model: ModelPart) -> dict[str, Any]:
    """The keyword argument of `from_pretrained` for `attn_implementation`."""
    return {"attn_implementation": model.attn_implementation} if model.attn_implementation is not None else {}


def load_once_a_node(model: ModelPart, session: "Session", load: Callable[[ModelPart], T]) -> T:
    """Loads a model on every rank; only the first of each node asks the Hub, and downloads. Every rank calls it."""
    if model.init == "scratch" or Path(str(model.name_or_path)).exists():
        return load(model)
    first = load(model) if session.local_rank == 0 else None
    session.barrier("downloading the model")
    return first if first is not None else load(_in_cache(model))


def _in_cache(model: ModelPart) -> ModelPart:
    """The model with the folder of this node's cache in place of the Hub id; as it is, where it is not there."""
    # It takes a fifth of a second to import, and most configs name no Hub id.
    from huggingface_hub import snapshot_download  # noqa: PLC0415

    try:
        folder = snapshot_download(str(model.name_or_path), revision=model.revision, local_files_only=True)
    except (OSError, ValueError):
        return model  # this rank has another cache
    return model.model_copy(update={"name_or_path": folder, "revision": None})
