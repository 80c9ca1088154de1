"""What a training run tells: one line of progress, numbers in metrics.jsonl, checkpoints on their way home."""

import json
import time
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

from transformers import TrainerCallback

from trainers.checkpoints import Uploader, stage
from trainers.data.batches import BatchPlan
from trainers.errors import StorageError
from trainers.progress import format_duration
from trainers.run_folder import METRICS, RunFolder, now
from trainers.scoring.evaluate import SplitScore
from trainers.session import Session

VALIDATION = "validation"


def validation_metrics(result: SplitScore) -> dict[str, float]:
    """A validation score under the names that checkpoints are ranked by."""
    score = result.score
    assert score.wer is not None and score.cer is not None, "a score without a word is refused by the scorer"
    return {"eval_wer": score.wer, "eval_cer": score.cer, "eval_ser": score.ser, "eval_loss": result.loss}


class MetricsLog:
    """metrics.jsonl, written in a thread: a slow or absent storage costs training nothing, and is told once."""

    def __init__(self, folder: RunFolder, say: Callable[[str], None]):
        """Starts no thread yet."""
        self._folder, self._say = folder, say
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")
        self._last: Future[None] | None = None
        self._told = False

    def write(self, line: dict[str, Any]) -> None:
        """Adds a line, after those before it."""
        self._last = self._pool.submit(self._append, json.dumps(line))

    def flush(self) -> None:
        """Waits until all lines are written."""
        if self._last is not None:
            self._last.result()

    def _append(self, line: str) -> None:
        try:
            self._folder.storage.append_line(METRICS, line)
        except StorageError as error:
            if not self._told:
                self._say(f"{METRICS} cannot be written, and training goes on: {error}")
            self._told = True


class ProgressReport(TrainerCallback):
    """Speaks and writes for all ranks: the leading one does, the others are silent."""

    def __init__(
        self,
        session: Session,
        folder: RunFolder,
        plan: BatchPlan,
        durations_s: Any,
        attempt: int,
        clock: Callable[[], float] = time.monotonic,
    ):
        """Takes what the lines are made of.

        Args:
            session: This rank.
            folder: Where metrics.jsonl is.
            plan: Says which utterances each step had.
            durations_s: Duration of each position of the index, seconds.
            attempt: Number of this attempt.
            clock: Seconds from any origin.
        """
        self._session, self._plan = session, plan
        self._log = MetricsLog(folder, session.say)
        self._durations_s, self._attempt, self._clock = durations_s, attempt, clock
        self._since = 0.0
        self._steps, self._clips, self._audio_s, self._speed = 0, 0, 0.0, 0.0

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Starts the clock."""
        self._restart()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Counts what the step had, and asks for a score at the very last one."""
        rows = self._plan.batch(state.global_step - 1).rows
        self._steps += 1
        self._clips += len(rows)
        self._audio_s += float(self._durations_s[rows].sum())
        if state.global_step >= state.max_steps:
            control.should_evaluate = True

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leaves scoring out of the training speed."""
        self._restart()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Leaves saving out of the training speed; a checkpoint never has more steps than the log."""
        self._log.flush()
        self._restart()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Waits for the last line."""
        self._log.flush()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Says and writes a line for a loss or a score."""
        logs: dict[str, float] = kwargs["logs"]
        if not self._session.leads:
            return
        if "eval_wer" in logs:
            rates = " · ".join(f"{name.upper()} {logs[f'eval_{name}']:.2f}%" for name in ("wer", "cer", "ser"))
            self._session.say(f"step {state.global_step}/{state.max_steps} · validation {rates}")
            self._write(state, logs)
        elif "loss" in logs:
            speed = self._measure()
            rest = format_duration((state.max_steps - state.global_step) / max(self._speed, 1e-9))
            self._session.say(
                f"step {state.global_step}/{state.max_steps} · epoch {state.epoch:.1f} · loss {logs['loss']:.4f} · "
                f"{speed['clips_per_s']:.1f} clips/s · {speed['audio_s_per_s']:.1f} audio s/s · ETA {rest}"
            )
            self._write(state, {**logs, **speed})

    def _measure(self) -> dict[str, float]:
        elapsed = max(self._clock() - self._since, 1e-9)
        self._speed = self._steps / elapsed
        measured = {
            "clips_per_s": round(self._clips / elapsed, 3),
            "audio_s_per_s": round(self._audio_s / elapsed, 3),
        }
        self._restart()
        return measured

    def _restart(self) -> None:
        self._since = self._clock()
        self._steps, self._clips, self._audio_s = 0, 0, 0.0

    def _write(self, state: Any, numbers: dict[str, float]) -> None:
        line = {
            "step": state.global_step,
            "epoch": round(state.epoch or 0.0, 4),
            "attempt": self._attempt,
            "time": now(),
        }
        self._log.write({**line, **numbers})


class KeepCheckpoints(TrainerCallback):
    """Hands each checkpoint that the Trainer wrote, with its score, to the uploader."""

    def __init__(self, session: Session, uploader: Uploader | None, attempt: int, group: str):
        """Takes where checkpoints go.

        Args:
            session: This rank.
            uploader: On the leading rank; None on the others.
            attempt: Number of this attempt.
            group: Name of this worker group.
        """
        self._session, self._uploader, self._attempt, self._group = session, uploader, attempt, group
        self._scored: tuple[int, SplitScore] | None = None

    def scored(self, step: int, result: SplitScore) -> None:
        """Takes the score of a step, which comes before its checkpoint."""
        self._scored = (step, result)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stages the checkpoint of this step."""
        if self._uploader is None:
            return
        assert self._scored is not None and self._scored[0] == state.global_step, "a checkpoint without its score"
        result = self._scored[1]
        written = Path(args.output_dir) / f"checkpoint-{state.global_step}"
        folder = written.with_name(f"{written.name}-a{self._attempt}-{self._group}")
        written.rename(folder)
        write_validation(folder, result)
        stage(folder, step=state.global_step, attempt=self._attempt, metrics=validation_metrics(result))
        self._uploader.submit(folder)


def write_validation(folder: Path, result: SplitScore) -> None:
    """Writes a checkpoint's score on the validation set, to be shown beside the test score of the best."""
    totals = {**result.score.to_json_dict(), "loss": result.loss}
    (folder / f"{VALIDATION}.json").write_text(json.dumps(totals, indent=2))
    lines = (json.dumps(item.to_json_dict(), ensure_ascii=False) + "\n" for item in result.utterances)
    (folder / f"{VALIDATION}.jsonl").write_text("".join(lines), encoding="utf-8")
