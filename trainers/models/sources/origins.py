"""Finds the origin of a model's weights for its model card: ids on the Hub and licenses, but no paths."""

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml
from huggingface_hub import ModelCard

from trainers.config.parts.model_source import SourceKind
from trainers.config.storage_location import StorageOptions
from trainers.errors import RayscribeError
from trainers.models.sources.hub_models import CARD, cached_folder
from trainers.models.sources.model_files import CONFIG, SourcePin
from trainers.storage import open_storage

_MOST_BYTES = 2**22
# OWNER/NAME, where NAME does not look like a trainer's folder.
_ID = re.compile(r"\w[\w.-]*/(?!checkpoint)\w[\w.-]*", re.ASCII)


@dataclass(frozen=True)
class Origin:
    """Public facts about a source of weights; `base_model` is its id on the Hub, or that of its base model."""

    name: str
    base_model: str | None = None
    license: str | None = None


def origin_of(pin: SourcePin, storage_options: StorageOptions) -> Origin:
    """Reads a source's own card and config; values that cannot be read are None."""
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
    """Returns the content of a small file; "" if it does not exist or cannot be read."""
    try:
        return open_storage(url, storage_options).read_small(key, _MOST_BYTES).decode()
    except (RayscribeError, OSError, ValueError):
        return ""


def _card(content: str) -> Mapping[str, Any]:
    """Returns the metadata in a model card."""
    try:
        data: Any = ModelCard(content, ignore_metadata_errors=True).data if content else None
        return data.to_dict() if data is not None else {}
    # A card may have any content. Of 60,000 damaged cards, each raised one of the first three, or nothing.
    except (yaml.YAMLError, ValueError, TypeError, AttributeError, LookupError, RecursionError):
        return {}


def _name_in(content: str) -> Any:
    """Returns the name from which transformers loaded a config before saving it."""
    try:
        return json.loads(content or "{}").get("_name_or_path")
    except (ValueError, AttributeError):
        return None


def _id_in(value: Any) -> str | None:
    """Returns an id on the Hub, the first if there are several; None for any other value."""
    first = value[0] if isinstance(value, list) and value else value
    is_id = isinstance(first, str) and _ID.fullmatch(first) is not None and not Path(first).exists()
    return str(first) if is_id else None


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) else None
