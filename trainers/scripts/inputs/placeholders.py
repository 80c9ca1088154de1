"""Placeholders in the arguments and variables of a program, which are checked at submission, resolved on the node.

{run_folder} {attempt} {data}                        the run's folder, the attempt's number, the prepared data
{s3:bucket/key} {gs:…} {az:…} {https:…} {http:…}     a file to fetch or, with a slash at its end, a folder

`{{data}}` is the text {data}. Other text in braces, such as JSON, is left unchanged.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.config.storage_location import is_url, unreadable_url, without_password
from trainers.errors import ConfigError, StorageError
from trainers.storage.base import clean_prefix

RUN_FOLDER, ATTEMPT, DATA = "run_folder", "attempt", "data"
_SCHEMES = ("s3", "gs", "az", "https", "http")
# Schemes of other storages; these are hardly ever names of values in other text in braces.
_OTHER_SCHEMES = (
    *("abfs", "abfss", "adl", "azure", "cos", "ftp", "gcs", "hdfs", "hf", "obs", "oss", "s3a", "s3n", "sftp"),
)
# A dollar before the brace belongs to a shell, or to OmegaConf.
_BRACED = re.compile(r"(?<!\$)(?:\{(\{[^{}]*\})\}|\{([^{}]*)\})")
# A space or a quote after the colon belongs to JSON, YAML or Python.
_INPUT = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):([^\s\"'].*)", re.DOTALL)
_VARIABLE = re.compile(r"([A-Za-z_][A-Za-z0-9_]*)=")


@dataclass(frozen=True)
class Known:
    """The values of placeholders; `data` is the folder on this node, None if nothing is prepared."""

    run_folder: str
    attempt: int
    data: Path | None


@dataclass(frozen=True)
class _Placeholder:
    """A placeholder: one of the names, or scheme and rest of an input."""

    name: str
    rest: str = ""

    @property
    def url(self) -> str:
        return f"{self.name}://{self.rest.removeprefix('//')}"

    @property
    def problem(self) -> str | None:
        """A message with the problem of an input and its fix; None if it has none, or is not an input."""
        if not self.rest:
            return None
        shown = f"{{{self.name}:{without_password(self.rest)}}}"
        if self.name not in _SCHEMES:
            return (
                f"{shown}: inputs are not fetched from {self.name}: write {{s3:bucket/key}}, {{gs:…}}, {{az:…}} or "
                f"{{https:…}}, or double the braces if the text itself is meant"
            )
        host, slash, key = self.rest.removeprefix("//").partition("/")
        if not host or not slash:
            return f"{shown} names no file: write {{{self.name}:bucket/key}}, or {{{self.name}:bucket/folder/}}"
        if not is_url(self.url):
            reason = unreadable_url(self.url)
            return f"{shown}: {reason}" if reason is not None else None
        try:
            clean_prefix(key)
        except StorageError as error:
            return f"{shown}: {error}"
        return None


def problems_of(words: Sequence[str], *, prepares: bool = True, has_prefixes: bool = False) -> list[str]:
    """Returns a line for each placeholder that cannot be resolved on a node: the argument, the value and the fix.

    A word `NAME=value` may be a variable. `prepares` and `has_prefixes` say whether the recipe has `script.prepare` and
    `script.path_prefix`.
    """
    bodies = [(number, body[2]) for number, word in enumerate(words) for body in _BRACED.finditer(word)]
    meant = [(number, _meaning(body)) for number, body in bodies if body is not None]
    found = [(number, each) for number, each in meant if each is not None]
    problems = [f"{_argument(words, number)}: {each.problem}" for number, each in found if each.problem is not None]
    if not prepares and any(each == _Placeholder(DATA) for _, each in found):
        problems.append("{data} is what script.prepare writes, which is not set: set script.prepare to its command")
    if has_prefixes and not any(each.rest for _, each in found):
        problems.append("path_prefix is only for manifests that placeholders fetch, and there are none: leave it out")
    return problems


def resolve(
    words: Sequence[str], env: Mapping[str, str], known: Known, fetch: Callable[[str], Path]
) -> tuple[list[str], dict[str, str]]:
    """Resolves the arguments and variables of a program on this node; calls `fetch` once with each input's URL.

    Raises:
        ConfigError: a placeholder has no value, or cannot be resolved.
        DataError: there is no such input.
        StorageError: an input cannot be fetched.
    """
    fetched: dict[str, str] = {}

    def value(placeholder: _Placeholder) -> str:
        if placeholder.problem is not None:
            raise ConfigError(placeholder.problem)
        if placeholder.rest:
            if placeholder.url not in fetched:
                fetched[placeholder.url] = str(fetch(placeholder.url))
            return fetched[placeholder.url]
        return {RUN_FOLDER: known.run_folder, ATTEMPT: str(known.attempt), DATA: str(known.data)}[placeholder.name]

    def replaced(found: re.Match[str]) -> str:
        literal: str | None = found[1]
        placeholder = _meaning(found[2] if literal is None else literal[1:-1])
        if placeholder is None:
            return found[0]
        return value(placeholder) if literal is None else literal

    return (
        [_BRACED.sub(replaced, word) for word in words],
        {name: _BRACED.sub(replaced, text) for name, text in env.items()},
    )


def _meaning(body: str) -> _Placeholder | None:
    """Returns the placeholder with this text between its braces; None if the text is not a placeholder."""
    if body in (RUN_FOLDER, ATTEMPT, DATA):
        return _Placeholder(body)
    found = _INPUT.fullmatch(body)
    if found is None:
        return None
    scheme, rest = found[1].lower(), found[2]
    is_meant = scheme in _SCHEMES or (scheme in _OTHER_SCHEMES and "/" in rest) or rest.startswith("//")
    return _Placeholder(found[1], rest) if is_meant else None


def _argument(words: Sequence[str], number: int) -> str:
    word, before = words[number], words[number - 1] if number else ""
    if word.startswith("-"):
        return word.partition("=")[0]
    if before.startswith("-") and "=" not in before:
        return before
    variable = _VARIABLE.match(word)
    return variable[1] if variable is not None else f"argument {number + 1}"
