"""The `rayscribe` command: its help, output, errors and exit codes."""

import errno
import io
import json
import os
import re
import shlex
import socket
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.main import get_command
from typer.testing import CliRunner, Result

from jobs.cli import submit
from jobs.cli.app import app, main
from jobs.cli.serve import growth_of
from jobs.cli.train import model_of
from jobs.clusters.managed import cluster_record
from jobs.clusters.managed.cluster_record import LocalRecord
from jobs.errors import ConflictError
from jobs.ledger import Ledger
from jobs.model import Attempt, Event, Run, RunState
from jobs.service import standalone
from tests.jobs.sample import CONTENT, sample_run
from tests.jobs.service.direct.registry import register, train
from trainers.distributed.machine import process_name
from trainers.errors import ConfigError, StorageError

REPOSITORY = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-c", "import sys; from jobs.cli import main; sys.exit(main())"]
GROUP = get_command(app)
# Those of groups as `cluster up`.
COMMANDS = sorted(
    f"{name} {inner}".strip()
    for name, command in GROUP.commands.items()  # type: ignore[attr-defined]
    for inner in getattr(command, "commands", [""])
)


@pytest.fixture
def ledger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Ledger:
    """The ledger of a user who has a run in the queue and one that ended."""
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    for name in ("RAYSCRIBE_SERVICE", "RAYSCRIBE_DATABASE", "RAY_API_SERVER_ADDRESS"):
        monkeypatch.delenv(name, raising=False)
    ledger = Ledger.open(f"sqlite:///{tmp_path / 'home/ledger.db'}")
    # No server listens there.
    ledger.requests.add_run(sample_run(address="http://127.0.0.1:9", tags=["serbian"]), text="submitted by ana")
    ended = ledger.requests.add_run(
        sample_run(id="old", uid="1" * 32, address="http://127.0.0.1:9"), text="submitted by ana"
    )
    ledger.requests.request_stop(ended.id, by="ana", at_s=2000.0)
    return ledger


def run(*arguments: str) -> Result:
    """Runs a command in this process."""
    return CliRunner().invoke(app, list(arguments))


def run_failing(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str]:
    """Runs a command that fails, and gives its exit code and its one message."""
    code = main(arguments)
    return code, capsys.readouterr().err


@pytest.mark.parametrize("name", COMMANDS)
def test_each_command_s_help_says_what_it_does_and_has_an_example(name: str) -> None:
    result = run(*name.split(), "--help")
    assert result.exit_code == 0
    assert not re.search(r"\S +Example:", result.output), "an example begins in the middle of a line"
    text = " ".join(result.output.split())
    assert f"Example: rayscribe {name}" in text
    example = text.split("Example:")[1].split("Arguments:")[0].split("Options:")[0]
    # What follows on -- is another program's.
    for option in re.findall(r"--[a-z][a-z-]+", example.partition(" -- ")[0]):
        assert text.count(option) > 1, f"the example's {option} is an option"


def test_the_list_of_commands_cuts_nothing() -> None:
    result = CliRunner().invoke(app, ["--help"], terminal_width=80)
    assert "serve  " in result.output
    assert "..." not in result.output.split("Commands:")[1]


@pytest.mark.integration
def test_a_list_has_a_line_for_each_run_with_its_reason(ledger: Ledger) -> None:
    lines = run("list").output.splitlines()
    assert lines[0].split() == ["RUN", "STATE", "QUEUE", "PRIORITY", "USER", "AGE", "WER", "REASON"]
    assert any("position 1 in queue default · waits for the cluster at http://127.0.0.1:9" in line for line in lines)
    assert any(line.startswith("old") and "STOPPED" in line for line in lines)
    assert "old" not in run("list", "--state", "queued").output
    assert "old" not in run("list", "--tag", "serbian").output


