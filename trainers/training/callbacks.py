"""Trainer callbacks for progress, metrics.jsonl, uploads of checkpoints to the run folder, and reports to Ray."""

import math
import queue
import random
import shutil
import time
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import TrainerCallback

from trainers.config.parts.conditions import VALIDATION
from trainers.data.batch_plan import BatchPlan
from trainers.distributed.console.events import SHOWN_EVERY_S, TRAIN, Logged, Stage, Stepped, Validated
from trainers.distributed.session import Session
from trainers.errors import FencedError, StorageError
from trainers.metrics.known_metrics import known_metrics
from trainers.models.recognizer import Regularizer
from trainers.run_folder.attempt_status import MAX_WERS, Phase, StatusWriter, Wers, best_of
from trainers.run_folder.checkpoints import REFUSED, UNWRITTEN_METRICS, Uploader
from trainers.run_folder.fencing import GroupWriter
from trainers.run_folder.journal import Checkpoint
from trainers.run_folder.layout import ATTEMPTS, CHECKPOINTS, METRICS, POINTER, RAY, at_full_context, now
from trainers.run_folder.staging import ONLY_PART, NodePart, stage
from trainers.scoring.scorer import SplitScore
from trainers.storage.json_files import finite, to_json, to_jsonl

TRAINING = Stage(TRAIN, "training", is_told=False)


def validation_metrics(result: SplitScore) -> dict[str, float]:
    """Returns the values of a validation score, and of its full context, under the names that rank checkpoints."""
    full = result.full_context.values if result.full_context is not None else {}
    own = {f"eval_{name}": value for name, value in result.values.items()}
    return {**own, **{f"eval_full_context_{name}": value for name, value in full.items()}}


def metrics_of(totals: Mapping[str, Any]) -> dict[str, float]:
    """Returns the content of evaluation/<split>.json of a validation under the names of `validation_metrics`."""
    full = totals.get("full_context") or {}
    own = {name: totals.get(name) for name in (*known_metrics(), "loss")} | totals.get("metrics", {})
    of_full = {f"full_context_{name}": full.get(name) for name in (*known_metrics(), "loss")} | {
        f"full_context_{name}": value for name, value in full.get("metrics", {}).items()
    }
    return {f"eval_{name}": value for name, value in (own | of_full).items() if value is not None}


class MetricsLog:
    """Writes a worker group's metrics in a thread, so that a storage error delays no step; it is reported once.

    A line that could not be written is retried with the next one; until then, it is stored with checkpoints (`keep`)
    for a group that continues from them. After each line, checks whether the group is fenced, so that it ends.
    """

    def __init__(
        self, writer: GroupWriter, log: Callable[[str], None], accepted: Callable[[str], None] = lambda line: None
    ):
        """`accepted` is called with each line that counts."""
        self._writer, self._log, self._accepted = writer, log, accepted
        self.attempt = writer.attempt
        self._pool = ThreadPoolExecutor(max_workers=1, thread_name_prefix="metrics")
        # Changed only by the thread, and read only after waiting for it.
        self._unwritten: list[str] = []
        self._told = False
        self._failed: StorageError | None = None
        self._fenced: FencedError | None = None

    def write(self, line: dict[str, Any]) -> None:
        """Adds a line after the previous ones; raises FencedError if another attempt has taken over."""
        self._refuse_if_fenced()
        # A loss or a norm may be infinite for a step, such as before fp16 lowers the loss scale.
        content = {name: finite(value) for name, value in line.items()}
        self._pool.submit(self._append, to_json(content, METRICS))

    def flush(self) -> None:
        """Waits until all lines are written, if the storage accepts them; raises as `write`."""
        self._pool.submit(self._append).result()
        self._refuse_if_fenced()

    def keep(self, checkpoint: Path) -> None:
        """Writes all lines; those that the storage does not accept go into a checkpoint's folder. Raises as `write`."""
        self.flush()
        if self._unwritten:
            (checkpoint / UNWRITTEN_METRICS).write_text("".join(f"{line}\n" for line in self._unwritten))

    def take_over(self, checkpoint: Path) -> None:
        """Writes the lines that an earlier group has stored with the checkpoint to resume from; raises as `write`."""
        kept = checkpoint / UNWRITTEN_METRICS
        if kept.is_file():
            self._pool.submit(self._append, *kept.read_text().splitlines())
            self.flush()

    def complete(self) -> None:
        """Writes all lines of a group that has completed the last step; raises as `write`, and StorageError.

        Lines that the storage does not accept are stored with the last checkpoint.
        """
        self.flush()
        if self._failed is not None:
            raise self._failed

    def _refuse_if_fenced(self) -> None:
        if self._fenced is not None:
            raise self._fenced

    def _append(self, *lines: str) -> None:
        self._unwritten += lines
        self._failed = None
        try:
            while self._unwritten:
                # After an error, the line may exist already; `deduplicate` keeps it once.
                self._writer.folder.storage.append_line(self._writer.group.metrics_key, self._unwritten[0])
                self._writer.check()
                self._accepted(self._unwritten.pop(0))
        except FencedError as error:
            self._fenced = error
        except StorageError as error:
            self._failed = error
            if not self._told:
                self._log(
                    f"{METRICS} cannot be written now; training continues, and the lines are written later: {error}"
                )
            self._told = True


