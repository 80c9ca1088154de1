"""Defines a row of the table of flags: how a flag's value is parsed, and what it means."""

import argparse
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from trainers.config.strict_loading import load_json
from trainers.errors import ConfigError

WORDS_OF_A_SWITCH = {
    **dict.fromkeys(("true", "t", "yes", "y", "1"), True),
    **dict.fromkeys(("false", "f", "no", "n", "0"), False),
}


@dataclass(frozen=True)
class ValueType:
    """The type of a flag's value.

    Attributes:
        read: Parses the text; raises argparse.ArgumentTypeError or ValueError.
        const: Value of the flag without an argument, where that is allowed.
    """

    name: str
    read: Callable[[str], Any]
    nargs: str | None = None
    const: Any = None


def _boolean(text: str) -> bool:
    if text.lower() not in WORDS_OF_A_SWITCH:
        # The value is not shown: that of --use_auth_token may be the token.
        raise argparse.ArgumentTypeError("write True or False, or the flag alone for True")
    return WORDS_OF_A_SWITCH[text.lower()]


def _steps(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write a whole number of optimizer steps; a fraction of the training is not supported"
        ) from None


def _range(text: str) -> int | dict[str, int]:
    first, colon, last = text.partition(":")
    try:
        return {"min": int(first), "max": int(last)} if colon else int(text)
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r}: write a whole number, or the fewest and the most, e.g. 2:8"
        ) from None


def _mapping(text: str) -> dict[str, Any]:
    try:
        value = load_json(text)
    except ValueError as error:
        raise argparse.ArgumentTypeError(f"{text!r}: write it as JSON, e.g. '{{\"key\": 1}}': {error}") from None
    if not isinstance(value, dict):
        raise argparse.ArgumentTypeError(f"{text!r}: write a JSON object, e.g. '{{\"key\": 1}}'")
    return value


SWITCH = ValueType("True, False", _boolean, "?", True)
SWITCH_OR_TEXT = ValueType("True, False, or a text", lambda text: WORDS_OF_A_SWITCH.get(text.lower(), text), "?", True)
WHOLE = ValueType("a whole number", int)
STEPS = ValueType("optimizer steps", _steps)
RANGE = ValueType("a whole number, or MIN:MAX", _range)
NUMBER = ValueType("a number", float)
TEXT = ValueType("a text", str)
WORDS = ValueType("texts", str, "+")
MAPPING = ValueType("a JSON object", _mapping)
KINDS = {bool: SWITCH, int: WHOLE, float: NUMBER, str: TEXT, list: WORDS}


@dataclass(frozen=True)
class Flag:
    """A flag of a public script, or one of Rayscribe's own, and its meaning.

    A value either requests what always happens (`always`), sets `field`, or is refused for `reason`.

    Attributes:
        name: The script's spelling; dashes and underscores are equivalent.
        kind: The type of its value.
        field: Dotted name of the field that it sets; "" if every value that is not in `always` is refused.
        always: Values that request what always happens; None if every value does.
        meanings: The field's value for each value of the flag; others are refused. If None, the field gets the value.
        sets: Returns the fields that a value sets, if one field is not enough; raises ValueError for a refused value.
        verbs: The verbs of task.py that do what a value requests, by value.
        note: Returns a message about an accepted value; None if there is nothing to say.
        reason: Why nothing needs to be set, or why a value is refused, with an alternative.
    """

    name: str
    kind: ValueType
    field: str = ""
    always: tuple[Any, ...] | None = ()
    meanings: Mapping[Any, Any] | None = None
    sets: Callable[[Any], Mapping[str, Any]] | None = None
    verbs: Mapping[Any, tuple[str, ...]] | None = None
    note: Callable[[Any], str | None] | None = None
    reason: str = ""

    @property
    def key(self) -> str:
        return self.name.replace("-", "_")

    @property
    def option(self) -> str:
        return f"--{self.name}"

    def fields_of(self, value: Any, verb: str) -> Mapping[str, Any]:
        """Returns the fields that a value sets.

        Raises:
            ConfigError: The value is refused; the message gives the reason and an alternative.
        """
        if self.always is None or value in self.always:
            return {}
        if self.verbs is not None and verb in self.verbs[value]:
            return {}
        try:
            if self.sets is not None:
                return self.sets(value)
            if self.meanings is not None:
                return {self.field: self.meanings[value]}
        except (KeyError, ValueError) as error:
            raise self._refusal(value, str(error) if isinstance(error, ValueError) else self.reason) from None
        if not self.field:
            raise self._refusal(value, self.reason)
        return {self.field: value}

    def _refusal(self, value: Any, reason: str) -> ConfigError:
        if "token" in self.key and self.kind is TEXT:
            return ConfigError(f"{self.option} (not shown): {reason}")
        text = " ".join(value) if isinstance(value, list) else json.dumps(value) if isinstance(value, dict) else value
        return ConfigError(f"{self.option} {text}: {reason}")


def refused(kind: ValueType, reason: str, *names: str) -> tuple[Flag, ...]:
    """Returns flags whose values are all refused."""
    return tuple(Flag(name, kind, reason=reason) for name in names)


def only(value: Any, reason: str, *names: str) -> tuple[Flag, ...]:
    """Returns flags that accept only this value."""
    kind = KINDS[type(value)]
    return tuple(Flag(name, kind, always=(value,), reason=reason) for name in names)


def ignored(kind: ValueType, reason: str, *names: str) -> tuple[Flag, ...]:
    """Returns flags whose values change nothing."""
    return tuple(Flag(name, kind, always=None, reason=reason) for name in names)


def fields(part: str, kind: ValueType, *names: str) -> tuple[Flag, ...]:
    """Returns flags that set the fields of the same names."""
    return tuple(Flag(name, kind, f"{part}.{name}") for name in names)


def renamed(kind: ValueType, **fields: str) -> tuple[Flag, ...]:
    """Returns flags that set fields of other names."""
    return tuple(Flag(name, kind, field) for name, field in fields.items())