@pytest.mark.integration
def test_a_list_has_the_runs_without_a_queue_too(ledger: Ledger, tmp_path: Path) -> None:
    now_s = time.time()
    known = register(tmp_path, "by-hand", created_s=now_s - 9000, started_s=now_s - 60, ended_s=now_s, exit_code=130)
    train(known, tmp_path, wer=12.5)
    first, *_ = run("list").output.splitlines()[1:]
    name, state, queue, priority, _, *age, wer = first.split()[:10]
    assert (name, state, queue, priority, wer) == ("by-hand", "STOPPED", "-", "-", "12.50%")
    assert age[:2] == ["2", "h"], "since it was first started"
    shown = run("status", "by-hand").output
    assert "  started    " in shown and f"  gang       1 worker, 1 CPU in total\n  run folder {known.url}\n" in shown
    printed = run("logs", "by-hand").output
    assert printed.startswith("by-hand was started without a queue: its output is only in its terminal, unless")
    assert run("wait", known.url).exit_code == 130
    assert run("forget", "by-hand").output == f"forgotten: {known.url}\n"
    assert "by-hand" not in run("list").output


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("status ", ["by-hand", "sr", "old"]),
        ("evaluate x.yaml --model s", ["sr"]),
        ("train x.yaml --set training.max_s", ["training.max_steps="]),
        ("submit x.yaml --set job.runtime_env.p", ["job.runtime_env.pip="]),
        ("train jobs/specs/whisper_m", ["jobs/specs/whisper_micro.yaml"]),
        ("submit x.yaml --cluster m", ["mine"]),
    ],
)
def test_a_shell_completes_runs_keys_recipes_and_clusters(
    ledger: Ledger, tmp_path: Path, line: str, expected: list[str]
) -> None:
    register(tmp_path, "by-hand")
    LocalRecord(name="mine", created_s=1.0).write()
    words = f"rayscribe {line}"
    variables = {"_RAYSCRIBE_COMPLETE": "complete_bash", "COMP_WORDS": words, "COMP_CWORD": str(words.count(" "))}
    shown = CliRunner().invoke(app, [], prog_name="rayscribe", env=variables).output.split()
    assert shown == expected


