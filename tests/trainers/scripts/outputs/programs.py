"""What programs of others write, as they write it, and a board in one process."""

import json
import threading
import time
import zipfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from trainers.run_folder.layout import RunFolder
from trainers.scripts.outputs.layouts import Watch, layouts_for
from trainers.scripts.outputs.parts import NodeOutput


class DictBoard:
    """A board for threads of one process."""

    def __init__(self) -> None:
        self._values: dict[str, Any] = {}
        self._lock = threading.Lock()

    def post(self, topic: str, value: Any) -> None:
        with self._lock:
            self._values[topic] = value

    def posted(self, topic: str) -> Any | None:
        with self._lock:
            return self._values.get(topic)


def node_output(
    folder: Path,
    run: RunFolder,
    board: DictBoard,
    *,
    node: int = 0,
    others: Sequence[int] = (),
    pattern: str = "auto",
    say: Callable[[str], None] = print,
    is_gone: Callable[[int], bool] = lambda node: False,
    clock: Callable[[], float] = time.monotonic,
) -> NodeOutput:
    """The output folder of a node in the first attempt of a run."""
    return NodeOutput(
        folder=folder,
        layouts=layouts_for(pattern),
        run_folder=run,
        attempt=1,
        board=board,
        node=node,
        others=others,
        say=say,
        is_gone=is_gone,
        watch=Watch(clock),
    )


def save_archive(path: Path, content: bytes) -> None:
    """Writes a zip archive, as torch.save does."""
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("data.pkl", content)


def trainer_state(step: int, *, wer: float | None = None, max_steps: int = 40) -> dict[str, Any]:
    """The state of transformers' Trainer after a step, whose evaluation there has this WER, if any."""
    history: list[dict[str, Any]] = [{"epoch": step / 10, "learning_rate": 1e-4, "loss": 5.0 / step, "step": step}]
    if wer is not None:
        history.append(
            {"epoch": step / 10, "eval_loss": 1.5, "eval_runtime": 3.1, "eval_samples_per_second": 9.0, "step": step}
            | {"eval_wer": wer}
        )
    return {"epoch": step / 10, "global_step": step, "max_steps": max_steps, "log_history": history}


def begin_trainer_checkpoint(folder: Path, step: int) -> Path:
    """A checkpoint of transformers' Trainer without the file that is written last."""
    path = folder / f"checkpoint-{step}"
    path.mkdir(parents=True)
    (path / "model.safetensors").write_bytes(bytes([step % 256]) * 100 * step)
    save_archive(path / "optimizer.pt", b"o" * step)
    save_archive(path / "rng_state_0.pth", b"r")
    return path


def write_trainer_checkpoint(folder: Path, step: int, *, wer: float | None = None) -> Path:
    """A complete checkpoint of transformers' Trainer."""
    path = begin_trainer_checkpoint(folder, step)
    (path / "trainer_state.json").write_text(json.dumps(trainer_state(step, wer=wer), indent=2) + "\n")
    return path


def write_brain_checkpoint(folder: Path, step: int, *, wer: float | None = None) -> Path:
    """A complete checkpoint of SpeechBrain, in the order in which it writes one."""
    path = folder / "save" / f"CKPT+2026-01-01+00-00-{step:02}+00"
    path.mkdir(parents=True)
    meta = {"unixtime": 1.7e9 + step, "end-of-epoch": True} | ({} if wer is None else {"WER": wer})
    (path / "CKPT.yaml").write_text(f"# yamllint disable\n{yaml.dump(meta)}")
    save_archive(path / "model.ckpt", b"m" * step)
    (path / "counter.ckpt").write_text("3")
    (path / "brain.ckpt").write_text(yaml.dump({"step": 1, "avg_train_loss": 0.5, "optimizer_step": step}))
    save_archive(path / "optimizer.ckpt", b"o" * step)
    return path