class ProgressReport(TrainerCallback):
    """Prints progress and writes metrics on the main process; does nothing on the other ranks."""

    def __init__(
        self,
        session: Session,
        log: MetricsLog,
        plan: BatchPlan,
        durations_s: Any,
        status: StatusWriter,
        metrics: Iterable[str] = (),
        wers: Iterable[Wers] = (),
        regularizer: Regularizer | None = None,
    ):
        """Creates the report; `wers` are the WERs of the run's validations so far."""
        self._session, self._plan, self._wers = session, plan, [*wers]
        self._log, self._status, self._metrics = log, status, tuple(metrics)
        self._durations_s, self._terms = durations_s, [] if regularizer is None else [regularizer.name]
        self._since = self._shown_s = 0.0
        self._steps, self._clips, self._audio_s, self._padded_s, self._speed = 0, 0, 0.0, 0.0, 0.0

    def base(self, totals: Mapping[str, Any]) -> None:
        """Writes the validation of the weights that the run begins with as that of step 0."""
        self._write(0, 0.0, metrics_of(totals))

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.show_from_main(TRAINING)
        self._restart()

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Counts the utterances of the step, and requests a score after the last step."""
        batch = self._plan.batch(state.global_step - 1)
        self._steps += 1
        self._clips += len(batch.rows)
        self._audio_s += float(self._durations_s[batch.rows].sum())
        self._padded_s += len(batch.rows) * batch.edge_s
        left = state.max_steps - state.global_step
        eta_s = left / self._speed if self._speed else None
        self._status.update(Phase.TRAINING, step=state.global_step, max_steps=state.max_steps, eta_s=eta_s)
        if time.monotonic() - self._shown_s >= SHOWN_EVERY_S:
            self._shown_s = time.monotonic()
            self._session.show_from_main(Stepped(state.global_step, state.max_steps, eta_s))
        if left <= 0:
            control.should_evaluate = True

    def scoring(self) -> None:
        self._session.show_from_main(Stage(VALIDATION, "scoring", is_told=False))
        self._status.update(Phase.TRAINING, detail="scoring validation")

    def validated(self, step: int, max_steps: int, epoch: float, metrics: Mapping[str, float]) -> None:
        if not self._session.is_main_process:
            return
        rates = " · ".join(f"{name.upper()} {metrics[f'eval_{name}']:.2f}%" for name in known_metrics())
        full = {"full_context_wer": metrics["eval_full_context_wer"]} if "eval_full_context_wer" in metrics else {}
        full_context = "".join(f" · WER {wer:.2f}% at the full context" for wer in full.values())
        further = "".join(f" · {name} {metrics[f'eval_{name}']:.4g}" for name in self._metrics)
        line = f"step {step}/{max_steps} · validation {rates}{further}{full_context}"
        by_name = {name: metrics[f"eval_{name}"] for name in known_metrics()} | full
        self._session.show_from_main(Validated(step, max_steps, by_name, line))
        wer = metrics["eval_wer"]
        self._wers.append((wer, full.get("full_context_wer")))
        scores = {"wer": wer, "wers": [wer for wer, _ in self._wers[-MAX_WERS:]], **best_of(self._wers), **full}
        self._status.update(Phase.TRAINING, step=step, max_steps=max_steps, **scores)
        self._write(step, epoch, metrics)

    def on_evaluate(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._session.show_from_main(TRAINING)
        self._restart()

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Excludes saving from the training speed; stores lines that the log lacks with the checkpoint."""
        self._log.keep(Path(args.output_dir) / f"checkpoint-{state.global_step}")
        self._restart()

    def on_train_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._log.flush()

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        logs: dict[str, float] = kwargs["logs"]
        if not self._session.is_main_process:
            return
        if "eval_wer" in logs:
            self.validated(state.global_step, state.max_steps, state.epoch or 0.0, logs)
        elif "loss" in logs:
            speed = self._measure()
            eta_s = (state.max_steps - state.global_step) / max(self._speed, 1e-9)
            rates = (speed["clips_per_s"], speed["audio_s_per_s"])
            terms = {name: logs[name] for name in self._terms}
            event = Logged(state.global_step, state.max_steps, state.epoch, logs["loss"], *rates, eta_s, terms)
            self._session.show_from_main(event)
            self._status.update(Phase.TRAINING, loss=logs["loss"])
            self._write(state.global_step, state.epoch or 0.0, {**logs, **speed})
            if not math.isfinite(logs["loss"]):
                # Training may end after this line.
                self._log.flush()

    def _measure(self) -> dict[str, float]:
        elapsed = max(time.monotonic() - self._since, 1e-9)
        self._speed = self._steps / elapsed
        measured = {
            "clips_per_s": round(self._clips / elapsed, 3),
            "audio_s_per_s": round(self._audio_s / elapsed, 3),
            # Clips that are slowed down are longer than these durations.
            "padding": round(max(0.0, 1 - self._audio_s / self._padded_s), 4) if self._padded_s else 0.0,
        }
        self._restart()
        return measured

    def _restart(self) -> None:
        self._since = time.monotonic()
        self._steps, self._clips, self._audio_s, self._padded_s = 0, 0, 0.0, 0.0

    def _write(self, step: int, epoch: float, numbers: Mapping[str, float]) -> None:
        line = {"step": step, "epoch": round(epoch, 4), "attempt": self._log.attempt, "time": now()}
        self._log.write({**line, **numbers})


