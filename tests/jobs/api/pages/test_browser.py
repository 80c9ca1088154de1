"""The pages in a real browser: at a desk's width and a phone's, by keyboard, in the dark, and checked by axe."""

import json
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from jobs.api.server.app import make_app
from jobs.model import Cause, Progress, RunState
from tests.jobs.api.backend_harness import BackendHarness, open_harness, served
from tests.jobs.cli.test_compare_command import FIRST, SECOND, evaluated
from tests.jobs.ledger.builders import make_attempt, move_to
from tests.settings import setting
from tests.test_architecture import ROOT
from tests.trainers.run_folder.writers import first_group
from trainers.run_folder.attempt_status import driver_log_key
from trainers.run_folder.layout import RunFolder
from trainers.scoring.report.page import write_report
from trainers.storage import open_storage

# What `make browser` makes: Playwright, and axe-core from its npm package.
ENVIRONMENT = Path(setting("RAYSCRIBE_TEST_BROWSER", str(ROOT / ".venv-browser")))
AXE = ENVIRONMENT / "node_modules" / "axe-core" / "axe.min.js"
PICTURES = ROOT / "docs" / "pictures"
# Those that docs show; REGENERATE_PAGES=1 keeps them.
KEPT = ("runs-wide", "runs-phone", "run-wide", "usage-wide", "compare-dark")


def fill(harness: BackendHarness, now_s: float) -> Path:
    """Runs of a team on a day, as one sees them; gives the driver's log of the one that trains, sr."""
    runs = harness.folder / "runs"
    for number, (name, hypotheses) in enumerate((("small", FIRST), ("large", SECOND))):
        (runs / name).mkdir(parents=True)
        evaluated(runs / name, hypotheses)
        at_s = now_s - 90_000 + 3600 * number
        run = harness.add_in_state(name, RunState.SUCCEEDED, submitted_s=at_s, queued_s=at_s, user="boris")
        progress = Progress(phase="ENDED", step=4000, max_steps=4000, test_wer=25.0 - 16.67 * number)
        move_to(harness.ledger, run, RunState.SUCCEEDED, progress=progress, reason="finished")
        folder = RunFolder(open_storage(run.run_folder))
        write_metrics(folder)
        write_report(folder)
    at_s = now_s - 9000
    run = harness.add_in_state("sr", RunState.TRAINING, submitted_s=at_s, queued_s=at_s, tags=["serbian"], priority=5)
    with harness.ledger.write() as writer:
        ended = {"cause": Cause.NODE_LOST, "message": "a worker's node was preempted", "last_step": 1200}
        writer.change_attempt("sr", 1, ended_s=at_s + 4000, **ended)
        writer.open_attempt(make_attempt("sr", 2, created_s=at_s + 4300, resume_from="checkpoint-1200-a1-3f9c2e"))
    wers = (61.2, 44.0, 38.1, 31.9, 33.0, 27.4, 24.2, 22.9, 21.5, 21.1)
    numbers = {"step": 2900, "max_steps": 4000, "loss": 0.231, "wer": 21.1, "best_wer": 21.1, "eta_s": 4320.0}
    reason = "step 2900/4000 · 2 workers · loss 0.2310 · WER 21.10% · ETA 1 h 12 min"
    progress = Progress(phase="TRAINING", wers=wers, **numbers)
    move_to(harness.ledger, run, RunState.TRAINING, attempt=2, progress=progress, reason=reason)
    for name, state in (("digits", RunState.FAILED), ("hr-lora", RunState.QUEUED), ("sl", RunState.PREPARING_DATA)):
        harness.add_in_state(name, state, submitted_s=now_s - 600, queued_s=now_s - 600, queue="small")
    write_metrics(RunFolder(open_storage(run.run_folder)))
    log = runs / "sr" / driver_log_key(2)
    log.parent.mkdir(parents=True)
    steps = (f"step {step:,} of 4,000 · loss {0.5 - step / 12_000:.4f}\n" for step in range(1250, 2950, 50))
    log.write_text("".join(["of the driver\n", *steps]), encoding="utf-8")
    return log


def write_metrics(folder: RunFolder) -> None:
    """What a training measures by step."""
    key = first_group(folder).group.metrics_key
    for step in range(100, 3000, 100):
        loss, rate = 0.2 + 3 / (1 + step / 300), 1e-4 * (1 - step / 4000)
        line = {
            "step": step,
            "loss": loss,
            "learning_rate": rate,
            "clips_per_s": 40 + step % 300 / 100,
            "padding": 0.04,
        }
        folder.storage.append_line(key, json.dumps(line))
        if step % 300 == 0:
            scores = {"eval_loss": loss + 0.1, "eval_wer": 20 * loss, "eval_cer": 6 * loss, "eval_ser": 30 * loss}
            folder.storage.append_line(key, json.dumps({"step": step, **scores}))


@pytest.mark.long
def test_each_page_works_at_a_desk_on_a_phone_by_keyboard_and_in_the_dark(tmp_path: Path) -> None:
    python = ENVIRONMENT / "bin" / "python"
    if not (AXE.is_file() and shutil.which("chromium")):
        pytest.skip(f"{ENVIRONMENT} or chromium is not there: run `make browser`, and `apt-get install chromium`")
    with open_harness(tmp_path) as harness:
        log = fill(harness, time.time())
        with served(make_app(harness.backend)) as url:
            paths = [str(path) for path in (AXE, tmp_path, log, tmp_path / "runs" / "large" / "report.html")]
            command = [str(python), str(Path(__file__).with_name("browse.py")), url, harness.token, *paths]
            done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
        assert done.returncode == 0, done.stderr
        assert harness.ledger.run("sr").stop_requested_s is not None
    result = json.loads(done.stdout)
    assert result["found"] == []
    for seen in result["seen"].values():
        assert seen["first focus"] == "Skip to the content" and seen["log ends in view"]
        assert seen["report is styled"] == "grid"
    if os.environ.get("REGENERATE_PAGES"):
        for name in KEPT:
            shutil.copy(tmp_path / f"{name}.png", PICTURES / f"ui-{name}.png")
