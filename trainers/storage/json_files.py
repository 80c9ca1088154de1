"""JSON as every reader takes it: Python's own has NaN and infinities, which JSON does not know."""

import json
import math
from collections.abc import Callable, Iterable, Mapping
from typing import Any

from trainers.errors import ScoringError


def to_json(content: Any, what: str, *, indent: int | None = None, default: Callable[[Any], Any] | None = None) -> str:
    """Renders content as JSON, as `json.dumps` does.

    Raises:
        ScoringError: a number in it is not finite; names its field, and with `what` its file or title.
    """
    try:
        return json.dumps(content, indent=indent, default=default, ensure_ascii=False, allow_nan=False)
    except ValueError:
        found = _not_finite(content, "")
        if found is None:
            raise
        field, number = found
        raise ScoringError(
            f"{what}: {field} is {number}, which JSON has no form for: correct what it was computed from"
        ) from None


def to_jsonl(rows: Iterable[Mapping[str, Any]], what: str) -> str:
    """Renders one line of JSON a row; ScoringError as `to_json`."""
    return "".join(f"{to_json(row, what)}\n" for row in rows)


def finite(value: Any) -> Any:
    """The value; None for a number that is not finite."""
    return None if isinstance(value, float) and not math.isfinite(value) else value


def _not_finite(content: Any, name: str) -> tuple[str, float] | None:
    """Name and value of the first number that is not finite."""
    if isinstance(content, float):
        return None if math.isfinite(content) else (name, content)
    items: Iterable[tuple[str, Any]] = ()
    if isinstance(content, Mapping):
        items = ((f"{name}.{key}" if name else str(key), value) for key, value in content.items())
    elif isinstance(content, list | tuple):
        items = ((f"{name}[{number}]", value) for number, value in enumerate(content))
    return next((found for key, value in items if (found := _not_finite(value, key)) is not None), None)