class DeleteResumeFiles(TrainerCallback):
    """Deletes the local checkpoint from which training resumes, once every rank has loaded it."""

    def __init__(self, session: Session, local: Path):
        self._session, self._local = session, local

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Runs after the Trainer has loaded model and optimizer."""
        self._session.barrier("loading the checkpoint")
        if self._session.local_rank == 0:
            shutil.rmtree(self._local)


class KeepCheckpoints(TrainerCallback):
    """Passes each checkpoint that the Trainer has written, with its score, to the uploader."""

    def __init__(self, session: Session, uploader: Uploader, attempt: int, group: str, *, sharded: bool):
        """Created on every rank. The main process uploads; of sharded checkpoints, the first rank of each node does."""
        self._session, self._uploader, self._attempt, self._group = session, uploader, attempt, group
        self._sharded = sharded
        self._part: NodePart | None = ONLY_PART if session.is_main_process else None
        if sharded:
            locals_ = session.gather(session.local_rank, "counting the nodes")
            first_ranks = [rank for rank, local_rank in enumerate(locals_) if local_rank == 0]
            if session.rank in first_ranks:
                self._part = NodePart(first_ranks.index(session.rank), len(first_ranks))
        # A part that is stored, while its checkpoint may not be in the journal yet.
        self._stored: Path | None = None
        self._scored: tuple[int, SplitScore] | None = None
        self.newest: str | None = None

    def scored(self, step: int, result: SplitScore) -> None:
        """Sets the score of a step, before its checkpoint is saved."""
        self._scored = (step, result)

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Stages and uploads the checkpoint of this step; it has no score if it is saved on a stop request."""
        if self._sharded:
            self._session.barrier("writing the checkpoint")
        folder, step = None, state.global_step
        if self._part is not None:
            folder = self._stage(Path(args.output_dir) / f"checkpoint-{step}", step, self._part)
        self._wait_for_parts()
        if folder is not None and self._session.is_main_process:
            self._uploader.submit(folder)
        # Ranks wait here, where a long wait is logged; otherwise they would wait in the next step's collective.
        self._session.barrier("uploading the checkpoint before this one")
        if folder is not None and not self._session.is_main_process:
            self._delete_uploaded_part()
            self._uploader.submit(folder)
            self._stored = folder

    def restage_with_score(self, checkpoint: Path, step: int) -> None:
        """Uploads a checkpoint again, now with a score."""
        if self._session.is_main_process:
            written = checkpoint.with_name(f"checkpoint-{step}")
            shutil.copytree(checkpoint, written)
            self._uploader.submit(self._stage(written, step, ONLY_PART))

    def finish(self) -> None:
        """Waits until the last checkpoint is uploaded; raises as `Uploader.wait`. Every rank calls this."""
        self._wait_for_parts()
        self._session.broadcast(self._uploader.wait, "uploading the last checkpoint")
        self._delete_uploaded_part()

    def _wait_for_parts(self) -> None:
        """Waits on each node but the first until its part is stored; an error on one node is raised on every rank."""
        if not self._sharded:
            return
        with self._session.failing_together("uploading the shards of the checkpoint before this one"):
            if not self._session.is_main_process:
                self._uploader.wait()

    def _delete_uploaded_part(self) -> None:
        """Deletes the part that was kept on this node until its checkpoint was in the journal."""
        if self._stored is not None:
            shutil.rmtree(self._stored)
            self._stored = None

    def _stage(self, written: Path, step: int, part: NodePart) -> Path:
        folder = written.with_name(f"{written.name}-a{self._attempt}-{self._group}")
        written.rename(folder)
        metrics: dict[str, float] = {}
        if self._scored is not None and self._scored[0] == step:
            metrics = validation_metrics(self._scored[1])
            if part.number == 0:
                write_validation(folder, self._scored[1])
        stage(folder, step=step, attempt=self._attempt, metrics=metrics, part=part)
        self.newest = folder.name
        return folder


