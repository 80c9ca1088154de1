"""Variants that other installed distributions add to a table of Rayscribe, by entry points."""

from collections.abc import Mapping
from importlib.metadata import EntryPoint, entry_points
from typing import TypeVar

from trainers.errors import ConfigError

T = TypeVar("T")


def with_plugins(group: str, ours: Mapping[str, T]) -> dict[str, T]:
    """Returns a table of variants by name: Rayscribe's own, then those from the entry points of a group.

    An entry point has the name of its variant. Raises ConfigError if one cannot be loaded, or its name is taken.
    """
    table = dict(ours)
    for point in sorted(entry_points(group=group), key=lambda each: each.name):
        if point.name in table:
            raise ConfigError(f"{_described(point)}: its name is taken by another: rename it, or uninstall one")
        try:
            table[point.name] = point.load()
        except Exception as error:
            raise ConfigError(
                f"{_described(point)} cannot be loaded: {type(error).__name__}: {error}: correct or uninstall it"
            ) from error
    return table


def _described(point: EntryPoint) -> str:
    distribution = f" of {point.dist.name}" if point.dist is not None else ""
    return f"the entry point {point.group}: {point.name} = {point.value}{distribution}"
