"""A training that is killed again and again ends with the weights of the undisturbed one, bit for bit."""

import io
import itertools
from dataclasses import replace
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
import torch

from tests.integration.driver_process import RayHead, Run
from tests.integration.ray_results import check_ray_result
from tests.integration.training_trees import write_recipe
from tests.s3 import FaultProxy
from tests.trainers.training.trackers.event_files import points_of
from trainers.run_folder.layout import CHECKPOINTS, TENSORBOARD

# CI has one kill of each kind, of queued runs: test_retry_causes.
pytestmark = pytest.mark.long
MAX_STEPS, SAVE_STEPS = 100, 10
WORKER, DRIVER, BOTH = "worker", "driver", "both"
# Step after which each kill comes, and whom it hits: spread over the run, right after checkpoints and between them.
KILLS = (
    (3, WORKER),
    (11, DRIVER),
    (19, WORKER),
    (28, BOTH),
    (31, WORKER),
    (40, WORKER),
    (50, DRIVER),
    (61, WORKER),
    (71, BOTH),
    (82, WORKER),
    (94, DRIVER),
)
# Each victim in the middle of an upload.
KILLS_OVER_S3 = ((15, DRIVER), (28, BOTH), (41, WORKER))
KEPT = 2


@pytest.fixture
def recipe(tones: Path, tmp_path: Path) -> Path:
    """Dropout, accumulation and gradient checkpointing, all that could draw or add in another order."""
    changes = {
        "run.max_failures": 20,
        "model.d_model": 32,
        "model.encoder_layers": 2,
        "model.attention_dropout": 0.1,
        "training.max_steps": MAX_STEPS,
        "training.save_steps": SAVE_STEPS,
        "training.logging_steps": 1,
        "training.per_device_train_batch_size": 4,
        "training.gradient_accumulation_steps": 2,
        "training.gradient_checkpointing": True,
    }
    return write_recipe(tmp_path / "recipe.yaml", tones, changes)


@pytest.mark.timeout(1800)
def test_two_workers_killed_eleven_times_end_with_the_same_weights(
    ray_head: RayHead, recipe: Path, tmp_path: Path
) -> None:
    run = Run(ray_head, "killed", str(tmp_path / "runs"), recipe, ["scaling.num_workers=2"], tmp_path / "killed.log")
    calm = replace(run, name="calm", log=tmp_path / "calm.log")
    calm.start()
    calm.finish()
    run.start()
    for step, victim in KILLS:
        run.wait_for(partial(run.reached, step), f"step {step}")
        kill(run, victim)
    run.finish()
    check_same(run, calm)
    check_repeats(run.steps(), restarts=len(KILLS))


