"""YAML and JSON of users: what Python's readers would drop, or follow without end, is refused with its line."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cluster_configs.rendering.cluster_spec import load_cluster_spec
from trainers.config.loader import read_yaml
from trainers.config.overrides import parse_override
from trainers.config.strict_loading import MAX_BYTES, YamlError, load_json, load_yaml, load_yaml_file
from trainers.config.submitted import read_record
from trainers.errors import ConfigError

BOMB = "a0: &a0 {x: 1}\n" + "".join(f"a{n}: &a{n} [{', '.join(9 * [f'*a{n - 1}'])}]\n" for n in range(1, 12))


@pytest.mark.parametrize(
    ("text", "line", "reason"),
    [
        ("training: {a: 1}\nrun: {}\ntraining: {b: 2}", 3, "duplicate key training in one mapping, in lines 1 and 3"),
        ("run:\n  seed: 1\n  'seed': 2", 3, "duplicate key seed in one mapping, in lines 2 and 3: keep one of them"),
        ("{GPU: 1, GPU: 2}", 1, "duplicate key GPU in one mapping, in line 1"),
        ("base: &b {a: 1}\nown:\n  <<: *b\n  c: 1\n  c: 2", 5, "duplicate key c in one mapping, in lines 4 and 5"),
        ("a: &a [1, *a]", 1, "the alias *a is recursive"),
        ("a: &a {<<: *a}", 1, "the alias *a is recursive"),
        (BOMB, 6, "more than 50000 values, once aliases are expanded"),
        (BOMB.replace("[*", "{<<: [*").replace("]", "]}"), 6, "more than 50000 values"),
        ("[" * 20_000, 1, "more than 60 levels deep"),
        ("a: &a " + 40 * "[" + 40 * "]" + "\nb: " + 40 * "[" + "*a" + 40 * "]", 2, "more than 60 levels deep, once"),
        ("a: 1\nb: c: 2", 2, "mapping values are not allowed here"),
        ("[a]: 1", 1, "unhashable key"),
        ("on: 2026-99-99", None, "month must be in 1..12"),
        ('!!int ""', None, "does not fit its tag"),
        ("!!bool maybe", None, "does not fit its tag"),
        ("a\0", None, "special characters are not allowed"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_cannot_be_meant_is_refused_with_its_line(text: str, line: int | None, reason: str) -> None:
    with pytest.raises(YamlError) as caught:
        load_yaml(text)
    assert reason in caught.value.reason
    assert caught.value.line == line


def test_a_merged_mapping_gives_what_the_own_keys_do_not_name() -> None:
    text = "base: &base {a: 1, b: 2}\nother: &other {b: 5, c: 6}\nown: {<<: [*base, *other], b: 3}\nsame: *base"
    content = load_yaml(text)
    assert content["own"] == {"a": 1, "b": 3, "c": 6}
    assert content["same"] == {"a": 1, "b": 2}


@given(st.text(alphabet="ab:{}[]&*<!- \n'1", max_size=40))
def test_any_text_is_read_or_refused(text: str) -> None:
    try:
        load_yaml(text)
    except YamlError as error:
        assert "\n" not in error.reason


TWICE = "run: {}\nmodel: {}\nrun: {}\n"


def test_the_place_of_a_mistake_is_shown(tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text("run: {name: sr\nmodel:\n  init: scratch\n")
    with pytest.raises(ConfigError) as caught:
        read_yaml(path)
    head, line, mark = str(caught.value).splitlines()
    assert "line 2: expected ',' or '}', but got ':', while parsing a flow mapping" in head
    assert line[mark.index("^")] == ":" and line.strip() == "model:"


@pytest.mark.parametrize("read", [read_yaml, load_cluster_spec])
def test_a_file_of_settings_with_a_key_twice_is_refused(read: Callable[[Path], Any], tmp_path: Path) -> None:
    path = tmp_path / "my.yaml"
    path.write_text(TWICE)
    with pytest.raises(ConfigError) as caught:
        read(path)
    assert f"{path}: cannot be read as YAML: line 3: duplicate key run in one mapping, in lines 1 and 3" in str(
        caught.value
    )


@pytest.mark.parametrize("value", ["{GPU: 1, GPU: 2}", "&a [*a]", "2026-99-99"])
def test_a_value_on_the_command_line_is_read_as_strictly(value: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_override(f"scaling.resources_per_worker={value}")
    assert f"--set scaling.resources_per_worker={value}: the value cannot be read as YAML: " in str(caught.value)


@pytest.mark.parametrize(
    ("content", "reason"),
    [(b"a: \xff", "byte 3 is not UTF-8"), (b"# x\n" * MAX_BYTES, "more than 1048576 bytes")],
    ids=["no text", "too large"],
)
def test_what_is_no_file_of_settings_is_refused_before_it_is_parsed(
    content: bytes, reason: str, tmp_path: Path
) -> None:
    (tmp_path / "my.yaml").write_bytes(content)
    with pytest.raises(YamlError, match=reason):
        load_yaml_file(tmp_path / "my.yaml")


def test_a_record_that_cannot_be_read_is_none(tmp_path: Path) -> None:
    (tmp_path / ".rayscribe").mkdir()
    (tmp_path / ".rayscribe" / "overrides.yaml").write_text("2026-99-99")
    assert read_record(tmp_path) == []


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ('{"a": {"b": 1, "b": 2}}', "duplicate key 'b' in one object"),
        ("[" * 100_000, "nested too deeply"),
        ("{", "Expecting"),
    ],
    ids=["a key twice", "too deep", "no JSON"],
)
def test_json_is_read_as_strictly(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        load_json(text)
