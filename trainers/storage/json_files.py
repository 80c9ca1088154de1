"""Writes JSON that every parser accepts, without the NaN and infinities that Python's json module writes."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainers.errors import ScoringError


def to_json(content: Any, what: str, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Returns content as JSON, like `json.dumps`.

    Raises:
        ScoringError: A number is not finite; the message names its field, and `what` as its file or title.
    """
    try:
        return json.dumps(content, indent=indent, default=default, ensure_ascii=False, allow_nan=False)
    except ValueError:
        found = _not_finite(content, "")
        if found is None:
            raise
        field, number = found
        raise ScoringError(
            f"{what}: {field} is {number}, which JSON cannot represent: correct what it was computed from"
        ) from None


def to_jsonl(rows: Iterable[Mapping[str, Any]], what: str) -> str:
    """Returns one line of JSON per row; raises ScoringError as `to_json`."""
    return "".join(f"{to_json(row, what)}\n" for row in rows)


def finite(value: Any) -> Any:
    """Returns the value, or None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _not_finite(content: Any, name: str) -> tuple[str, float] | None:
    """Returns name and value of the first number that is not finite."""
    if isinstance(content, float):
        return None if math.isfinite(content) else (name, content)
    items: Iterable[tuple[str, Any]] = ()
    if isinstance(content, Mapping):
        items = ((f"{name}.{key}" if name else str(key), value) for key, value in content.items())
    elif isinstance(content, list | tuple):
        items = ((f"{name}[{number}]", value) for number, value in enumerate(content))
    return next((found for key, value in items if (found := _not_finite(value, key)) is not None), None)
