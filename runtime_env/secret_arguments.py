"""Finds secrets in a recipe and in arguments of a program, by name and form; replaces them on the node. Pure."""

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise
from pathlib import PurePosixPath
from typing import Any, NamedTuple

from runtime_env.credentials import is_switch, name_looks_secret, value_looks_secret
from trainers.errors import ConfigError

WAY = (
    "looks like a credential (not shown), and would be stored with the run: write '${NAME}' instead, in single quotes "
    "on a command line, where NAME is a variable in job.runtime_env.secrets or on each node"
)
SHELLS = frozenset({"ash", "bash", "busybox", "dash", "ksh", "sh", "zsh"})
_REFERENCE = re.compile(r"\$\{([A-Za-z_]\w*)\}")
# References that a shell expands as well.
_OF_SHELL = re.compile(r"\$\{([A-Za-z_]\w*)\}|\$([A-Za-z_]\w*|[\d@*#?])")
_COMPUTED = re.compile(r"""["'\\]*(?:\$\((?!\()|`)""")
_OF_PYTHON = re.compile(r"(?:os\.)?(?:environ|getenv)\b")
_SHELL_OPTION = re.compile(r"-[A-Za-z]*c")
_OPTION = re.compile(r"[-+~]*([A-Za-z_][\w./\[\]-]*)")
# Words that begin with a dash and are not the value of an option.
_NEXT_OPTION = re.compile(r"--.*|-[A-Za-z_]*(?:=.*)?|-\d+(?:\.\d+)?", re.DOTALL)
# Names with the begin of values in calls, JSON, YAML, headers and shell text.
_SCHEME = r"(?:Bearer|Basic|Token|Api-?Key)\s+"
_NAMED = re.compile(
    rf"""(?<![\w.-])([\w.-]++)["'\\\]]*+\s*+[:=]++\s*+(?=((?:{_SCHEME})?[^\s,;&|]{{0,200}}))""", re.IGNORECASE
)
_WORD_ENDS = re.compile(r"\W+|(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")
_NOTHING = re.compile(r"none|null|nil|~|[-+]?(?:\d+\.\d*|\.\d+|\d+(?:\.\d*)?e[-+]?\d+)", re.IGNORECASE)
# Values that are not secret: a token of a tokenizer, its number, or a number of passes.
_OF_TEXT = re.compile(r"[<\[|(]+[\w /.-]*[>\]|)]+|\d{1,6}|.", re.DOTALL)
_AROUND = "\"'`\\ \t\r\n"
_CLOSING = _AROUND + ")}]"


class SecretArgument(NamedTuple):
    """An argument whose name indicates a secret value.

    Attributes:
        place: Index of the word with the value.
        value: The value; in a longer text, only that part.
        is_of_shell: True if a shell among the words reads it and expands the variables in it.
    """

    name: str
    place: int
    value: str
    is_of_shell: bool = False

    @property
    def is_literal(self) -> bool:
        """True if a part of the value is plain text instead of a reference."""
        left, references = (_OF_SHELL if self.is_of_shell else _REFERENCE).subn("", self.value)
        if self.is_of_shell and _COMPUTED.match(self.value):
            return False
        left = re.sub(_SCHEME, "", left, flags=re.IGNORECASE)
        # Characters between references, such as a colon or a quote, are not a value.
        return any(sign.isalnum() for sign in left) if references else left.strip(_AROUND) != ""


def secret_arguments(words: Sequence[str]) -> Iterator[SecretArgument]:
    """Yields arguments with secret values: `--hub_token x`, `hub_token=x`, and those in JSON, YAML, calls, shells."""
    of_shell = _places_of_shell(words)
    for place, word in enumerate(words):
        is_of_shell = place in of_shell
        name, equals, value = word.partition("=")
        following = words[place + 1] if place + 1 < len(words) else "--"
        if equals and not is_of_shell and _is_secret(name, value):
            yield SecretArgument(name, place, value)
        elif (equals or word.startswith("-")) and not value and _is_value(following) and _is_secret(name, following):
            yield SecretArgument(name, place + 1, following)
        else:
            yield from _in_text(word, place, is_of_shell=is_of_shell)


def literal_secrets(words: Sequence[str]) -> list[str]:
    """Returns the names of arguments with a secret in plain text, `word N` if it has no name."""
    named = {place: f"word {place + 1}" for place, word in enumerate(words) if value_looks_secret(word)}
    named |= {found.place: found.name for found in secret_arguments(words) if found.is_literal}
    return [named[place] for place in sorted(named)]


