"""One list of checks: each is written once, stands in one list, and is made at the first moment that can know it."""

import ast
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from jobs.preflight import client_checks
from trainers.config.validation import Problems
from trainers.errors import ConfigError, DataError, NotHereError, RayscribeError, StorageError
from trainers.findings import Check, Finding, Moment, Need, ok, problem, run_check, unread
from trainers.findings import check as made_check
from trainers.inspection import data_checks, machine_checks, model_checks, node_checks

ROOT = Path(__file__).parents[1]
PRODUCT = ("jobs", "trainers", "runtime_env")
MODULES = (client_checks, machine_checks, data_checks, model_checks, node_checks)
CHECKS: Mapping[Moment, Sequence[Check[Any]]] = {
    Moment.CLIENT: [*client_checks.OF_PACKAGE, *client_checks.OF_CLUSTER],
    Moment.INSPECTION: [
        *machine_checks.STORAGE,
        *data_checks.CHECKS,
        *model_checks.CHECKS,
        *machine_checks.HARDWARE,
    ],
    Moment.NODES: node_checks.CHECKS,
}


def test_each_check_stands_once_in_one_list() -> None:
    names = [check.name for checks in CHECKS.values() for check in checks]
    assert sorted(names) == sorted(set(names))
    # Of a program there is no inspection, whose check it stands for.
    assert {check.name for check in client_checks.OF_PROGRAMS} == {"storage"}
    listed = {id(check) for checks in CHECKS.values() for check in checks}
    written = {name: each for module in MODULES for name, each in vars(module).items() if isinstance(each, Check)}
    assert [name for name, check in written.items() if id(check) not in listed] == []


def test_each_check_is_made_at_the_first_moment_that_has_what_it_needs() -> None:
    late = [
        (check.name, check.moment) for moment, checks in CHECKS.items() for check in checks if check.moment != moment
    ]
    assert late == []
    assert {check.moment for check in client_checks.OF_PROGRAMS} == {Moment.CLIENT}


def texts_of(path: Path) -> Iterator[str]:
    """Yields the strings of a file that have four words or more, except docstrings."""
    nodes = [*ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    docstrings = {id(node.value) for node in nodes if isinstance(node, ast.Expr)}
    for node in nodes:
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            text = node.value.strip(" :;,.?()")
            if len(text.split()) >= 4:
                yield text


def test_what_a_check_tells_is_written_in_one_file() -> None:
    files = defaultdict(set)
    for path in [ROOT / "task.py", *(path for name in PRODUCT for path in (ROOT / name).rglob("*.py"))]:
        for text in texts_of(path):
            files[text].add(path.relative_to(ROOT).as_posix())
    told = {text for module in MODULES for text in texts_of(Path(str(module.__file__)))}
    assert len(told) > 100
    assert {text: sorted(files[text]) for text in told if len(files[text]) > 1} == {}


class Elsewhere:
    """A subject whose job runs on other machines."""

    elsewhere = True


@pytest.mark.parametrize(
    ("error", "level"), [(StorageError("no bucket"), "skipped"), (ConfigError("a wrong value"), "error")]
)
def test_what_could_not_be_read_here_is_no_error_of_other_machines(error: RayscribeError, level: str) -> None:
    @made_check(Need(Moment.INSPECTION, lambda _: None))
    def check_it(_: Elsewhere) -> Iterator[Finding]:
        yield from (ok("fine"), problem("wrong everywhere"), unread("not here"))
        raise error

    found = [*run_check(check_it, Elsewhere())]
    assert [each.check for each in found] == ["it"] * 4
    assert [each.level for each in found] == ["ok", "error", "skipped", level]
    assert found[2].text == "not here (the nodes may reach it)"


def test_what_the_client_cannot_read_is_an_error_for_other_machines_too() -> None:
    @made_check(Need(Moment.CLIENT, lambda _: None))
    def check_it(_: Elsewhere) -> Iterator[Finding]:
        raise NotHereError("gone.csv: no such file")

    assert [each.level for each in run_check(check_it, Elsewhere())] == ["error"]


class TestProblems:
    def raised(self, *errors: RayscribeError) -> RayscribeError:
        problems = Problems()
        for error in errors:
            with problems:
                raise error
        with pytest.raises(RayscribeError) as caught:
            problems.refuse("mine")
        return caught.value

    def test_one_is_raised_as_it_is(self) -> None:
        error = DataError("no rows")
        assert self.raised(error) is error

    @pytest.mark.parametrize(
        ("errors", "kind"),
        [
            ((StorageError("a"), DataError("b")), StorageError),
            ((DataError("a"), ConfigError("b")), ConfigError),
            ((ConfigError("a"), StorageError("b")), StorageError),
        ],
    )
    def test_several_are_one_message(self, errors: tuple[RayscribeError, ...], kind: type[RayscribeError]) -> None:
        error = self.raised(*errors)
        assert type(error) is kind
        assert str(error) == "mine: 2 problems\n  - a\n  - b"

    def test_none_and_errors_of_others_pass(self) -> None:
        problems = Problems()
        problems.refuse("mine")
        with pytest.raises(TypeError), problems:
            raise TypeError