@pytest.mark.timeout(1800)
def test_three_workers_killed_in_the_middle_of_uploads_to_s3_end_with_the_same_weights(
    ray_head: RayHead,
    recipe: Path,
    tmp_path: Path,
    s3_bucket: str,
    fault_proxy: FaultProxy,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("AWS_ENDPOINT_URL", fault_proxy.url)
    # Long enough for a kill to fall between two files of one checkpoint.
    fault_proxy.delay_put_s = 0.1
    fault_proxy.delays = lambda method, path: f"/{CHECKPOINTS}/checkpoint-" in path
    sets = ["scaling.num_workers=3", f"checkpoint.num_to_keep={KEPT}", f"run.s3_endpoint_url={fault_proxy.url}"]
    run = Run(ray_head, "killed", f"{s3_bucket}/runs", recipe, sets, tmp_path / "killed.log", poll_s=0.2)
    calm = replace(run, name="calm", log=tmp_path / "calm.log")
    calm.start()
    calm.finish()
    run.start()
    for step, victim in KILLS_OVER_S3:
        run.wait_for(partial(uploading, run, fault_proxy, step), f"an upload of step {step}")
        kill(run, victim)
    run.finish()
    check_same(run, calm)
    check_repeats(run.steps(), restarts=len(KILLS_OVER_S3))
    check_ray_result(run, attempt=3, num_to_keep=KEPT)


@pytest.mark.timeout(1800)
def test_two_workers_that_train_an_adapter_killed_thrice_end_with_the_same_weights(
    ray_head: RayHead, recipe: Path, tmp_path: Path
) -> None:
    sets = ["scaling.num_workers=2", "adapt.method=lora", "adapt.dropout=0.2"]
    run = Run(ray_head, "adapted-killed", str(tmp_path / "runs"), recipe, sets, tmp_path / "killed.log")
    calm = replace(run, name="adapted-calm", log=tmp_path / "calm.log")
    calm.start()
    calm.finish()
    run.start()
    kills = KILLS[1:4]
    for step, victim in kills:
        run.wait_for(partial(run.reached, step), f"step {step}")
        kill(run, victim)
    run.finish()
    check_same(run, calm, "adapter_model.safetensors")
    check_repeats(run.steps(), restarts=len(kills))


def kill(run: Run, victim: str) -> None:
    """Kills a worker, the driver, or both; starts a new driver where there is none."""
    if victim in (WORKER, BOTH):
        run.kill_worker()
    if victim in (DRIVER, BOTH):
        run.kill_driver()
        run.start()


def uploading(run: Run, proxy: FaultProxy, step: int) -> bool:
    """Whether training goes on while a checkpoint of this step or a later one has come in part, without manifest."""
    if not run.reached(1):
        return False
    sent: dict[str, set[str]] = {}
    for method, path in list(proxy.requests):
        if method == "PUT" and f"/{run.name}/{CHECKPOINTS}/checkpoint-" in path:
            folder, _, file = path.partition("?")[0].rpartition("/")
            sent.setdefault(folder.rpartition("/")[2], set()).add(file)
    late = [files for name, files in sent.items() if int(name.split("-")[1]) >= step]
    return any("MANIFEST.json" not in files for files in late)


def check_same(run: Run, calm: Run, weights: str = "model.safetensors") -> None:
    """Weights, optimizer and scores of the last checkpoints are equal to the last bit."""
    mine, theirs = run.checkpoints()[-1], calm.checkpoints()[-1]
    assert (mine.step, theirs.step) == (MAX_STEPS, MAX_STEPS)
    assert mine.files[weights]["sha256"] == theirs.files[weights]["sha256"]
    assert mine.metrics == theirs.metrics
    ours, others = (
        torch.load(io.BytesIO(item.folder.read_bytes(f"{CHECKPOINTS}/{last.name}/optimizer.pt")), weights_only=True)
        for item, last in ((run, mine), (calm, theirs))
    )
    for number, state in ours["state"].items():
        for name, value in state.items():
            assert torch.equal(value, others["state"][number][name]), f"optimizer state {number}.{name} differs"
    assert run.folder.read_bytes("evaluation/test.json") == calm.folder.read_bytes("evaluation/test.json")
    curve = curve_of(run)
    assert [step for step, _ in curve] == list(range(1, MAX_STEPS + 1)), "TensorBoard has each step once"
    assert curve == curve_of(calm)


def curve_of(run: Run) -> list[tuple[int, float]]:
    """The losses in TensorBoard's files."""
    with TemporaryDirectory() as folder:
        run.folder.download_folder(TENSORBOARD, Path(folder))
        return points_of(Path(folder), "train/loss")


def check_repeats(steps: list[int], restarts: int) -> None:
    """Every restart repeats at most save_steps steps, and no step is left out."""
    jumps = [(before, after) for before, after in itertools.pairwise(steps) if after != before + 1]
    assert len(jumps) <= restarts
    assert all(0 <= before + 1 - after <= SAVE_STEPS for before, after in jumps), jumps
    assert set(steps) == set(range(1, MAX_STEPS + 1))
