"""Each command that a message of ours names is one of `rayscribe`, with its options, and with all that it needs."""

import ast
import re
import shlex
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperGroup

from jobs.cli.app import app
from tests.test_architecture import ROOT

PACKAGES = ("jobs", "trainers", "runtime_env", "cluster_configs")
# In backticks, or after a colon or in parentheses: then it ends where the sentence goes on.
QUOTED = re.compile(r"`rayscribe ([a-z][^`]*)`")
UNQUOTED = re.compile(r"(?<!`)\brayscribe ([a-z][^`,;()\n]*)")
# What stands in the place of a value that only the running program knows.
VALUE = "x"


def texts_of(path: Path) -> Iterator[tuple[int, str]]:
    """Line and text of each string of a module that is no docstring, an f-string's with words for its values."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    inside = {id(part) for joined in ast.walk(tree) if isinstance(joined, ast.JoinedStr) for part in joined.values}
    documented = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    excluded = inside | documented
    for node in ast.walk(tree):
        if isinstance(node, ast.JoinedStr):
            parts = (part.value if isinstance(part, ast.Constant) else VALUE for part in node.values)
            yield node.lineno, "".join(map(str, parts))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in excluded:
            yield node.lineno, node.value


def commands() -> Iterator[tuple[str, str]]:
    """Where each command is, and its words."""
    for path in sorted(path for package in PACKAGES for path in (ROOT / package).rglob("*.py")):
        for line, text in texts_of(path):
            for found in (*QUOTED.finditer(text), *UNQUOTED.finditer(text)):
                words = found[1].strip(" .")
                # A command whose name only the running program knows.
                if words != VALUE:
                    yield f"{path.relative_to(ROOT)}:{line}", words


def test_each_command_that_a_message_names_is_there() -> None:
    found = sorted(set(commands()))
    assert len(found) > 50
    command = typer.main.get_command(app)
    for where, words in found:
        check(command, where, shlex.split(words, comments=True))


def check(command: Any, where: str, given: list[str]) -> None:
    while isinstance(command, TyperGroup):
        assert given, f"{where}: one of {sorted(command.commands)}"
        name = given.pop(0)
        assert name in command.commands, f"{where}: there is no command {name}"
        command = command.commands[name]
    taken = {option for each in command.params for option in (*each.opts, *each.secondary_opts)}
    assert {word for word in given if word.startswith("-") and word != "--"} <= taken, where
