"""DDP, ZeRO and FSDP2 over two ranks of torchrun: the same mathematics, sharded checkpoints, going on from them."""

import json
import os
import shutil
import socket
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from safetensors.torch import load_file
from transformers import WhisperForConditionalGeneration

from tests.integration.driver_process import TIMEOUT_S, RayHead, Run
from tests.integration.forked_process import REPOSITORY
from tests.integration.made_once import made_once
from tests.integration.torchrun import run_in_ranks
from tests.metrics_lines import metrics_of
from tests.trainers.synthetic import content
from trainers.run_folder.journal import Checkpoint, Journal
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage

# DeepSpeed compiles its operators in a new environment, which takes minutes of both cores.
pytestmark = pytest.mark.long
MAX_STEPS, SAVE_STEPS, EVAL_STEPS = 12, 6, 3
DDP, FSDP, ZERO1 = "ddp", "fsdp", "zero1"
STRATEGIES: dict[str, dict[str, Any]] = {
    DDP: {},
    FSDP: {"strategy.name": "fsdp"},
    ZERO1: {"strategy.name": "deepspeed", "strategy.zero_stage": 1},
    "zero2": {"strategy.name": "deepspeed", "strategy.zero_stage": 2},
    # Without a threshold the model is too small for a weight of it to be sharded.
    "zero3": {"strategy.name": "deepspeed", "strategy.zero_stage": 3, "strategy.stage3_param_persistence_threshold": 0},
}
# What a checkpoint of two nodes has of both, and only of one.
NODES_SHARDS = {
    "zero3": {f"zero_pp_rank_{rank}_mp_rank_00_optim_states.pt" for rank in (0, 1)},
    FSDP: {"__0_0.distcp", "__1_0.distcp", ".metadata"},
}
# How names of what is no part of a model begin.
SHARDED = ("global_step", "zero_to", "latest", "scheduler", "pytorch_model", "optimizer")
# Relative, over 12 steps from the same weights: the ranks' gradients are added in another order.
CURVE_TOLERANCE = 1e-5
WEIGHT_TOLERANCE = 1e-6