def write_validation(folder: Path, result: SplitScore) -> None:
    """Writes a validation score into its checkpoint; that of the best one becomes part of the run's result."""
    full = result.full_context
    for name, score in ((VALIDATION, result), *([(at_full_context(VALIDATION), full)] if full is not None else [])):
        totals, lines = f"{name}.json", f"{name}.jsonl"
        (folder / totals).write_text(to_json(score.to_json_dict(), totals, indent=2), encoding="utf-8")
        rows = (item.to_json_dict() for item in score.utterances)
        (folder / lines).write_text(to_jsonl(rows, lines), encoding="utf-8")


class CheckpointReports(TrainerCallback):
    """Reports each complete checkpoint once to Ray Train; does nothing without it.

    A report is a barrier, so the main process decides and all ranks follow. Ray's Result and dashboard show checkpoints
    in Ray's folder of one attempt, but the files are in `checkpoints/`, where the run's journal decides which are kept.
    So a pointer is reported: <checkpoint>/pointer.json in Ray's folder, with the URL. Ray keeps the same checkpoints as
    the journal, by the same config, but deletes only pointers.

    A checkpoint without a score, saved on a stop request, is not reported, since Ray would rank it best or worst.
    """

    def __init__(self, session: Session, writer: GroupWriter, score_attribute: str):
        self._session, self._writer, self._score_attribute = session, writer, score_attribute
        self._uploaded: queue.SimpleQueue[Checkpoint] = queue.SimpleQueue()
        self._known: set[str] | None = session.broadcast(session.reported_pointers, "asking Ray for checkpoints")

    def report_kept(self) -> None:
        """Reports checkpoints of earlier attempts and worker groups. Every rank calls this, before training."""
        if self._known is not None:
            self._report(self._session.broadcast(self._kept, "reporting earlier checkpoints to Ray"))

    def add(self, checkpoint: Checkpoint) -> None:
        """Adds a checkpoint that the main process has uploaded; thread-safe.

        If the pointer cannot be written, Ray does not show the checkpoint; the run continues.
        """
        if self._known is None or not self._is_scored(checkpoint):
            return
        try:
            self._write_pointer(checkpoint)
        except StorageError as error:
            self._session.show_from_main(f"Ray does not show {checkpoint.name}: {error}")
            return
        self._uploaded.put(checkpoint)

    def report_new(self) -> None:
        """Reports checkpoints that were added since the last call. Every rank calls this, at the same step."""
        if self._known is not None:
            added = self._session.broadcast(
                lambda: [self._uploaded.get() for _ in range(self._uploaded.qsize())], "reporting checkpoints to Ray"
            )
            self._report(added)

    def on_log(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        """Reports checkpoints that were uploaded since the last call; all ranks log at the same step."""
        self.report_new()

    def _kept(self) -> list[Checkpoint]:
        assert self._known is not None
        held = self._writer.check().checkpoints
        kept = [item for item in held if item.name not in self._known and self._is_scored(item)]
        for checkpoint in kept:
            self._write_pointer(checkpoint)
        return kept

    def _is_scored(self, checkpoint: Checkpoint) -> bool:
        return self._score_attribute in checkpoint.metrics and not checkpoint.metrics.get(REFUSED)

    def _write_pointer(self, checkpoint: Checkpoint) -> None:
        folder, attempt = self._writer.folder, self._writer.attempt
        key = f"{ATTEMPTS}/{attempt}/{RAY}/{folder.ray_run_name(attempt)}/{checkpoint.name}/{POINTER}"
        folder.write_json(key, {"uri": folder.storage.url(f"{CHECKPOINTS}/{checkpoint.name}"), "step": checkpoint.step})

    def _report(self, checkpoints: list[Checkpoint]) -> None:
        for item in checkpoints:
            self._session.report({**item.metrics, "step": item.step}, pointer=item.name)


class Reseed(TrainerCallback):
    """Seeds random numbers of each step from (seed, step, rank), so that a resumed run draws the same values."""

    def __init__(self, seed: int, rank: int):
        self._seed, self._rank = seed, rank

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        seed = int(np.random.SeedSequence([self._seed, state.global_step, self._rank]).generate_state(1)[0])
        random.seed(seed)
        np.random.seed(seed)
        torch.manual_seed(seed)
