"""A line as text becomes the words that a shell makes of it; what only a shell could do is refused."""

import re
import shlex
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.settings import examples
from trainers.errors import ConfigError
from trainers.scripts.launchers.line_words import split_line

ENVIRONMENT = {"HOME": "/home/me", "DATA": "/speech", "EXTRA": " --a  1 ", "EMPTY": "", "TWO": "x y"}
README = r"""
# on 8 GPUs: don't start it twice
torchrun --nproc_per_node 8 run_speech_recognition_ctc.py \
	--dataset_name="mozilla-foundation/common_voice_17_0" \
	--chars_to_ignore , ? . ! - \; \: \" “ % ‘ ” � \
	--do_train   # and score
"""
SHOW = """show() { for each in "$@"; do printf %s "$each" | od -An -v -tx1 | tr -d ' \\n'; echo; done; }"""
LINES = (
    *("a b", "a\\\nb", "a \\\n  b", "'a b'c\"d e\"", "a'$DATA'b", '"$DATA/x"', "$DATA/x", "${DATA}x", "a$DATA"),
    *('"a\\"b\\\\c\\d\\$e"', r"a\ b \; \$x", "~/x ~", "a~ a=~/x", "a#b # c", "a '#' b", "'' \"\" a", "A=1 b"),
    *("p $EXTRA q", "p$EXTRA", 'p "$EXTRA"', "$EMPTY a", '"$EMPTY" a', "a$EMPTY", "$TWO$TWO", "a $ b", "a\n# c\n\n"),
    *('"a\\\nb"', "# a\nb", "x # don't\n", '"#" \'"\'', "'a\nb'", "a\tb"),
)


@pytest.mark.parametrize("text", [*LINES, README], ids=repr)
def test_words_are_those_of_a_shell(text: str) -> None:
    # Each argument on a line of its own, as hexadecimal; comments in front would hide the command that shows them.
    line = re.sub(r"\A(\s*#[^\n]*\n)+", "", text).lstrip()
    shell = f"{SHOW}\nshow {line}"
    answer = subprocess.run(
        ["bash", "-f", "-c", shell],
        env={**ENVIRONMENT, "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=True,
    )
    expected = [bytes.fromhex(line).decode() for line in answer.stdout.splitlines()]
    assert split_line(text, ENVIRONMENT) == expected


def test_a_line_of_a_readme_is_one_line() -> None:
    words = split_line(README, {})
    assert words[:4] == ["torchrun", "--nproc_per_node", "8", "run_speech_recognition_ctc.py"]
    assert words[words.index("--chars_to_ignore") + 1 :] == [*',?.!-;:"“%‘”�', "--do_train"]


def test_lines_may_end_as_on_windows() -> None:
    assert split_line("a \\\r\n b\r\n", {}) == ["a", "b"]


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("a | tee log", "|: a pipe; the output is in the logs of the run"),
        ("cd x && a", "&&: one line starts one training"),
        ("a || b", "||: one line"),
        ("a; b", ";: one line"),
        ("a &", "&: a run is in the background anyway"),
        ("(a)", "(: one line"),
        ("a > log", ">: a redirection"),
        ("a 2>&1", ">&: a redirection"),
        ("a &> log", "&>: a redirection"),
        ("a < in", "<: a run has no input"),
        ("a $(date)", "$(: no other command is run for it"),
        ('a "$(date)"', "$(: no other command"),
        ("a `date`", "`: no other command"),
        ("a <(b)", "<(: no other command"),
        ("a $'x'", "$': write the characters between plain quotes"),
        ("a $DTA", "$DTA: the variable is not set here: export it, or write its value"),
        ('a "${DTA}"', "${DTA}: the variable is not set"),
        ("a ${DATA:-x}", "${DATA:-x}: only $NAME and ${NAME} are known here"),
        ("a $1 $@", "$@: only $NAME"),
        ("a\nb", "a second line"),
        ("a 'b", "': the quote does not end"),
        ('a "b', '": the quote does not end'),
    ],
)
def test_what_only_a_shell_could_do_is_refused_by_name(text: str, problem: str) -> None:
    with pytest.raises(ConfigError) as caught:
        split_line(text, ENVIRONMENT)
    assert problem in str(caught.value)


def test_all_that_is_refused_is_named_at_once() -> None:
    with pytest.raises(ConfigError) as caught:
        split_line("a $X $Y | b", {})
    assert len(str(caught.value).splitlines()) == 3


@settings(max_examples=examples(300), deadline=None)
@given(st.lists(st.text(st.characters(exclude_characters="\0\r", exclude_categories=["Cs"]))))
def test_quoted_words_come_back(words: list[str]) -> None:
    assert split_line(shlex.join(words), {}) == words
