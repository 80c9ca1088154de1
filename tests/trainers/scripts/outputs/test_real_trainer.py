"""What transformers' own Trainer writes, rotates and looks for, while it is kept."""

import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Trainer, TrainerCallback, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

from tests.jobs.ledger.builders import wait_until
from tests.trainers.run_folder.writers import begin, first_group, group_of
from tests.trainers.scripts.outputs.programs import DictBoard, node_output
from trainers.run_folder.checkpoints import list_checkpoints
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.layout import RunFolder
from trainers.scripts.node_folder import NodeFolder
from trainers.scripts.outputs import layouts, sync
from trainers.scripts.outputs.checkpoint_keeper import NewestAndBest
from trainers.scripts.outputs.layouts import layouts_for
from trainers.scripts.outputs.restore import restore
from trainers.scripts.outputs.sync import OutputSync
from trainers.storage import open_storage

KNOWN = layouts_for("auto")
FILES = {
    "model.safetensors",
    "optimizer.pt",
    "rng_state.pth",
    "scheduler.pt",
    "trainer_state.json",
    "training_args.bin",
}
# Of the validation after each step: the third is the best.
WERS = (0.9, 0.8, 0.2, 0.7, 0.7, 0.6, 0.6, 0.5, 0.5, 0.5)
BEST = 3


class Model(torch.nn.Module):
    """Large enough that its checkpoints take a while to write, next to how often they are looked at."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1000, 1000)

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        found = self.layer(x).mean(1, keepdim=True)
        return {"loss": torch.nn.functional.mse_loss(found, labels), "logits": found}


class Waiting(TrainerCallback):
    """Has the program go on once a checkpoint of its middle is in the run folder."""

    def __init__(self, run: RunFolder):
        self._run = run

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in (BEST, 5):
            wait_until(lambda: steps(self._run)[-1:] == [state.global_step], "the checkpoint")


def steps(run: RunFolder) -> list[int]:
    return [item.step for item in list_checkpoints(run)]


def trainer(out: Path, wers: Iterator[float], max_steps: int, *callbacks: TrainerCallback) -> Trainer:
    torch.manual_seed(0)
    rows = [{"x": torch.randn(1000), "labels": torch.ones(1)} for _ in range(4)]
    arguments = TrainingArguments(
        output_dir=str(out),
        max_steps=max_steps,
        per_device_train_batch_size=2,
        eval_strategy="steps",
        eval_steps=1,
        save_steps=1,
        save_total_limit=2,
        load_best_model_at_end=True,
        metric_for_best_model="wer",
        greater_is_better=False,
        use_cpu=True,
        report_to=[],
        disable_tqdm=True,
    )
    return Trainer(
        Model(),
        arguments,
        train_dataset=rows,
        eval_dataset=rows,
        compute_metrics=lambda _: {"wer": next(wers)},
        callbacks=[*callbacks],
    )


@pytest.mark.integration
def test_only_complete_checkpoints_are_kept_and_the_best_is_found_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module, name, seconds in ((layouts, "MARKED_STABLE_S", 0.05), (sync, "POLL_S", 0.01)):
        monkeypatch.setattr(module, name, seconds)
    retention = NewestAndBest(2)
    run, out, said = RunFolder(open_storage(str(tmp_path / "run"))), tmp_path / "out", list[str]()
    first_group(run)
    output = node_output(out, run, DictBoard(), say=said.append)
    node = NodeFolder(tmp_path, tmp_path, None, None)
    kept = OutputSync(output, GroupWriter.of(run, 1, "x"), retention, lambda progress: None, node)
    kept.start()
    trainer(out, iter(WERS), len(WERS), Waiting(run)).train()
    kept.finish(ended_well=True)
    assert steps(run)[0] == BEST and steps(run)[-1] == len(WERS) and len(steps(run)) == 3, said
    for item in list_checkpoints(run):
        whole = tmp_path / item.name
        run.storage.download_folder(f"checkpoints/{item.name}", whole)
        folder = whole / f"checkpoint-{item.step}"
        assert {path.name for path in folder.iterdir()} == FILES
        assert json.loads((folder / "trainer_state.json").read_text())["global_step"] == item.step
        torch.load(folder / "optimizer.pt", weights_only=True)
    shutil.rmtree(out)
    restore(run, group_of(begin(run), "y").check(), out, KNOWN, retention=retention)
    assert {path.name for path in out.iterdir()} == {f"checkpoint-{BEST}", f"checkpoint-{len(WERS)}"}
    goes_on = trainer(out, iter([0.5, 0.5]), len(WERS) + 2)
    goes_on.train(resume_from_checkpoint=get_last_checkpoint(str(out)))
    assert goes_on.state.best_model_checkpoint == str(out / f"checkpoint-{BEST}")
