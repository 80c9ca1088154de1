"""What is laid out for a person is read back as it was."""

from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from cluster_configs.rendering.commented_yaml import to_commented_yaml

KEYS = st.text(min_size=1, max_size=20)
TEXTS = st.one_of(
    st.text(max_size=300),
    st.text(st.sampled_from(" \t\n\\'\"#:-,[]{}&*!|>%@`~=?ab1.\x07\x7f\x85\u2028\ufeff\U0001f600"), max_size=300),
    st.lists(st.text("ab:#'\"\\\t ", min_size=1, max_size=20), max_size=30).map(" ".join),
    st.from_regex(r"\A[0-9:.eE+_-]{1,12}\Z"),
)
SCALARS = st.one_of(TEXTS, st.booleans(), st.integers(), st.none(), st.floats(allow_nan=False))
VALUES = st.recursive(
    SCALARS, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(KEYS, inner, max_size=4), max_leaves=8
)


@settings(deadline=None)
@given(st.dictionaries(KEYS, VALUES, min_size=1, max_size=4))
@pytest.mark.integration
def test_any_document_is_read_back(content: dict[str, Any]) -> None:
    assert yaml.safe_load(to_commented_yaml(content, {})) == content


@pytest.mark.parametrize(
    "command",
    [
        "printf 'a\tb'",
        f"echo {'x' * 60}  {'y' * 60}",
        "echo '2001-99-99'",
        "2001-99-99",
        " a\nb",
        "a\n\n",
        "a \nb",
        "\x85",
    ],
)
def test_a_command_stays_the_same(command: str) -> None:
    assert yaml.safe_load(to_commented_yaml({"setup": [command]}, {})) == {"setup": [command]}


@pytest.mark.parametrize(
    "text", ["y", "N", "1e-5", "12e45", "1_0e3", "0o17", "+0x1F", "0b1_0", ".5e1", "1.e+3", "-2e9", "6E7"]
)
def test_what_go_reads_as_another_type_is_quoted(text: str) -> None:
    written = to_commented_yaml({"value": text, text: [text]}, {})
    assert written.count(f"'{text}'") == 3
    assert yaml.safe_load(written) == {"value": text, text: [text]}


@pytest.mark.parametrize("text", ["yy", "1e", "e5", "v1e5", "1.2.3", "0o8x", "a_1e5", "10.0.0.1"])
def test_other_words_need_no_quotes(text: str) -> None:
    assert to_commented_yaml({"value": text}, {}) == f"value: {text}\n"
