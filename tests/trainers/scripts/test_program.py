"""Real processes, a few tenths of a second each."""

import os
import platform
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import psutil
import pytest

from tests.processes import wait_until_ended
from trainers.errors import ConfigError
from trainers.scripts import program as module
from trainers.scripts.program import Program


def started(tmp_path: Path, code: str) -> tuple[Program, list[str]]:
    lines: list[str] = []
    environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
    return Program([sys.executable, "-c", code], tmp_path, environment, lines.append), lines


def nothing() -> None:
    return


def test_the_exit_code_and_all_output_come_back(tmp_path: Path) -> None:
    program, lines = started(tmp_path, "import sys; print('a'); print('b', file=sys.stderr); sys.exit(7)")
    assert (program.wait(nothing), lines) == (7, ["a", "b"])
    assert list(program.last_lines) == ["a", "b"]


def test_it_runs_in_its_folder_with_nothing_but_its_environment(tmp_path: Path) -> None:
    program, lines = started(tmp_path, "import os; print(os.getcwd()); print(sorted(os.environ)); print(os.getpgid(0))")
    assert program.wait(nothing) == 0
    assert lines[0] == str(tmp_path.resolve()) and "HOME" not in lines[1]
    assert int(lines[2]) != os.getpgid(0)


@pytest.mark.integration
def test_sigterm_reaches_the_program_alone_which_may_save(tmp_path: Path) -> None:
    code = (
        "import signal, subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "def save(*_):\n"
        "    print('child lives', child.poll() is None); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, save); print('ready'); time.sleep(60)\n"
    )
    program, lines = started(tmp_path, code)
    asked: list[bool] = []

    def ask() -> None:
        if lines == ["ready"] and not asked:
            asked.append(True)
            program.terminate()

    assert program.wait(ask) == 3
    assert lines == ["ready", "child lives True"]


@pytest.mark.integration
def test_sigterm_reaches_what_a_shell_runs_and_goes_on_to_run(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(
        "import os, signal, subprocess, sys, time\n"
        "loader = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "def save(*_):\n"
        "    time.sleep(3); print('saved, loader lives', loader.poll() is None); sys.exit(3)\n"
        "signal.signal(signal.SIGTERM, save); print('ready'); time.sleep(60)\n"
    )
    (tmp_path / "score.py").write_text("import time; time.sleep(60); print('scored')")
    script = tmp_path / "run.sh"
    script.write_text(
        "#!/bin/bash\ntrap 'echo exits' EXIT\n"
        f"sh -c '{sys.executable} train.py; echo code $?'\n{sys.executable} score.py\nexit 4\n"
    )
    script.chmod(0o755)
    lines: list[str] = []
    environment = {"PATH": os.environ["PATH"], "PYTHONUNBUFFERED": "1"}
    program = Program(["./run.sh"], tmp_path, environment, lines.append)
    # Between two commands, the shell itself is asked.
    assert program.wait(lambda: program.terminate() if "ready" in lines else None) in (4, -signal.SIGTERM)
    assert lines[:2] == ["ready", "saved, loader lives True"]
    assert lines[-1] == "exits" and "scored" not in lines


def test_a_killed_program_takes_its_children_along(tmp_path: Path) -> None:
    code = (
        "import subprocess, sys, time\n"
        "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
        "print(child.pid); time.sleep(60)\n"
    )
    program, lines = started(tmp_path, code)
    assert program.wait(lambda: program.kill() if lines else None) == -signal.SIGKILL
    wait_until_ended(int(lines[0]))


@pytest.mark.parametrize("is_killed", [False, True])
@pytest.mark.integration
def test_what_has_left_its_session_ends_with_it(tmp_path: Path, is_killed: bool) -> None:
    daemon = (
        "import os, pathlib, subprocess, sys, time\n"
        "own = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'], start_new_session=True)\n"
        "print(os.getpid(), own.pid, flush=True); pathlib.Path('ready').touch(); time.sleep(600)\n"
    )
    # The daemon's parent has ended long before the program has.
    wrapper = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]])"
    code = (
        "import pathlib, subprocess, sys, time\n"
        f"subprocess.run(['setsid', '--fork', sys.executable, '-c', {wrapper!r}, {daemon!r}], check=True)\n"
        f"while {is_killed} or not pathlib.Path('ready').exists(): time.sleep(0.05)\n"
    )
    program, lines = started(tmp_path, code)
    expected = -signal.SIGKILL if is_killed else 0
    assert program.wait(lambda: program.kill() if is_killed and lines else None) == expected
    assert len(lines) == 1
    assert [pid for pid in map(int, lines[0].split()) if psutil.pid_exists(pid)] == []


