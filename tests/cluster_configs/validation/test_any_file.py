"""Whatever a file holds, checking it ends with a report; where something stands is said by line."""

import random
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_configs.validation import schema_rules
from cluster_configs.validation.shell_commands import ray_starts_in
from cluster_configs.validation.validator import validate
from cluster_configs.validation.yaml_nodes import parse_yaml
from tests.settings import examples

GOOD = sorted((Path(__file__).parent / "good").iterdir())
PIECES = [
    ": ",
    "- ",
    "[",
    "]",
    "{",
    "}",
    "\n",
    "  ",
    "null",
    "7",
    "'",
    '"',
    "*a",
    "&a",
    "!!set",
    "<<",
    "$(",
    "\x00",
    "é",
]


@pytest.fixture(autouse=True, scope="module")
def _without_bash() -> Iterator[None]:
    """A process for each of thousands of files takes minutes."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(schema_rules, "syntax_error", lambda script: None)
        yield


@given(st.binary(max_size=200))
def test_any_bytes_have_a_report(content: bytes) -> None:
    assert validate(content).broken


@pytest.mark.parametrize("path", GOOD, ids=lambda path: path.name)
def test_any_change_of_a_file_has_a_report(path: Path) -> None:
    text, draw = path.read_text(encoding="utf-8"), random.Random(path.name)
    for _ in range(examples(50)):
        begin = draw.randrange(len(text))
        end = min(len(text), begin + draw.choice([0, 1, 5, 40, 400]))
        validate((text[:begin] + draw.choice(PIECES) + text[end:]).encode())


@pytest.mark.parametrize("value", ["null", "7", "[[1]]", "{a: {b: [c]}}", "2026-01-01"])
@pytest.mark.parametrize("path", [path for path in GOOD if path.suffix == ".yaml"], ids=lambda path: path.name)
def test_any_value_at_any_key_has_a_report(path: Path, value: str) -> None:
    lines = path.read_text(encoding="utf-8").splitlines()
    keys = [(number, line.partition(":")[0]) for number, line in enumerate(lines) if ":" in line.partition("#")[0]]
    for number, key in random.Random(f"{path.name} {value}").sample(keys, examples(len(keys))):
        validate("\n".join([*lines[:number], f"{key}: {value}", *lines[number + 1 :]]).encode())


@pytest.mark.integration
def test_deep_and_wide_yaml_ends_soon() -> None:
    for text in ("[" * 20_000, "a: " + "[" * 500 + "]" * 500, "a: &a [*a]", "x: [" + "1, " * 60_000 + "1]"):
        assert [rule for rule, _ in validate(text.encode()).broken] == ["yaml"]


def test_a_broken_rule_is_found_by_its_line() -> None:
    text = GOOD[-1].parent.joinpath("own_hosts.yaml").read_text(encoding="utf-8")
    report = validate(text.replace("=127.0.0.1", "=0.0.0.0").encode())
    found = dict(report.broken)["dashboard-loopback"]
    assert str(found.place) == "line 10, head_start_ray_commands[0]"
    assert text.splitlines()[9].lstrip().startswith("- export")
    assert found.value == "--dashboard-host=0.0.0.0"


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        ("RAY_AUTH_MODE=token ray start --head", "token"),
        ("export RAY_AUTH_MODE='token'; ulimit -n 65536; ray start --head", "token"),
        ("RAY_AUTH_MODE=token; export RAY_AUTH_MODE; ray start", "token"),
        ("RAY_AUTH_MODE=token\nray start", None),
        ("env RAY_AUTH_MODE=token /opt/venv/bin/ray start", "token"),
        ("export RAY_AUTH_MODE=token\nsrun bash -c 'ulimit -n 9; ray start --block'", "token"),
        ("RAY_AUTH_MODE=token echo; ray start", None),
        ("# RAY_AUTH_MODE=token\nray start # export RAY_AUTH_MODE=token", None),
        ('ssh host "RAY_AUTH_MODE=token ray start --address=$HEAD:6379"', "token"),
        ("bash <<'END'\nexport RAY_AUTH_MODE=token\nray start\nEND\n", "token"),
        ("export A=$(date) B=$((1 + 2)) C=${D:-x} RAY_AUTH_MODE=token; ray start", "token"),
        ('export A="$(echo ")" "x)")" RAY_AUTH_MODE=token\nray start --num-cpus=$(nproc)', "token"),
        ("set -a; RAY_AUTH_MODE=token; ray start", "token"),
        ("set -euo pipefail; RAY_AUTH_MODE=token; ray start", None),
        ("export RAY_AUTH_MODE=${RAY_AUTH_MODE:-token}; ray start", "token"),
        ("export RAY_AUTH_MODE=token\nRAY=/opt/venv/bin/ray\n$RAY start", "token"),
        ("export RAY_AUTH_MODE=token; python -m ray.scripts.scripts start", "token"),
        ("RAY_AUTH_MODE=token ray --logging-level info start", "token"),
        ("export RAY_AUTH_MODE=token; x=`ray start`", "token"),
        ("cd x && export RAY_AUTH_MODE=token &&\n ray start", "token"),
        ("(export RAY_AUTH_MODE=token; ray start)", "token"),
        ("declare RAY_AUTH_MODE=token; ray start", None),
        ("if x; then export RAY_AUTH_MODE=token; ray start; fi", "token"),
    ],
)
def test_whether_a_variable_was_exported_before_a_start(text: str, mode: str | None) -> None:
    assert [start.environment.get("RAY_AUTH_MODE") for start in ray_starts_in(text, {})] == [mode]


def test_options_are_read_as_the_shell_passes_them() -> None:
    text = "ray start --head \\\n  --dashboard-host '::' --num-cpus=4 \\\n --block && ray status"
    (start,) = ray_starts_in(text, {})
    assert start.options == {"--head": "true", "--dashboard-host": "::", "--num-cpus": "4", "--block": "true"}
    (joint,) = ray_starts_in('srun ray symmetric-run --address "$h:1" --num-gpus 4 -- python --head x.py &', {})
    assert joint.options == {"--address": "$h:1", "--num-gpus": "4"}


def test_values_keep_what_the_shell_is_to_compute() -> None:
    text = "V=/opt/x; export PATH=$V/bin:$PATH D=$(cut -d ' ' -f 1 x) J='{\"a\": 1}'; ray start --head; x --port=1"
    (start,) = ray_starts_in(text, {"A": "b"})
    assert start.environment == {"A": "b", "PATH": "/opt/x/bin:$PATH", "D": "$(cut -d ' ' -f 1 x)", "J": '{"a": 1}'}
    assert start.options == {"--head": "true"}


@pytest.mark.parametrize("text", ["ray --x ", "$((", "a=$(b ", "A=$A$A ray start; ", "ray start --a\n", "export A="])
def test_calls_in_a_long_file_are_found_soon(text: str) -> None:
    assert len([*ray_starts_in(text * 10_000, {})]) in (0, 10_000)


@given(st.text(alphabet="a$(){}`'\"\\\n ;|&<>=#", max_size=60))
def test_calls_are_looked_for_in_any_text(text: str) -> None:
    [*ray_starts_in(text, {})]


def test_merged_and_repeated_yaml_is_read() -> None:
    (document,) = parse_yaml("base: &base {a: 1, b: 2}\nown:\n  <<: *base\n  b: 3\n---\n")
    assert document.get("own").value == {"a": 1, "b": 3}
    assert (document.get("own", "b").place.line, document.get("own", "b").place.path) == (4, "own.b")
    assert (document.get("own", "c", "d").present, document.get("own", "c", "d").place.path) == (False, "own.c.d")
