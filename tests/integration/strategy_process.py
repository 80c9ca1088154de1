"""One rank of torchrun that trains one run after the other, so that what takes long to import is imported once.

Arguments: a JSON list of runs, each with the words of task.py's command line, and where to kill this rank.
"""

import json
import os
import re
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
from accelerate.state import AcceleratorState, PartialState
from accelerate.utils import DistributedType
from torch.distributed.tensor import DTensor

from trainers.config import schema
from trainers.main import main
from trainers.storage.local_folder import LocalStorage
from trainers.training.callbacks import ProgressReport
from trainers.training.trainer.speech_trainer import SpeechTrainer

# A rank's shard of the optimizer's state among what is staged, and the step of its checkpoint.
SHARD = re.compile(r"checkpoint-(\d+)-.*/(\w+optim_states\.pt|optimizer_0/\w+\.distcp)")


def record_wrapped(patch: pytest.MonkeyPatch, folder: Path) -> None:
    """Writes what the Trainer trains, as it is in a step, one file a rank."""
    original = SpeechTrainer.training_step

    def training_step(self: SpeechTrainer, model: Any, *args: Any, **kwargs: Any) -> Any:
        stage = model.zero_optimization_stage() if hasattr(model, "zero_optimization_stage") else 0
        weights = list(self._recognizer.model.parameters())
        shards = sum(isinstance(weight, DTensor) or weight.numel() == 0 for weight in weights)
        wrapped = {"type": type(model).__name__, "stage": stage, "shards": shards}
        (folder / f"wrapped_{os.environ['RANK']}.json").write_text(json.dumps(wrapped))
        return original(self, model, *args, **kwargs)

    patch.setattr(SpeechTrainer, "training_step", training_step)


def kill_at_step(patch: pytest.MonkeyPatch, step: int) -> None:
    """Ends this process without a word in the middle of a step."""
    original = ProgressReport.on_step_end

    def on_step_end(self: ProgressReport, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step == step:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, args, state, control, **kwargs)

    patch.setattr(ProgressReport, "on_step_end", on_step_end)


def kill_in_upload(patch: pytest.MonkeyPatch, step: int) -> None:
    """Ends this process when it has stored some of a checkpoint's files, and not all."""
    original = LocalStorage.upload_file

    def upload_file(self: LocalStorage, local: Path, key: str) -> None:
        shard = SHARD.search(str(local))
        if shard is not None and int(shard[1]) == step:
            os.kill(os.getpid(), signal.SIGKILL)
        original(self, local, key)

    patch.setattr(LocalStorage, "upload_file", upload_file)


def shard_on_cpus(patch: pytest.MonkeyPatch) -> None:
    """Lets FSDP2 run on CPUs, which torch can: the config refuses it, since accelerate would train under DDP."""
    original = AcceleratorState.__init__

    def new_state(self: Any, *args: Any, fsdp_plugin: Any = None, **kwargs: Any) -> None:
        original(self, *args, fsdp_plugin=fsdp_plugin, **kwargs)
        if fsdp_plugin is not None:
            self.distributed_type, self.fsdp_plugin = DistributedType.FSDP, fsdp_plugin
            PartialState._shared_state["distributed_type"] = DistributedType.FSDP

    patch.setattr(AcceleratorState, "__init__", new_state)
    patch.setattr(schema, "strategy_misfits", lambda *parts: ())


KILLS = {"step": kill_at_step, "upload": kill_in_upload}

if __name__ == "__main__":
    for run in json.loads(sys.argv[1]):
        with pytest.MonkeyPatch.context() as patch:
            record_wrapped(patch, Path(run["folder"]))
            shard_on_cpus(patch)
            if "kill" in run and os.environ["RANK"] == str(run["rank"]):
                KILLS[run["kill"]](patch, run["step"])
            code = main(run["words"])
            if code != 0:
                sys.exit(code)
