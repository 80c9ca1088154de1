"""A command that is interrupted says how it continues, and leaves no process."""

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

from tests.processes import has_ended
from tests.trainers.test_main import TASK, recipe
from trainers.main import main

__all__ = ["recipe"]


def test_an_interrupted_command_says_how_it_goes_on(
    recipe: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupt(*_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr("trainers.main.run_verb", interrupt)
    assert main(["--config", str(recipe)]) == 130
    assert "the same command continues" in capsys.readouterr().err


def is_process_server(process: psutil.Process) -> bool:
    with contextlib.suppress(psutil.NoSuchProcess):
        return "forkserver" in " ".join(process.cmdline())
    return False


@pytest.mark.integration
def test_a_command_that_is_interrupted_while_it_imports_leaves_no_process(recipe: Path) -> None:
    command = [sys.executable, "-u", str(TASK), "--config", str(recipe)]
    environment = {name: value for name, value in os.environ.items() if not name.startswith("RAY_")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert any(line.startswith("imports:") for line in run.stdout)
        servers = [each for each in psutil.Process(run.pid).children() if is_process_server(each)]
        run.send_signal(signal.SIGINT)
        assert run.wait(120) == 130
        assert [has_ended(server.pid) for server in servers] == [True]
        assert "stopped; the same command continues" in run.stderr.read()
    assert not (recipe.parent / "runs").exists()