def secret_references(words: Sequence[str], environment: Mapping[str, str] | None = None) -> dict[str, str]:
    """Returns the names of variables for secrets, judged by their own or arguments' names, and what refers to each.

    Variables whose values in `environment` only turn something on or off, are empty or fractions are not secrets.
    """
    of_shell, values = _places_of_shell(words), environment or {}
    found = {
        name: f"word {place + 1}"
        for place, word in enumerate(words)
        for name in _names_in(word, is_of_shell=place in of_shell)
        if name_looks_secret(name) and not (name in values and _is_none(values[name]))
    }
    for argument in secret_arguments(words):
        found |= dict.fromkeys(_names_in(argument.value, is_of_shell=argument.is_of_shell), argument.name)
    return found


def with_secrets(words: Sequence[str], environment: Mapping[str, str]) -> list[str]:
    """Returns the words with the node's value for each `${NAME}` of a secret, except in words that a shell expands.

    Raises:
        ConfigError: the node has no such variable.
    """
    references, of_shell = secret_references(words), _places_of_shell(words)

    def value_of(match: re.Match[str]) -> str:
        name = match[1]
        if name not in references:
            return match[0]
        if name not in environment:
            raise ConfigError(
                f"{references[name]} refers to the variable {name}, which is not set on this node: add it to "
                "job.runtime_env.secrets, or set it in the environment in which Ray runs on every node"
            )
        is_json = match.string.partition("=")[2].startswith(("{", "[")) or match.string.startswith(("{", "["))
        return json.dumps(environment[name])[1:-1] if is_json else environment[name]

    return [word if place in of_shell else _REFERENCE.sub(value_of, word) for place, word in enumerate(words)]


def _in_text(text: str, place: int, *, is_of_shell: bool) -> Iterator[SecretArgument]:
    for match in _NAMED.finditer(text):
        # The names in a nested mapping are matched by themselves.
        is_other = match[2].startswith("{") or _OF_PYTHON.match(match[2])
        if not is_other and _is_secret(match[1], match[2]):
            yield SecretArgument(match[1], place, match[2], is_of_shell)
    texts = [each.strip(_AROUND + "();") for each in text.split()]
    for option, value in pairwise(texts):
        if option.startswith("-") and _is_value(value) and _is_secret(option, value):
            yield SecretArgument(option, place, value, is_of_shell)


def _places_of_shell(words: Sequence[str]) -> set[int]:
    """Returns the indexes of words after `bash -c` and the like."""
    found, is_shell = set(), False
    for place, word in enumerate(words[:-1]):
        is_shell |= PurePosixPath(word).name in SHELLS
        if is_shell and _SHELL_OPTION.fullmatch(word):
            found.add(place + 1)
            is_shell = False
    return found


def _names_in(text: str, *, is_of_shell: bool) -> list[str]:
    found = (_OF_SHELL if is_of_shell else _REFERENCE).finditer(text)
    return [match[match.lastindex or 1] for match in found]


def _is_none(value: str) -> bool:
    """Returns True if a value, whatever its name, is not a secret: nothing, a switch or a fraction."""
    return is_switch(value) or _NOTHING.fullmatch(value.strip()) is not None


def _is_value(word: str) -> bool:
    """Returns True if a word can be the value of an option before it."""
    return not word.startswith("-") or _NEXT_OPTION.fullmatch(word) is None


def _is_secret(option: str, value: str) -> bool:
    found = _OPTION.fullmatch(option.lstrip("."))
    if found is None or any(_is_none(each) for each in (value, value.strip(_CLOSING))):
        return False
    name = _WORD_ENDS.sub("_", found[1])
    is_of_text = any(_OF_TEXT.fullmatch(each) for each in (value.strip(_AROUND), value.strip(_CLOSING)))
    is_of_text &= not {"TOKEN", "PASS"}.isdisjoint(name.upper().split("_"))
    return not is_of_text and name_looks_secret(name)


# Fields of transformers' TrainingArguments that are always secret, whatever their values.
TOKEN_FIELDS = frozenset({"hub_token", "push_to_hub_token"})
FIX = (
    "looks like a credential (not shown): remove it; use job.runtime_env.secrets for a variable whose value each node "
    "has; for buckets, each node has its own credentials"
)


def find_literal_secrets(content: Any, path: Sequence[str] = ()) -> Iterator[str]:
    """Yields a problem for each value below a path that looks like a credential; does not repeat the value."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from find_literal_secrets(value, (*path, str(key)))
    elif isinstance(content, list | tuple):
        for number, item in enumerate(content):
            yield from find_literal_secrets(item, (*path, str(number)))
    elif isinstance(content, str) and content:
        named = any(name in TOKEN_FIELDS for name in path)
        # For variables of a program, options of a data source, and a ds_config. A path may contain a =.
        named |= path != () and "=" not in path[-1] and literal_secrets([f"{path[-1]}={content}"]) != []
        # job.runtime_env has its own rules, which are the same.
        if (named or value_looks_secret(content)) and "runtime_env" not in path:
            yield f"{'.'.join(path)}: {FIX}"
