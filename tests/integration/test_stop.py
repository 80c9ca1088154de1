"""A request to stop, without Ray: what is left, and that going on from it is as an undisturbed one."""

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
import yaml

from jobs.cli import main as rayscribe
from tests.integration.disturbed_worker import STOPPED_AFTER, disturbed
from tests.integration.driver_process import TIMEOUT_S
from tests.integration.forked_process import REPOSITORY
from tests.jobs.ledger.builders import wait_until
from tests.metrics_lines import metrics_of
from tests.trainers.synthetic import content
from trainers.data.preparation import ShardTask
from trainers.data.sources import fingerprint
from trainers.distributed import coordinated_stop
from trainers.distributed.signals import STOP_SIGNAL
from trainers.main import main
from trainers.pipeline.on_machine import worker_group
from trainers.run_folder.attempt_status import Phase, read_status, worker_logs
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import RunFolder
from trainers.scoring.batches import batches_of
from trainers.storage import open_storage
from trainers.training.callbacks import ProgressReport

MAX_STEPS, SAVE_STEPS, EVAL_STEPS = 24, 8, 4


@dataclass(frozen=True)
class RunSetup:
    """A recipe, and where its runs are."""

    recipe: Path
    storage_path: Path

    def run(self, name: str, *more: str) -> int:
        """Runs task.py's main in this process; its exit code."""
        own = ["--set", f"run.name={name}", "--set", f"run.storage_path={self.storage_path}"]
        return main(["--config", str(self.recipe), "--no-ray", *own, *more])

    def folder(self, name: str) -> RunFolder:
        return RunFolder(open_storage(f"{self.storage_path}/{name}"))

    def checkpoints(self, name: str) -> tuple[Checkpoint, ...]:
        return Journal(self.folder(name)).read().checkpoints

    def numbers(self, name: str) -> dict[tuple[int, str], float]:
        """Every loss, and every score, by step."""
        return {
            (line["step"], key): line[key]
            for line in metrics_of(self.folder(name))
            for key in ("loss", "eval_loss")
            if key in line
        }

    def weights(self, name: str) -> dict[int, str]:
        """SHA-256 of the weights of each scored checkpoint, by step."""
        scored = (item for item in self.checkpoints(name) if item.metrics)
        return {item.step: item.files["model.safetensors"]["sha256"] for item in scored}


