"""Secrets among the arguments of a program: found by the names of its options, filled in on the node. Pure."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from typing import NamedTuple

from runtime_env.credentials import is_switch, name_looks_secret, value_looks_secret
from trainers.errors import ConfigError

WAY = (
    "looks like a credential (not shown), and would be stored with the run: write '${NAME}' in its place, in single "
    "quotes on a command line, where NAME is a variable that job.runtime_env.secrets brings or that each node has"
)
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
# `--model.hub-token`, `++trainer.hub_token`, `hubToken`.
_OPTION = re.compile(r"[-+]*([A-Za-z_][\w.-]*)")
_WORD_ENDS = re.compile(r"[.-]|(?<=[a-z0-9])(?=[A-Z])")
# A token of a tokenizer, its number, or how often something is passed.
_OF_TEXT = re.compile(r"[<\[|(].*|\d{1,6}|.", re.DOTALL)


class SecretArgument(NamedTuple):
    """An argument whose name says that its value is a secret.

    Attributes:
        name: As it is written.
        place: Of the word that holds the value.
        value: Of a text for a shell, or of JSON, the one in it.
        is_of_shell: A shell that is among the words reads it, and replaces the variables in it.
    """

    name: str
    place: int
    value: str
    is_of_shell: bool = False

    @property
    def is_literal(self) -> bool:
        """Whether the value is written out, where it should be a reference."""
        refers = self.is_of_shell and self.value.lstrip("\"'").startswith("$")
        return not (refers or _REFERENCE.search(self.value))


def secret_arguments(words: Sequence[str]) -> Iterator[SecretArgument]:
    """The arguments that hold a secret: `--hub_token x`, `--hub-token=x`, `hub_token=x`, in JSON, for a shell."""
    for place, word in enumerate(words):
        name, equals, value = word.partition("=")
        following = words[place + 1] if place + 1 < len(words) else "-"
        if equals and _is_secret(name, value):
            yield SecretArgument(name, place, value)
        elif not equals and word.startswith("-") and not following.startswith("-") and _is_secret(word, following):
            yield SecretArgument(word, place + 1, following)
        inside = value if equals and _OPTION.fullmatch(name) else word
        if inside.startswith("{"):
            yield from (SecretArgument(key, place, each) for key, each in _of_json(inside))
        elif len(texts := inside.split()) > 1:
            found = secret_arguments(texts)
            yield from (SecretArgument(each.name, place, each.value, is_of_shell=True) for each in found)


def literal_secrets(words: Sequence[str]) -> list[str]:
    """Names of the words that hold a secret itself."""
    named = {place: f"word {place + 1}" for place, word in enumerate(words) if value_looks_secret(word)}
    named |= {found.place: found.name for found in secret_arguments(words) if found.is_literal}
    return [named[place] for place in sorted(named)]


def with_secrets(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """The words with the node's value in place of each `${NAME}` that stands for a secret.

    Raises:
        ConfigError: the node has no such variable.
    """
    filled = list(words)
    for found in secret_arguments(words):
        for name in _REFERENCE.findall(found.value) if not found.is_of_shell else ():
            if name not in environment:
                raise ConfigError(
                    f"{found.name} refers to the variable {name}, which is not set on this node: bring it by "
                    "job.runtime_env.secrets, or set it in the environment in which Ray runs on every node"
                )
            is_json = filled[found.place].partition("=")[2].startswith("{") or filled[found.place].startswith("{")
            value = json.dumps(environment[name])[1:-1] if is_json else environment[name]
            filled[found.place] = filled[found.place].replace(f"${{{name}}}", value)
    return filled


def _is_secret(option: str, value: str) -> bool:
    found = _OPTION.fullmatch(option)
    if found is None or is_switch(value):
        return False
    name = _WORD_ENDS.sub("_", found[1])
    is_of_text = _OF_TEXT.fullmatch(value) and not {"TOKEN", "PASS"}.isdisjoint(name.upper().split("_"))
    return not is_of_text and name_looks_secret(name)


def _of_json(text: str) -> Iterator[tuple[str, str]]:
    """Names and values of secrets in JSON; nothing in what is none."""
    try:
        left = [json.loads(text)]
    except (ValueError, RecursionError):
        return
    while left:
        value = left.pop()
        if isinstance(value, dict):
            yield from ((key, each) for key, each in value.items() if isinstance(each, str) and _is_secret(key, each))
            left += value.values()
        elif isinstance(value, list):
            left += value