@dataclass(frozen=True)
class TorchrunRuns:
    """A recipe, and where its runs are."""

    recipe: Path
    root: Path

    def start(self, name: str, strategy: str, **kill: Any) -> dict[str, Any]:
        """What a rank of strategy_process is told of a run."""
        sets = {"run.name": name, "run.storage_path": str(self.root), **STRATEGIES[strategy]}
        words = [word for field, value in sets.items() for word in ("--set", f"{field}={value}")]
        (self.root / f"of-{name}").mkdir(parents=True, exist_ok=True)
        return {
            "words": ["--config", str(self.recipe), "--no-ray", *words],
            "folder": str(self.root / f"of-{name}"),
            **kill,
        }

    def run(self, *starts: dict[str, Any]) -> tuple[int, str]:
        """Runs them one after the other in two ranks; exit code, and what they said."""
        return run_in_ranks(2, starts, timeout_s=TIMEOUT_S)

    def run_on_two_nodes(self, *starts: dict[str, Any]) -> tuple[int, str]:
        """The same with one rank on each of two nodes, which share no temporary folder."""
        port = str(free_port())
        nodes: list[subprocess.Popen[str]] = []
        for number in ("0", "1"):
            disk = self.root / f"disk-{number}"
            disk.mkdir(exist_ok=True)
            torchrun = ["-m", "torch.distributed.run", "--nnodes", "2", "--node-rank", number, "--nproc-per-node", "1"]
            torchrun += ["--master-addr", "127.0.0.1", "--master-port", port]
            nodes.append(
                subprocess.Popen(
                    [sys.executable, *torchrun, "-m", "tests.integration.strategy_process", json.dumps(starts)],
                    cwd=REPOSITORY,
                    env={**os.environ, "OMP_NUM_THREADS": "1", "TMPDIR": str(disk)},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
        try:
            said = [node.communicate(timeout=TIMEOUT_S)[0] for node in nodes]
        finally:
            for node in nodes:
                node.kill()
        return max(abs(node.returncode) for node in nodes), "\n".join(said)

    def folder(self, name: str) -> Path:
        return self.root / name

    def wrapped(self, name: str) -> list[dict[str, Any]]:
        """What each rank trained."""
        return [json.loads((self.root / f"of-{name}" / f"wrapped_{rank}.json").read_text()) for rank in (0, 1)]

    def numbers(self, name: str) -> dict[tuple[int, str], float]:
        """Every loss, norm, rate and score, by step."""
        keys = ("loss", "grad_norm", "learning_rate", "eval_loss", "eval_wer")
        lines = metrics_of(RunFolder(open_storage(str(self.folder(name)))))
        return {(line["step"], key): line[key] for line in lines for key in keys if key in line}

    def checkpoints(self, name: str) -> tuple[Checkpoint, ...]:
        return Journal(RunFolder(open_storage(str(self.folder(name))))).read().checkpoints

    def weights(self, name: str) -> dict[str, torch.Tensor]:
        """Of the finished model."""
        return load_file(self.folder(name) / "model" / "model.safetensors")


def free_port() -> int:
    """A port on which nobody listens."""
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        port: int = listener.getsockname()[1]
        return port


@pytest.fixture(scope="module")
def runs(tones: Path, tmp_path_factory: pytest.TempPathFactory) -> TorchrunRuns:
    """One that nobody disturbs of each strategy but ZeRO-1."""
    pytest.importorskip("deepspeed")

    def train(folder: Path) -> None:
        made = runs_in(folder)
        made.recipe.write_text(yaml.safe_dump(recipe_on(tones)))
        code, said = made.run(*(made.start(name, name) for name in STRATEGIES if name != ZERO1))
        assert code == 0, said

    return runs_in(made_once("strategies", train, tmp_path_factory))


def runs_in(folder: Path) -> TorchrunRuns:
    """The recipe and the runs of this folder."""
    return TorchrunRuns(folder / "recipe.yaml", folder / "runs")


def recipe_on(tones: Path) -> dict[str, Any]:
    """What all of them train."""
    changes: dict[str, Any] = {
        "data": {split: str(tones / f"{split}.csv") for split in ("train", "validation", "test")},
        "model.dropout": 0.2,
        "training.max_steps": MAX_STEPS,
        "training.save_steps": SAVE_STEPS,
        "training.eval_steps": EVAL_STEPS,
        "training.logging_steps": 1,
        "training.learning_rate": 1e-3,
        "training.weight_decay": 0.01,
        # Below the norm, so that it is clipped; two forward passes a step.
        "training.max_grad_norm": 1.0,
        "training.global_batch_size": 10,
        "training.gradient_accumulation_steps": 2,
        # Three batches to score over two ranks: one has more than the other.
        "training.per_device_eval_batch_size": 2,
        "decode.max_length": 4,
        "training.report_to": [],
        "checkpoint.num_to_keep": None,
        "scaling.num_workers": 2,
    }
    return content(changes)


@pytest.mark.parametrize(
    ("name", "kind", "stage", "shards_weights"),
    [
        (DDP, "DistributedDataParallel", 0, False),
        ("zero2", "DeepSpeedEngine", 2, False),
        ("zero3", "DeepSpeedEngine", 3, True),
        (FSDP, "FSDPWhisperForConditionalGeneration", 0, True),
    ],
)
def test_each_strategy_wraps_the_model_in_its_own_way(
    runs: TorchrunRuns, name: str, kind: str, stage: int, shards_weights: bool
) -> None:
    for wrapped in runs.wrapped(name):
        assert (wrapped["type"], wrapped["stage"], wrapped["shards"] > 0) == (kind, stage, shards_weights)


def check_as_ddp(runs: TorchrunRuns, name: str) -> None:
    """A strategy's run has the curve and the weights of DDP's."""
    plain, sharded = runs.numbers(DDP), runs.numbers(name)
    assert max(plain[step, "grad_norm"] for step in range(1, MAX_STEPS)) > 1.0, "nothing would be clipped"
    assert sharded == pytest.approx(plain, rel=CURVE_TOLERANCE)
    expected, weights = runs.weights(DDP), runs.weights(name)
    assert weights.keys() == expected.keys(), "tied weights are stored once"
    for key, weight in weights.items():
        assert torch.allclose(weight, expected[key], rtol=0, atol=WEIGHT_TOLERANCE), key


@pytest.mark.parametrize("name", ["zero2", "zero3", FSDP])
def test_all_strategies_train_the_same(runs: TorchrunRuns, name: str) -> None:
    check_as_ddp(runs, name)


def test_zero_1_wraps_the_model_and_trains_the_same(runs: TorchrunRuns) -> None:
    code, said = runs.run(runs.start(ZERO1, ZERO1))
    assert code == 0, said
    for wrapped in runs.wrapped(ZERO1):
        assert (wrapped["type"], wrapped["stage"], wrapped["shards"]) == ("DeepSpeedEngine", 1, 0)
    check_as_ddp(runs, ZERO1)


@pytest.mark.parametrize("name", ["zero2", "zero3", FSDP])
def test_the_model_of_a_sharded_run_is_an_ordinary_one(runs: TorchrunRuns, name: str) -> None:
    folder = runs.folder(name) / "model"
    opened: Any = WhisperForConditionalGeneration.from_pretrained(folder, output_loading_info=True)
    loading = opened[1]
    assert not any(loading.values()), loading
    names = {path.name for path in folder.iterdir()}
    assert not [item for item in names if item.startswith(SHARDED)]


@pytest.mark.parametrize("name", ["zero3", FSDP])
def test_the_model_scores_what_the_last_evaluation_said(runs: TorchrunRuns, tmp_path: Path, name: str) -> None:
    best = json.loads((runs.folder(name) / "result.json").read_text())
    words = ["task.py", "--config", str(runs.recipe), "--no-ray", "--verb", "evaluate", "--split", "validation"]
    words += ["--model", str(runs.folder(name)), "--set", "run.name=score", "--set", f"run.storage_path={tmp_path}"]
    words += ["--set", "scaling.num_workers=1"]
    done = subprocess.run(
        [sys.executable, *words], cwd=REPOSITORY, capture_output=True, text=True, timeout=TIMEOUT_S, check=False
    )
    assert done.returncode == 0, done.stderr
    (written,) = (tmp_path / "evaluations").rglob("validation.json")
    score = json.loads(written.read_text())
    assert score["wer"] == best["validation"]["eval_wer"]
    assert score["loss"] == pytest.approx(best["validation"]["eval_loss"], rel=1e-6)


def test_no_rank_waits_for_a_layer_that_another_one_skips(runs: TorchrunRuns, tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    shutil.copytree(runs.folder(DDP) / "model", weights)
    written = json.loads((weights / "config.json").read_text())
    (weights / "config.json").write_text(json.dumps({**written, "encoder_layerdrop": 0.5, "decoder_layerdrop": 0.5}))
    plain = yaml.safe_load(runs.recipe.read_text())
    model = {"init": "pretrained", "name_or_path": str(weights), "language": "English", "max_context_s": 3}
    short = {**plain["training"], "max_steps": 4, "save_steps": 4, "eval_steps": 4}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(yaml.safe_dump({**plain, "model": model, "training": short}))
    skipping = TorchrunRuns(recipe, tmp_path / "runs")
    code, said = skipping.run(skipping.start("zero3", "zero3"))
    assert code == 0, said
    assert "no layer is skipped at random (layerdrop was 0.5)" in said


def check_as_undisturbed(runs: TorchrunRuns, name: str, strategy: str) -> None:
    """A run has the numbers and the weights of the undisturbed one of its strategy, to the last bit."""
    assert runs.numbers(name) == runs.numbers(strategy)
    expected = runs.weights(strategy)
    assert all(torch.equal(weight, expected[key]) for key, weight in runs.weights(name).items())


def test_killed_runs_of_each_strategy_go_on_as_the_undisturbed_ones(runs: TorchrunRuns) -> None:
    starts = [
        [runs.start("killed3", "zero3", rank=1, kill="step", step=SAVE_STEPS + 3)],
        [runs.start("killed3", "zero3"), runs.start("killed2", "zero2", rank=0, kill="step", step=SAVE_STEPS + 3)],
        [runs.start("killed2", "zero2"), runs.start("killed-fsdp", FSDP, rank=1, kill="step", step=SAVE_STEPS + 3)],
        [runs.start("killed-fsdp", FSDP)],
    ]
    ends = [runs.run(*each) for each in starts]
    assert [code == 0 for code, _ in ends] == [False, False, False, True], ends[-1][1]
    assert [said.count(f"resuming from checkpoint-{SAVE_STEPS}-a1-") for _, said in ends] == [0, 1, 1, 1]
    for name, strategy in (("killed3", "zero3"), ("killed2", "zero2"), ("killed-fsdp", FSDP)):
        check_as_undisturbed(runs, name, strategy)


@pytest.mark.parametrize("name", ["zero3", FSDP])
def test_nodes_store_their_own_shards_and_take_over_what_they_had_staged(runs: TorchrunRuns, name: str) -> None:
    run = f"nodes-{name}"
    code, said = runs.run_on_two_nodes(runs.start(run, name, rank=1, kill="upload", step=SAVE_STEPS))
    assert code != 0, said
    assert runs.checkpoints(run) == (), "half of it is stored"
    # What was staged completely costs no step.
    code, said = runs.run_on_two_nodes(runs.start(run, name))
    assert code == 0, said
    assert f"resuming from checkpoint-{SAVE_STEPS}-a1-" in said
    for checkpoint in runs.checkpoints(run):
        assert NODES_SHARDS[name] <= {Path(file).name for file in checkpoint.files}
    check_as_undisturbed(runs, run, name)
    left = [path for node in ("0", "1") for path in (runs.root / f"disk-{node}").glob("rayscribe-staging-*/*/*")]
    assert left == [], "nothing stays on the nodes' disks"


@pytest.mark.parametrize("name", ["zero2", "zero3"])
def test_on_ray_it_comes_out_the_same(ray_head: RayHead, runs: TorchrunRuns, tmp_path: Path, name: str) -> None:
    sets = [f"{field}={value}" for field, value in STRATEGIES[name].items()]
    on_ray = f"{name}-on-ray"
    run = Run(ray_head, on_ray, str(runs.root), runs.recipe, [*sets, "scaling.backend=gloo"], tmp_path / "ray.log")
    run.start()
    run.finish()
    check_as_undisturbed(runs, on_ray, name)