def test_an_unknown_run_to_score_is_found_before_ray_starts(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    code, message = run_failing(capsys, "evaluate", "jobs/specs/whisper_micro.yaml", "--model", "olt")
    assert code == 21
    assert message.startswith("error: --model olt: no run is named olt: did you mean old?")
    code, message = run_failing(capsys, "evaluate", "jobs/specs/whisper_micro.yaml", "--model", str(tmp_path))
    assert code == ConfigError.exit_code
    assert message.endswith("give a run folder, or a folder with a model\n")


def test_a_name_that_is_taken_is_told_before_anything_is_checked(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def check(*_: object, **__: object) -> None:
        raise AssertionError("it was checked")

    monkeypatch.setattr(submit, "_preflight", check)
    recipe = ("jobs/specs/whisper_micro.yaml", "--address", "http://127.0.0.1:1", "--set", "run.name=old")
    code, message = run_failing(capsys, "submit", *recipe)
    assert code == ConflictError.exit_code
    assert message == "error: run old exists already, STOPPED: continue it (`rayscribe resume old`), or " + (
        "use another name (--set run.name=…)\n"
    )


def test_a_run_that_failed_before_it_had_a_folder_is_said_to_have_no_model(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    known = register(tmp_path, "speech", ended_s=1100.0, exit_code=3, reason="data.train: /x.csv: no such file")
    code, message = run_failing(capsys, "evaluate", "jobs/specs/whisper_micro.yaml", "--model", "speech")
    assert (code, message) == (
        ConflictError.exit_code,
        "error: --model speech: the run ended before it had a model: FAILED · data.train: /x.csv: no such file\n",
    )
    assert f"  run folder {known.url}, which does not exist\n" in run("status", "speech").output


def test_an_attempt_without_a_queue_is_no_job_of_ray(ledger: Ledger, tmp_path: Path) -> None:
    train(register(tmp_path, process=process_name()), tmp_path)
    assert "  attempt 1: running, " in run("status", f"{tmp_path}/sr").output


def test_a_run_comes_before_the_recordings_of_its_name(
    ledger: Ledger, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    known, here = register(tmp_path, "speech"), tmp_path / "here"
    train(known, tmp_path)
    here.mkdir()
    monkeypatch.chdir(here)
    Path("speech").mkdir()
    assert model_of("speech", None) == known.url
    Path("speech", "model").mkdir()
    assert model_of("speech", None) == "speech", "what holds a model is one"
    Path("other").mkdir()
    assert model_of("other", None) == "other", "whose message says what it lacks"


def test_a_list_does_not_wait_for_a_cluster_that_hangs(
    ledger: Ledger, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(standalone, "REFRESH_TIMEOUT_S", 0.3)
    monkeypatch.setattr(standalone, "CAPACITY_TIMEOUT_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        address = f"http://127.0.0.1:{silent.getsockname()[1]}"
        ledger.requests.add_run(sample_run(id="hangs", uid="2" * 32, address=address), text="submitted by ana")
        assert main(["list"]) == 0
        shown = capsys.readouterr()
    assert "a cluster or a storage does not respond; showing the last known state" in shown.err
    assert any(line.startswith("hangs") and "QUEUED" in line for line in shown.out.splitlines())


def test_json_has_the_fields_of_the_models(ledger: Ledger) -> None:
    page = json.loads(run("list", "--json").output)
    assert set(page) == {"runs", "next_cursor"}
    assert {item["id"] for item in page["runs"]} == {"sr", "old"}
    assert Run.model_validate(page["runs"][0])
    status: dict[str, Any] = json.loads(run("status", "old", "--json").output)
    assert set(status) == {"run", "attempts"}
    assert Run.model_validate(status["run"]).state == RunState.STOPPED
    assert [Attempt.model_validate(item) for item in status["attempts"]] == []
    events = [Event.model_validate(item) for item in json.loads(run("events", "old", "--json").output)]
    assert [event.cause for event in events] == ["submitted", "stop_requested"]
    assert json.loads(run("usage", "--json").output) == []


def test_a_waiting_run_is_stopped_at_once_and_its_exit_code_comes_through_wait(ledger: Ledger) -> None:
    result = run("stop", "sr")
    assert result.exit_code == 0
    assert result.output.startswith("sr: STOPPED · stopped by ")
    assert run("stop", "sr").output.startswith("sr: has already ended")
    assert run("wait", "sr").exit_code == 143


def test_a_stopped_run_is_queued_again(ledger: Ledger, monkeypatch: pytest.MonkeyPatch) -> None:
    ledger.requests.reopen("old", by="ana", at_s=3000.0)
    assert ledger.run("old").state == RunState.QUEUED
    assert run("events", "old").output.splitlines()[-1].endswith("STOPPED → QUEUED                      ana resumed it")


@pytest.mark.parametrize(
    ("arguments", "code", "expected"),
    [
        (["status", "srr"], 21, "no run is named srr: did you mean sr?"),
        (["status", "o"], 21, "no run is named o: did you mean old?"),
        (["status", "nothing-like-it"], 21, "no run is named nothing-like-it: `rayscribe list` shows all"),
        (["logs", "old"], 22, "old has no attempt yet"),
        (["resume", "sr"], 22, "stop it first: `rayscribe stop sr`"),
        (["train", "my.yaml", "training.max_steps=10"], 2, "an override is written --set training.max_steps=10"),
        (["submit", "nowhere.yaml"], 2, "nowhere.yaml: no such file; name a recipe"),
        (["list", "--cursor", "nonsense"], 2, "cursor"),
        (["list", "--service", "http://127.0.0.1:9"], 24, "http://127.0.0.1:9"),
        (["serve", "--host", "0.0.0.0", "--no-auth"], 2, "--no-auth"),
        (["serve", "--grows-to", "GPU"], 2, "--grows-to GPU: write it as NAME=NUMBER"),
        (["serve", "--grows-to", "GPU=nan"], 2, "--grows-to GPU=nan: write it as NAME=NUMBER"),
        (["serve", "--grows-to", "GPU=8@http://b:1"], 2, "http://b:1 is not one of the clusters"),
        (["token", "revoke", "nobody"], 21, "nobody"),
    ],
)
@pytest.mark.integration
def test_errors_name_the_thing_and_the_fix_and_have_their_own_exit_code(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, expected: str
) -> None:
    given, message = run_failing(capsys, *arguments)
    assert (given, message.startswith("error: ")) == (code, True), message
    assert expected in message
    assert "Traceback" not in message


def test_a_missing_cluster_is_reported_before_any_request(
    ledger: Ledger, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = tmp_path / "sr.yaml"
    recipe.write_text(yaml.safe_dump(CONTENT | {"run": {"name": "new", "storage_path": str(tmp_path / "runs")}}))
    monkeypatch.chdir(tmp_path)
    code, message = run_failing(capsys, "submit", str(recipe), "--no-preflight")
    assert (code, "no Ray cluster is named: give --address" in message) == (2, True)
    assert {item.id for item in ledger.runs().runs} == {"sr", "old"}


@pytest.mark.integration
def test_the_shell_completes_commands_and_states() -> None:
    environment = {
        **os.environ,
        "_RAYSCRIBE_COMPLETE": "complete_bash",
        "COMP_WORDS": "rayscribe st",
        "COMP_CWORD": "1",
    }
    result = subprocess.run(COMMAND, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
    assert set(result.stdout.split()) == {"status", "stop"}
    # Which shell it is, is seen by the parents of the process; the command after it keeps this one there.
    script = f"{shlex.join(COMMAND)} --show-completion; exit $?"
    shown = subprocess.run(["bash", "-c", script], cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert shown.returncode == 0, shown.stderr
    assert "_RAYSCRIBE_COMPLETE=complete_bash" in shown.stdout


def test_growth_is_each_cluster_s_own() -> None:
    clusters = ["http://a:8265", "http://b:8265/"]
    assert growth_of(["GPU=16", "CPU=64", "GPU=8@http://b:8265"], clusters) == {
        "http://a:8265": {"GPU": 16.0, "CPU": 64.0},
        "http://b:8265": {"GPU": 8.0},
    }


def test_clusters_are_shown_as_json(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    LocalRecord(name="gone", created_s=1.0, folder=tmp_path / "none").write()
    shown = json.loads(run("cluster", "status", "--json").stdout)
    assert [(item["name"], item["state"], item["nodes"]) for item in shown] == [("gone", "ended", None)]


def test_a_full_disk_of_the_client_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Each write to this device fails as on a full disk.
    with Path("/dev/full").open("w") as full:
        monkeypatch.setattr(sys, "stdout", full)
        code = main(["cluster", "render", str(REPOSITORY / "cluster_configs/specs/local.yaml"), "--target", "ray-up"])
        with suppress(OSError):
            full.close()
    assert code == StorageError.exit_code
    assert "cannot be written: No space left on device: free space, or use another disk" in capsys.readouterr().err


def test_a_command_whose_output_nobody_reads_ends_as_other_tools_do(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    with suppress(BrokenPipeError), os.fdopen(writer, "w") as pipe:
        monkeypatch.setattr(sys, "stderr", sys.stderr)
        monkeypatch.setattr(sys, "stdout", pipe)
        assert main(["recipes"]) == 141
    assert not capsys.readouterr().err


def test_a_folder_that_this_user_may_not_enter_is_one_message(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refused() -> None:
        raise PermissionError(errno.EACCES, "Permission denied", "/root/.rayscribe/clusters")

    monkeypatch.setattr(cluster_record, "clusters_folder", refused)
    assert main(["cluster", "status"]) == StorageError.exit_code
    assert capsys.readouterr().err == (
        "error: /root/.rayscribe/clusters cannot be used: Permission denied: fix its permissions, or use another "
        "folder (RAYSCRIBE_HOME)\n"
    )


def test_a_name_that_is_no_text_is_shown_by_its_codes(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # Linux takes any bytes as a name.
    path = tmp_path / os.fsdecode(b"\xff\x1b[31m.yaml")
    path.write_text("- ä\n", encoding="utf-8")
    shown = io.BytesIO()
    with io.TextIOWrapper(shown, encoding="utf-8") as terminal:
        monkeypatch.setattr(sys, "stdout", terminal)
        assert main(["cluster", "validate", str(path)]) == ConfigError.exit_code
        terminal.flush()
        assert b"/\\udcff.yaml: 1 of 3 rules broken" in shown.getvalue()
        assert b"\x1b" not in shown.getvalue()


def test_an_empty_name_is_no_cluster(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    # As of "$NAME" where that is not set: the only cluster must not be ended.
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    LocalRecord(name="only", created_s=1.0, folder=tmp_path / "none").write()
    assert main(["cluster", "down", ""]) == ConfigError.exit_code
    assert [record.name for record in cluster_record.all_records()] == ["only"]