@pytest.fixture(scope="module")
def runs(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSetup:
    """With one run that nobody disturbs."""
    return set_up(tones, tmp_path_factory.mktemp("stop"), {"model.dropout": 0.2})


@pytest.fixture(scope="module")
def ctc_runs(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> RunSetup:
    """The same of a CTC model that masks, too: by numpy's global generator, unlike dropout."""
    sizes = {"d_model": 16, "encoder_layers": 1, "attention_heads": 2, "feature_encoder_dim": 8}
    masking = {"hidden_dropout": 0.2, "apply_spec_augment": True, "mask_time_prob": 0.3, "mask_time_length": 4}
    model = {"init": "scratch", "family": "ctc", "architecture": "wav2vec2", **sizes, **masking}
    return set_up(tones, tmp_path_factory.mktemp("stop-ctc"), {"model": model, "decode": {}})


def set_up(tones: Path, folder: Path, model: Mapping[str, Any]) -> RunSetup:
    """Writes a recipe of a model, and trains it once."""
    changes: dict[str, Any] = {
        "data": {split: str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
        "decode.max_length": 4,
        **model,
        "training.max_steps": MAX_STEPS,
        "training.save_steps": SAVE_STEPS,
        "training.eval_steps": EVAL_STEPS,
        "training.logging_steps": 1,
        "training.learning_rate": 1e-3,
        "training.per_device_train_batch_size": 4,
        # Several of them in one score, so that it can be cut short.
        "training.per_device_eval_batch_size": 2,
        "checkpoint.num_to_keep": None,
    }
    (folder / "recipe.yaml").write_text(yaml.safe_dump(content(changes)))
    runs = RunSetup(folder / "recipe.yaml", folder / "runs")
    assert runs.run("calm") == 0
    return runs


@pytest.fixture(autouse=True)
def poll_often(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """And forgets the signals of a test, so that what trains next in this process is not stopped by them."""
    monkeypatch.setattr(coordinated_stop, "POLL_S", 0.002)
    yield
    STOP_SIGNAL.reset()


def request_stop() -> None:
    """A signal to this process, and then as long as training takes to hear it."""
    os.kill(os.getpid(), signal.SIGTERM)
    end = time.monotonic() + TIMEOUT_S
    while any(thread.name == "last-step" for thread in threading.enumerate()):
        assert time.monotonic() < end
        time.sleep(0.002)


def at_step(patch: pytest.MonkeyPatch, step: int, do: Callable[[], None]) -> None:
    """Has something happen in the middle of a step."""
    original = ProgressReport.on_step_end

    def on_step_end(self: ProgressReport, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == step:
            do()
        original(self, args, state, control, **kwargs)

    patch.setattr(ProgressReport, "on_step_end", on_step_end)


def in_score(patch: pytest.MonkeyPatch, number: int, do: Callable[[], None]) -> None:
    """Has something happen in the middle of a score, counted from 1."""
    begun = []

    def counted_batches(*args: Any, **options: Any) -> Any:
        begun.append(args)
        batches = batches_of(*args, **options)
        assert len(batches) > 1
        if len(begun) == number:
            do()
        return batches

    patch.setattr("trainers.scoring.scorer.batches_of", counted_batches)


@pytest.mark.parametrize(
    ("when", "where", "stops_at"),
    [
        (at_step, 5, 6),
        pytest.param(at_step, SAVE_STEPS - 1, SAVE_STEPS, marks=pytest.mark.long),
        pytest.param(in_score, 1, EVAL_STEPS, marks=pytest.mark.long),
        (in_score, 2, SAVE_STEPS),
        pytest.param(at_step, MAX_STEPS, MAX_STEPS, marks=pytest.mark.long),
    ],
    ids=["between", "where a score is due", "in a score", "in a checkpoint's score", "at the end"],
)
def test_a_stopped_training_goes_on_as_if_nobody_had_asked(
    runs: RunSetup,
    capfd: pytest.CaptureFixture[str],
    request: pytest.FixtureRequest,
    when: Any,
    where: int,
    stops_at: int,
) -> None:
    name = request.node.callspec.id.replace(" ", "-").replace("'", "")
    with pytest.MonkeyPatch.context() as patch:
        when(patch, where, request_stop)
        assert runs.run(name) == 143
    newest = runs.checkpoints(name)[-1]
    assert stops_at - 1 <= newest.step <= stops_at
    assert newest.metrics == {}, "no time is taken for a score"
    words = f"stopped at step {newest.step}/{MAX_STEPS}: {newest.name} is in "
    assert words in capfd.readouterr().err
    ended = read_status(runs.folder(name), 1) or {}
    assert (ended["phase"], ended["step"]) == (Phase.ENDED, newest.step)
    assert words in ended["detail"]
    assert runs.run(name) == 0
    assert runs.numbers(name) == runs.numbers("calm")
    assert runs.weights(name) == runs.weights("calm")
    results = [Journal(runs.folder(each)).read().finished for each in (name, "calm")]
    assert results[0] is not None and results[1] is not None
    assert results[0].result["best_step"] == results[1].result["best_step"]


def test_a_stopped_ctc_training_goes_on_by_its_name_as_if_nobody_had_asked(
    ctc_runs: RunSetup, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path))
    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, 5, request_stop)
        assert ctc_runs.run("stopped") == 143
    capfd.readouterr()
    assert rayscribe(["list"]) == 0
    assert "STOPPED" in capfd.readouterr().out
    assert rayscribe(["resume", "stopped"]) == 0
    capfd.readouterr()
    assert rayscribe(["status", "stopped", "--json"]) == 0
    shown = json.loads(capfd.readouterr().out)
    assert shown["run"]["state"] == "SUCCEEDED"
    assert [attempt["cause"] for attempt in shown["attempts"]] == ["STOPPED", "SUCCEEDED"]
    scoring = [str(ctc_runs.recipe), "--no-ray", "--set", f"run.storage_path={ctc_runs.storage_path}"]
    assert rayscribe(["evaluate", *scoring, "--model", "stopped"]) == 0
    first = ctc_runs.checkpoints("stopped")[0].name
    assert rayscribe(["resume", "stopped", "--from", first]) == 0
    assert Journal(ctc_runs.folder("stopped-from-1")).read().finished is not None
    wers = [line["eval_wer"] for line in metrics_of(ctc_runs.folder("stopped")) if "eval_wer" in line]
    assert shown["run"]["progress"]["best_wer"] == min(wers)
    assert shown["run"]["progress"]["wers"] == wers, "those of both attempts"
    assert ctc_runs.numbers("stopped") == ctc_runs.numbers("calm")
    assert ctc_runs.weights("stopped") == ctc_runs.weights("calm")


def test_a_second_request_ends_at_once(runs: RunSetup, capfd: pytest.CaptureFixture[str]) -> None:
    def twice() -> None:
        # It is stored while training goes on, and a second request waits for nothing.
        wait_until(lambda: bool(runs.checkpoints("twice")), "the first checkpoint")
        request_stop()
        os.kill(os.getpid(), signal.SIGTERM)

    with pytest.MonkeyPatch.context() as patch:
        at_step(patch, SAVE_STEPS + 2, twice)
        assert runs.run("twice") == 143
    (only,) = runs.checkpoints("twice")
    assert only.step == SAVE_STEPS
    assert f"stopped; {only.name} is in " in capfd.readouterr().err


def test_after_training_there_is_nothing_to_wait_for(runs: RunSetup, capfd: pytest.CaptureFixture[str]) -> None:
    scores_before_the_test_split = MAX_STEPS // EVAL_STEPS
    with pytest.MonkeyPatch.context() as patch:
        in_score(patch, scores_before_the_test_split + 1, request_stop)
        assert runs.run("scoring") == 143
    last = runs.checkpoints("scoring")[-1]
    assert (last.step, bool(last.metrics)) == (MAX_STEPS, True)
    assert f"stopped; {last.name} is in " in capfd.readouterr().err
    assert runs.run("scoring") == 0
    assert runs.weights("scoring") == runs.weights("calm")


def test_what_is_prepared_stays(runs: RunSetup, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    original, split = ShardTask.__call__, []

    def second_split(self: ShardTask, block: Any) -> Any:
        split.append(block)
        if len(split) == 2:
            os.kill(os.getpid(), signal.SIGINT)
        return original(self, block)

    cache = ["--set", f"data.cache_dir={tmp_path / 'prepared'}", "--attempt", "1"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(ShardTask, "__call__", second_split)
        assert runs.run("preparing", *cache) == 130
    assert f"stopped; the prepared data stays in {tmp_path / 'prepared'}" in capfd.readouterr().err
    assert len(list((tmp_path / "prepared").glob("*.json"))) == 1
    sets = [path for path in (tmp_path / "prepared").iterdir() if path.is_dir() and path.name != fingerprint.FOLDER]
    assert len(sets) == 1, "half a set is left"
    status = read_status(runs.folder("preparing"), 1) or {}
    assert (status["phase"], status["detail"].startswith("stopped; the prepared data stays")) == (Phase.ENDED, True)
    assert runs.run("preparing", "--verb", "prepare", *cache) == 0
    assert "prepare train: already prepared" in capfd.readouterr().out


def test_a_worker_process_is_started_again_and_its_run_goes_on_where_no_other_process_is(
    runs: RunSetup, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    own = ["--set", "run.name=apart", "--set", f"run.storage_path={runs.storage_path}"]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(worker_group, "run_on_rank", disturbed(tmp_path))
        assert main(["--config", str(runs.recipe), *own]) == 143
    shown = capfd.readouterr()
    assert "engine: processes of this machine, without Ray" in shown.out
    assert "the workers restart from the last checkpoint (1 of at most 3)" in shown.out
    newest = runs.checkpoints("apart")[-1]
    assert newest.step == STOPPED_AFTER + 1
    assert f"stopped at step {newest.step}/{MAX_STEPS}: {newest.name} is in " in shown.err
    assert len(worker_logs(runs.folder("apart"), 1)) == 2
    assert runs.run("apart") == 0
    assert runs.numbers("apart") == runs.numbers("calm")
    assert runs.weights("apart") == runs.weights("calm")


@pytest.mark.long
def test_two_ranks_of_torchrun_end_after_the_same_step(runs: RunSetup, tmp_path: Path) -> None:
    folder = runs.folder("torchrun")
    more = ["--set", "run.name=torchrun", "--set", f"run.storage_path={runs.storage_path}"]
    more += ["--set", "scaling.num_workers=2", "--set", f"training.max_steps={200 * MAX_STEPS}"]
    words = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "task.py"]
    with (tmp_path / "log").open("wb") as log:
        ranks = subprocess.Popen(
            [sys.executable, *words, "--config", str(runs.recipe), "--no-ray", *more],
            cwd=REPOSITORY,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            stdout=log,
            stderr=log,
        )
    try:
        end = time.monotonic() + TIMEOUT_S
        while max((line["step"] for line in metrics_of(folder)), default=0) < 5:
            assert ranks.poll() is None and time.monotonic() < end, (tmp_path / "log").read_text()
            time.sleep(0.05)
        ranks.send_signal(signal.SIGTERM)
        ranks.wait(TIMEOUT_S)
    finally:
        # Those that torchrun started outlive it.
        for process in [*psutil.Process(ranks.pid).children(recursive=True), ranks] if ranks.poll() is None else []:
            process.kill()
    newest = runs.checkpoints("torchrun")[-1]
    assert newest.metrics == {}
    said = (tmp_path / "log").read_text()
    assert said.count(f"stopped at step {newest.step}/{200 * MAX_STEPS}: {newest.name} is in ") == 1, said
