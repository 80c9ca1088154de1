"""Resolves secrets: a job has references to them, each node has their values, and a process resolves those it needs.

RAYSCRIBE_SECRETS is JSON: {"NAME": {"env": "VARIABLE_OF_THE_NODE"}} or {"NAME": {"file": "/path/on/the/node"}}.
"""

import json
from collections.abc import Iterable, Mapping, MutableMapping
from pathlib import Path
from typing import Any

from trainers.errors import ConfigError

REFERENCES = "RAYSCRIBE_SECRETS"
MAX_BYTES = 64 * 1024
KINDS = ("env", "file")


def resolve_secrets(environment: MutableMapping[str, str]) -> None:
    """Sets each variable in a job's `job.runtime_env.secrets` to the value that this node has for it.

    It may be called again, also in processes that inherit the variables.

    Raises:
        ConfigError: A reference cannot be resolved; the message has its name, never a value. No variable is set then.
    """
    references = _references(environment.get(REFERENCES) or "{}")
    sources = {name: place["env"] for name, place in references.items() if "env" in place}
    for name, source in sources.items():
        if source != name and source in references:
            raise ConfigError(f"{_named(name)} is taken from {source}, which is a secret too: rename one of them")
    environment.update({name: _value(name, place, environment) for name, place in references.items()})


def add_secrets(environment: MutableMapping[str, str], names: Iterable[str]) -> None:
    """Marks more variables of a process as secret, so that their values are masked in its output."""
    references = _references(environment.get(REFERENCES) or "{}")
    # The value of a source is already masked, and no other secret may have its name.
    known = {*references, *(place.get("env") for place in references.values())}
    new = {name: {"env": name} for name in names if name not in known and environment.get(name)}
    if new:
        environment[REFERENCES] = json.dumps({**references, **new})


def secret_lines(environment: Mapping[str, str]) -> list[str]:
    """Returns the lines of all secret values, longest first, to mask them in output."""
    names = _references(environment.get(REFERENCES) or "{}")
    lines = {line for name in names for line in environment.get(name, "").splitlines() if line.strip()}
    return sorted(lines, key=len, reverse=True)


def _references(text: str) -> dict[str, dict[str, str]]:
    try:
        content: Any = json.loads(text)
    except ValueError:
        content = None
    if not isinstance(content, dict) or not all(_is_place(place) for place in content.values()):
        raise ConfigError(
            f'{REFERENCES} is not {{"NAME": {{"env": "VARIABLE"}}}} or {{"NAME": {{"file": "/path"}}}} (value not '
            "shown): leave it to job.runtime_env.secrets"
        )
    return content


def _is_place(place: Any) -> bool:
    if not isinstance(place, dict) or len(place) != 1:
        return False
    ((kind, value),) = place.items()
    return kind in KINDS and isinstance(value, str) and bool(value)


def _value(name: str, place: dict[str, str], environment: MutableMapping[str, str]) -> str:
    if "env" in place:
        source = place["env"]
        if not environment.get(source):
            raise ConfigError(
                f"{_named(name)} refers to the variable {source}, which is not set on this node: set it in the "
                "environment in which Ray runs on every node, and start Ray again"
            )
        return environment[source]
    path = Path(place["file"])
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        value = content.decode().removesuffix("\n").removesuffix("\r")
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is not UTF-8 text"
        raise ConfigError(
            f"{_named(name)} refers to {path}, which cannot be read on this node ({why}): put it there on every node, "
            "readable by the user that Ray runs as"
        ) from None
    if not value or "\0" in value or len(content) > MAX_BYTES:
        raise ConfigError(
            f"{_named(name)} refers to {path}, which is empty, has a NUL byte or has more than {MAX_BYTES} bytes: "
            "it must contain only the secret's text"
        )
    return value


def _named(name: str) -> str:
    return f"job.runtime_env.secrets.{name}"
