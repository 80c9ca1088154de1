"""What a page shows of a command is compared by its shape."""

import pytest

from tests.docs.console_blocks import Step, found_in, shape_of, steps_of

PAGE = "```console\n$ rayscribe list\nRUN  STATE\n…\n$ ls\n```\ntext\n```console\n$ pwd\n```\n"


def test_commands_have_the_lines_after_them() -> None:
    assert [*steps_of(PAGE)] == [Step("rayscribe list", ("RUN  STATE", "…")), Step("ls", ()), Step("pwd", ())]


def test_a_shape_has_no_numbers_times_or_widths() -> None:
    one = "step 300/1500 · validation WER 62.24% · 2 min 3 s · checkpoint-10-a1-3f9c2e7b"
    other = "step 600/900 · validation WER 4.1% · 9 s · checkpoint-6-a1-001122aa"
    assert shape_of(one) == shape_of(other) != shape_of(one.replace("WER", "CER"))
    assert shape_of("a   b") == shape_of("a b")


def test_lines_are_found_in_their_order_among_others() -> None:
    printed = ["start", "step 2", "other", "step 4", "end"]
    assert found_in(["step 1", "…", "end"], printed) == ["step 2", "…", "end"]
    assert found_in([], printed) == printed
    for shown in (["end", "step 1"], ["stop"], ["step 1"] * 3):
        with pytest.raises(AssertionError, match="not printed"):
            found_in(shown, printed)
