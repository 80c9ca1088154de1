"""Where a model's weights come from, as its card says it to others: ids of the Hub and licenses, and no path."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCard

from trainers.config.parts.model_source import SourceKind
from trainers.config.storage_location import StorageOptions
from trainers.errors import RayscribeError
from trainers.models.sources.hub_models import CARD, cached_folder
from trainers.models.sources.model_files import CONFIG, SourcePin
from trainers.storage import open_storage

_MOST_BYTES = 2**22
# An id of the Hub and no path: OWNER/NAME, where the name is none that trainers give to folders.
_ID = re.compile(r"\w[\w.-]*/(?!checkpoint)\w[\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Origin:
    """What may be told of a source of weights.

    Attributes:
        name: For a person.
        base_model: Its id on the Hub, or that of the model that it was trained from. None: not known.
        license: As its card has it. None: not known.
    """

    name: str
    base_model: str | None = None
    license: str | None = None


def origin_of(pin: SourcePin, storage_options: StorageOptions) -> Origin:
    """Reads what a source's own card and config say; what cannot be read is not known."""
    if pin.kind is SourceKind.HTTPS:
        return Origin(pin.text)
    if pin.kind is SourceKind.HUB:
        folder = cached_folder(pin)
        card = _card(_content(str(folder), CARD, storage_options)) if folder is not None else {}
        return Origin(pin.text, pin.address, _text(card.get("license")))
    if pin.is_file:
        return Origin("pretrained weights")
    card = _card(_content(pin.address, CARD, storage_options))
    found = _id_in(card.get("base_model")) or _id_in(_name_in(_content(pin.address, CONFIG, storage_options)))
    name = f"a model trained from {found}" if found is not None else "pretrained weights"
    return Origin(name, found, _text(card.get("license")))


def _content(url: str, key: str, storage_options: StorageOptions) -> str:
    """A small file; empty where it is not there, or cannot be read."""
    try:
        return open_storage(url, storage_options).read_small(key, _MOST_BYTES).decode()
    except (RayscribeError, OSError, ValueError):
        return ""


def _card(content: str) -> Mapping[str, Any]:
    """The metadata of a model card."""
    try:
        data: Any = ModelCard(content, ignore_metadata_errors=True).data if content else None
        return data.to_dict() if data is not None else {}
    # Anybody may have written it.
    except Exception:
        return {}


def _name_in(content: str) -> Any:
    """What transformers had loaded the config from that it saved."""
    try:
        return json.loads(content or "{}").get("_name_or_path")
    except (ValueError, AttributeError):
        return None


def _id_in(value: Any) -> str | None:
    """An id of the Hub, of one or several."""
    first = value[0] if isinstance(value, list) and value else value
    is_id = isinstance(first, str) and _ID.fullmatch(first) is not None and not Path(first).exists()
    return str(first) if is_id else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
