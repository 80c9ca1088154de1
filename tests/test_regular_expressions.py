"""No regular expression that reads a user's text takes quadratic time: it holds the interpreter, and so the service."""

import ast
import importlib
import pkgutil
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from types import FrameType, ModuleType
from typing import Any

import pytest

import jobs.api
import jobs.service
import jobs.submission
import runtime_env
import trainers.config
import trainers.run_folder
import trainers.storage
from runtime_env.credentials import masked, value_looks_secret
from runtime_env.requirements import check_line, logical_lines

# What the service reads requests, run folders and the output of jobs with.
PACKAGES = (
    jobs.api,
    jobs.service,
    jobs.submission,
    runtime_env,
    trainers.config,
    trainers.run_folder,
    trainers.storage,
)
FUNCTIONS = {"match", "fullmatch", "search", "sub", "subn", "split", "findall", "finditer"}
# An anchored method looks for a match from one place only.
ANCHORED = {"match", "fullmatch"}
LENGTH = 100_000
# Of processor time, which no other program's load adds to: linear search needs a tenth of it at most.
LIMIT_S = 4.0
CHARACTERS = "a1A -_./:@=#$%{\"'\\\n!é"
Pattern = re.Pattern[Any]


class Repeated(str):
    """A text that an element matches which may be repeated."""

    __slots__ = ()


def modules() -> Iterator[ModuleType]:
    for package in PACKAGES:
        for found in pkgutil.walk_packages(package.__path__, f"{package.__name__}."):
            yield importlib.import_module(found.name)


def sources() -> dict[str, ast.Module]:
    return {
        module.__name__: ast.parse(Path(module.__file__).read_text(encoding="utf-8"))
        for module in modules()
        if module.__file__ is not None
    }


def used_patterns() -> dict[tuple[str, bool], tuple[Pattern, bool]]:
    """Each pattern, and whether it is only ever matched at one place: named ones, and those given to a function."""
    trees = sources()
    methods: dict[str, set[str]] = {}
    inline: list[tuple[Any, bool]] = []
    for tree in trees.values():
        for node in ast.walk(tree):
            if (
                not isinstance(node, ast.Attribute)
                or not isinstance(node.value, ast.Name)
                or node.attr not in FUNCTIONS
            ):
                continue
            methods.setdefault(node.value.id, set()).add(node.attr)
        for call in (node for node in ast.walk(tree) if isinstance(node, ast.Call)):
            function = call.func
            if isinstance(function, ast.Attribute) and isinstance(function.value, ast.Name):
                literal = call.args[0] if call.args else None
                of_re = function.value.id == "re" and function.attr in FUNCTIONS
                if of_re and isinstance(literal, ast.Constant):
                    inline.append((literal.value, function.attr in ANCHORED))
    found = {(text, anchored): (re.compile(text), anchored) for text, anchored in inline}
    for module in modules():
        for name, value in vars(module).items():
            if isinstance(value, re.Pattern):
                anchored = ANCHORED.issuperset(methods.get(name, {"search"}))
                found[value.pattern, anchored] = (value, anchored)
    return found


def parsed(pattern: Pattern) -> Any:
    """A pattern as the module re parses it."""
    return re._parser.parse(pattern.pattern, pattern.flags)  # type: ignore[attr-defined]


def unbounded(part: Any) -> bool:
    """Whether a parsed pattern may match a text of any length; another one takes linear time."""
    return bool(part.getwidth()[1] >= LENGTH)


def character_of(items: Any) -> str:
    """A character of a parsed set."""

    def has(character: str) -> bool:
        inside = False
        for operator, value in items:
            match str(operator):
                case "LITERAL":
                    inside |= ord(character) == value
                case "RANGE":
                    inside |= value[0] <= ord(character) <= value[1]
                case "CATEGORY":
                    kind = {"DIGIT": r"\d", "SPACE": r"\s", "WORD": r"\w"}[str(value).rpartition("_")[2]]
                    inside |= bool(re.match(kind.upper() if "NOT" in str(value) else kind, character))
        return inside != (str(items[0][0]) == "NEGATE")

    return next(filter(has, (*CHARACTERS, *map(chr, range(32, 127)))), "x")


def samples(part: Any) -> Iterator[list[str]]:
    """Texts that the elements of a parsed pattern match one after the other, for each of its branches."""
    found: list[list[str]] = [[]]
    for operator, value in part:
        match str(operator):
            case "LITERAL":
                options = [[chr(value)]]
            case "NOT_LITERAL":
                options = [["a" if value != ord("a") else "b"]]
            case "ANY":
                options = [["a"]]
            case "IN":
                options = [[character_of(value)]]
            case "MAX_REPEAT" | "MIN_REPEAT" | "POSSESSIVE_REPEAT":
                options = [[Repeated("".join(text) * max(1, value[0]))] for text in samples(value[2])]
            case "SUBPATTERN":
                options = list(samples(value[3]))
            case "ATOMIC_GROUP":
                options = list(samples(value))
            case "BRANCH":
                branches = [branch for branch in value[1] if unbounded(branch)] or value[1][:1]
                options = [text for branch in branches for text in samples(branch)]
            case _:  # assertions
                continue
        found = [[*text, *option] for text in found for option in options][:20]
    yield from found


def attacks(pattern: Pattern) -> Iterator[str]:
    """Texts that make a search begin often, or go on for long, and then fail."""
    units: dict[str, None] = {}
    for text in samples(parsed(pattern)):
        for number in range(1, len(text) + 1):
            if any(isinstance(element, Repeated) for element in text[number - 1 : number + 1]) or number == len(text):
                begun = "".join(text[:number])
                units |= dict.fromkeys((begun, f"{begun}-", f"{begun} "))
    for unit in (*units, *" a1-/\n"):
        yield (unit * (LENGTH // len(unit))) + "\0"


def run_limited(call: Callable[[], object], name: str) -> None:
    """Calls; a regular expression, too, is interrupted after the limit, and named."""

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise TimeoutError(f"{name}: not done after {LIMIT_S} s")

    former = signal.signal(signal.SIGVTALRM, interrupt)
    signal.setitimer(signal.ITIMER_VIRTUAL, LIMIT_S)
    try:
        call()
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, former)


@pytest.mark.integration
def test_each_pattern_takes_linear_time_for_its_worst_texts() -> None:
    found = [used for used in used_patterns().values() if unbounded(parsed(used[0]))]
    assert len(found) > 40
    for pattern, anchored in found:
        run_limited(partial(read_attacks, pattern, anchored), repr(pattern.pattern))


def read_attacks(pattern: Pattern, anchored: bool) -> None:
    for text in attacks(pattern):
        given = text.encode() if isinstance(pattern.pattern, bytes) else text
        if anchored:
            pattern.fullmatch(given)
        else:
            list(pattern.finditer(given))


@pytest.mark.parametrize("unit", ["a", "eyJ-", " "])
def test_what_is_checked_of_a_recipe_takes_a_megabyte_of_anything(unit: str) -> None:
    text = unit * (1_000_000 // len(unit))

    def check() -> None:
        value_looks_secret(text)
        masked(text)
        logical_lines(f"x{text}y")
        with suppress(ValueError):
            check_line(f"x{text}y", "pip")

    run_limited(check, repr(unit))
