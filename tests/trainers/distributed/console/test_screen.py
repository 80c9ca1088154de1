"""The screen of a process: in a terminal, a pipe and for a program; and what it shows first."""

import json
import os
import pty
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainers.distributed.console import opened_screen, print_line, show
from trainers.distributed.console.events import Finished, Logged, Stage

REPOSITORY = Path(__file__).parents[4]
SCRIPT = """
import sys
from trainers.distributed.console import opened_for, print_line, show
from trainers.distributed.console.events import Finished, Stage, Stepped

with opened_for(sys.argv[1:]):
    show(Stage("Ray", "starting on this machine"))
    show(Stage("Ray", "starting on this machine", is_told=False))
    print("of a library")
    show("warning: odd")
    show(Stage("train", "training", is_told=False))
    show(Finished("WER 4%", "/runs"))
    print_line("error: wrong", sys.stderr)
"""
# What loads for long, or what loads that.
SLOW = ("typer", "rich", "pydantic", "yaml", "ray", "torch", "numpy", "trainers.main", "jobs.cli.app")


def run(*arguments: str, script: str = SCRIPT) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=120)


def test_a_pipe_gets_lines() -> None:
    ended = run("recipe.yaml")
    assert [re.sub(r"\d+\.\d s", "0.0 s", line) for line in ended.stdout.splitlines()] == [
        "start: reading the recipe · after 0.0 s",
        "Ray: starting on this machine · after 0.0 s",
        "of a library",
        "warning: odd",
        "time: start 0.0 s · Ray 0.0 s · train 0.0 s, together 0 s",
        "WER 4%",
    ]
    assert ended.stderr == "error: wrong\n"


def test_a_program_gets_nothing_but_json() -> None:
    ended = run("recipe.yaml", "--json")
    events = [json.loads(line) for line in ended.stdout.splitlines()]
    assert [event["event"] for event in events] == ["stage", "stage", "line", "stage", "finished", "error"]
    assert all(list(event)[:2] == ["event", "after_s"] for event in events)
    finished = {"event": "finished", "after_s": events[-2]["after_s"], "text": "WER 4%", "folder": "/runs"}
    assert events[-2] == {**finished, "verdicts": {}}
    assert ended.stderr == "of a library\nerror: wrong\n"


def test_a_number_that_is_not_finite_is_null_for_programs(capsys: pytest.CaptureFixture[str]) -> None:
    with opened_screen(as_json=True):
        show(Logged(1, 2, 0.5, float("nan"), 1.0, 2.0, 3.0, {"matching": float("inf")}))
    event = json.loads(capsys.readouterr().out)
    assert (event["loss"], event["further"]) == (None, {"matching": None})


def test_a_terminal_gets_a_view_that_is_gone_at_the_end() -> None:
    child, terminal = pty.fork()
    if child == 0:
        os.chdir(REPOSITORY)
        os.execve(sys.executable, [sys.executable, "-c", SCRIPT, "recipe.yaml"], {**os.environ, "TERM": "xterm"})
    output = b"".join(read_all(terminal)).decode()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    lines = [re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", line).strip() for line in re.split(r"[\r\n]+", output)]
    for line in ("of a library", "warning: odd", "WER 4%", "error: wrong"):
        assert line in lines
    assert any(re.fullmatch(r"✓ Ray: starting on this machine · \d+\.\d s", line) for line in lines)
    assert output.endswith("\x1b[?25h") or "\x1b[?25h" in output[-20:], "the cursor is shown again"


def read_all(terminal: int) -> Iterator[bytes]:
    while True:
        try:
            block = os.read(terminal, 1 << 16)
        except OSError:  # the end of a terminal whose process has ended
            return
        if not block:
            return
        yield block


@pytest.mark.parametrize(
    "command",
    [
        "from jobs.cli import main; main(['train', 'recipe.yaml'])",
        "import rayscribe; sys.argv = ['rayscribe', 'train', 'recipe.yaml']; rayscribe.main()",
        "import runpy; runpy.run_path('task.py', run_name='__main__')",
    ],
    ids=["rayscribe", "installed", "task.py"],
)
def test_the_first_line_comes_before_anything_slow_is_imported(command: str) -> None:
    blocked = f"import sys; sys.modules |= dict.fromkeys({SLOW!r}); "
    ended = run("recipe.yaml", script=blocked + command)
    assert "ImportError" in ended.stderr or "ModuleNotFoundError" in ended.stderr
    assert ended.stdout.startswith("start: reading the recipe · after 0.")


@pytest.mark.parametrize("words", ["'train', '--help'", "'list'", "'submit', 'recipe.yaml'"])
def test_help_and_what_prints_for_others_has_no_such_line_on_standard_output(words: str) -> None:
    blocked = f"import sys; sys.modules |= dict.fromkeys({SLOW!r}); "
    assert run(script=f"{blocked}from jobs.cli import main; main([{words}])").stdout == ""


def test_without_a_screen_events_are_lines_and_on_further_ranks_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    show(Stage("Ray", "starting"))
    show(Finished("WER 4%", "/runs"))
    monkeypatch.setenv("RANK", "1")
    with opened_screen():
        show("twice")
        print_line("twice", sys.stderr)
    assert capsys.readouterr() == ("WER 4%\n", "")


def test_a_command_goes_on_when_nobody_reads_its_output_any_more(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    reader, writer = os.pipe()
    with os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stdout", pipe)
        with opened_screen():
            show("read")
            assert os.read(reader, 100) == b"read\n"
            os.close(reader)
            show("not read")
            print("of a library", flush=True)
            show(Finished("WER 4%", "/runs"))
    assert capsys.readouterr().err == "nobody reads the output any more: the command continues without it\n"


def test_a_command_goes_on_when_its_terminal_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, its = pty.openpty()
    with os.fdopen(its, "w") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        monkeypatch.setattr(sys, "stderr", terminal)
        with opened_screen():
            show("read")
            os.close(ours)
            show("not read")
            print_line("error: not read", sys.stderr)