def test_a_process_that_was_there_before_goes_on(tmp_path: Path) -> None:
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    mine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    program, _ = started(tmp_path, "pass")
    later = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    try:
        assert program.wait(nothing) == 0
        assert [each.poll() for each in (other, mine, later)] == [None, None, None]
    finally:
        for each in (other, mine, later):
            each.kill()
            each.wait()


@pytest.mark.integration
def test_what_others_start_while_it_runs_is_left_to_them(tmp_path: Path) -> None:
    program, lines = started(tmp_path, "import time; print('ready'); time.sleep(1.5)")
    other = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"], start_new_session=True)
    ended = subprocess.Popen([sys.executable, "-c", "raise SystemExit(7)"], start_new_session=True)
    second, _ = started(tmp_path, "pass")
    try:
        # One that runs next to it ends first.
        assert (second.wait(nothing), program.wait(nothing), lines) == (0, 0, ["ready"])
        assert (other.poll(), ended.wait()) == (None, 7)
    finally:
        other.kill()
        other.wait()


def test_what_ends_without_its_parent_is_no_zombie_while_the_program_runs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "REAP_S", 0.0)
    orphan = "import subprocess; print(subprocess.Popen(['sleep', '0.5']).pid, flush=True)"
    code = (
        "import pathlib, subprocess, sys, time\n"
        f"subprocess.run([sys.executable, '-c', {orphan!r}], check=True)\n"
        "while not pathlib.Path('done').exists(): time.sleep(0.05)\n"
    )
    program, lines = started(tmp_path, code)
    end = time.monotonic() + 20

    def each() -> None:
        if time.monotonic() > end or (lines and not psutil.pid_exists(int(lines[0]))):
            (tmp_path / "done").touch()

    assert program.wait(each) == 0
    assert time.monotonic() < end


def test_it_dies_with_the_thread_that_started_it(tmp_path: Path) -> None:
    pids: list[int] = []

    def start() -> None:
        program, _ = started(tmp_path, "import time; time.sleep(60)")
        pids.append(program._process.pid)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    _, status = os.waitpid(pids[0], 0)
    assert os.WTERMSIG(status) == signal.SIGKILL


@pytest.mark.integration
def test_output_that_a_child_holds_open_does_not_delay_the_end(tmp_path: Path) -> None:
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])"
    program, _ = started(tmp_path, code)
    assert program.wait(nothing) == 0


def test_what_it_wrote_last_is_read_however_long_its_lines_take_to_show(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "DRAIN_S", 0.0)
    monkeypatch.setattr(module, "BLOCK_BYTES", 16)
    program, lines = started(tmp_path, "print('x' * 30000); print('why'); import os; os._exit(1)")
    assert program.wait(lambda: time.sleep(0.2)) == 1
    assert lines[-1] == "why"


def test_secrets_of_the_job_are_in_no_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSCRIBE_SECRETS", '{"API_KEY": {"env": "API_KEY"}}')
    monkeypatch.setenv("API_KEY", "swordfish")
    program, lines = started(tmp_path, "print('key: swordfish.')")
    assert program.wait(nothing) == 0
    assert lines == list(program.last_lines) == ["key: ***."]


def test_a_program_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(
        ConfigError, match=rf"script\.command: no-such-program cannot be started on {platform.node()} in"
    ):
        Program(["no-such-program"], tmp_path, {}, print)
