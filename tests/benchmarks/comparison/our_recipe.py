"""Rayscribe's side: each verb runs the same functions that `task.py` runs, and reads the clock from inside.

`prepare` and `fit` are drivers on a Ray that they start; `train`, `read` and `evaluate` run under torchrun.
"""

import argparse
import logging
import os
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import ray.data
import ray.train
import torch
import transformers.trainer
from transformers import WhisperProcessor

from tests.benchmarks.comparison.turns import Turns, training_turns
from tests.benchmarks.scale.object_server import BUCKET
from tests.benchmarks.sizes import FULL_CONTEXT_S, RANKS
from tests.s3 import AWS_VARIABLES
from trainers.config.family_table import part_for
from trainers.config.parts.data_part import DataPart
from trainers.config.parts.decode_part import GenerationPart
from trainers.config.parts.run_part import RunPart
from trainers.config.parts.scaling_part import ScalingPart
from trainers.config.parts.training_part import TrainingPart
from trainers.config.schema import TrainConfig
from trainers.data.batch_plan import bucket_edges, bucket_of
from trainers.data.features import LogMel
from trainers.data.prepared_set import ClipReader, PreparedSet
from trainers.distributed.session import LocalSession
from trainers.models.families import family_of, resolve_model
from trainers.models.recognizer import pad_labels
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit
from trainers.pipeline.on_ray.ray_engine import RayEngine
from trainers.pipeline.splits import prepare_all
from trainers.scoring.scorer import Scorer
from trainers.training.arguments import silence_libraries
from trainers.training.planning import scored_clips, scoring_options
from trainers.training.ray_workers import train_loop_per_worker
from trainers.training.trainer.planned_batches import Clips, Collator, SampleReference


def start_ray() -> None:
    """Starts a Ray of this process, once, without a dashboard; it ends with the process.

    `address="local"`: never another Ray of this machine, which would be measured in its place.
    """
    if not ray.is_initialized():
        cpus = max(os.cpu_count() or 1, RANKS + 1)
        ray.init(
            address="local",
            num_cpus=cpus,
            include_dashboard=False,
            log_to_driver=False,
            logging_level=logging.WARNING,
        )


def config_of(given: argparse.Namespace) -> TrainConfig:
    """The config of a run; training and evaluation at full context unless `--context` says otherwise."""
    folder = f"s3://{BUCKET}" if given.endpoint else str(given.speech)
    part, fields = part_for(
        {
            "name_or_path": str(given.model),
            "language": "english",
            "max_context_s": given.context or None,
            "freeze_feature_encoder": False,
        }
    )
    seconds: float | None = given.batch_seconds
    batch = {"per_device_train_batch_size": given.batch} if seconds is None else {"max_batch_duration_s": seconds}
    config = TrainConfig(
        run=RunPart(
            name=f"run-{time.time_ns()}",
            storage_path=str(given.work),
            s3_endpoint_url=given.endpoint,
            resume="never",
        ),
        data=DataPart(
            train=f"{folder}/train.csv",
            validation=f"{folder}/warm.csv",
            test=f"{folder}/{given.score}.csv" if given.verb == "evaluate" else None,
            cache_dir=str(given.cache / "first"),
            normalizer="none",
        ),
        model=part(**fields),
        training=TrainingPart(
            max_steps=given.steps,
            **batch,
            per_device_eval_batch_size=given.batch,
            learning_rate=1e-4,
            save_steps=given.steps,
            logging_steps=given.turn_steps,
            report_to=[],
        ),
        scaling=ScalingPart(num_workers=2),
    )
    config = resolve_model(config)[0]
    if isinstance(config.decode, GenerationPart):
        decode = config.decode.model_copy(update={"max_length": given.max_new_tokens})
        config = config.model_copy(update={"decode": decode})
    return config


def prepare(given: argparse.Namespace) -> None:
    """Prepares the training split on a Ray that is started here, anew in each turn; Ray's start is timed apart."""
    os.environ.update(AWS_VARIABLES)
    config = config_of(given)
    turns, number = Turns(given.turns, 0), 0
    while turns.wait():
        cache = str(given.cache / (str(number) if number else "first"))
        fresh = config.model_copy(update={"data": config.data.model_copy(update={"cache_dir": cache})})
        began = time.perf_counter()
        start_ray()
        started = time.perf_counter()
        prepared = prepare_all(fresh, RayEngine(), ("train",))["train"]
        turns.done(
            {
                "clips": prepared.summary.prepared,
                "ray_s": started - began,
                "prepare_s": time.perf_counter() - started,
                "stored_bytes": sum(path.stat().st_size for path in Path(prepared.url).iterdir()),
                "audio_s": prepared.summary.duration_s,
            }
        )
        number += 1


def read(given: argparse.Namespace) -> None:
    """Reads the training split and computes its features on two ranks: padded to 30 s, and to buckets."""
    session = LocalSession.of_this_process()
    log_mel = LogMel(WhisperProcessor.from_pretrained(given.model).feature_extractor)
    turns = Turns(given.turns, session.rank)
    while turns.wait():
        # Opened in the turn: the set is prepared in a turn before it.
        prepared = prepared_split(config_of(given), session, "train")
        durations_s = prepared.index["duration_s"].to_numpy()
        edges_s = bucket_edges(FULL_CONTEXT_S, bucketed=True)
        bucketed_s = np.asarray(edges_s)[bucket_of(durations_s, edges_s)]
        full_s = np.full(len(durations_s), FULL_CONTEXT_S)
        figures: dict[str, float] = {"clips": len(durations_s)}
        for name, longest_s in (("read_s", full_s), ("bucketed_s", bucketed_s)):
            session.barrier("reading")
            began = time.perf_counter()
            read_share(ClipReader(prepared, cache_bytes=0), log_mel, longest_s, session, given.batch)
            session.barrier("reading")
            figures[name] = time.perf_counter() - began
        turns.done(figures)


def read_share(reader: ClipReader, log_mel: LogMel, edges_s: np.ndarray, session: LocalSession, size: int) -> None:
    """One rank's features, batch by batch, as SpeechTrainer makes them."""
    share = np.arange(len(edges_s))[session.rank :: session.world_size]
    order = share[np.argsort(edges_s[share], kind="stable")]
    labels: Any = [[0]] * len(edges_s)
    clips, collate = Clips(reader, labels), Collator(partial(pad_labels, start_id=0, pad_id=0))
    for start in range(0, len(order), size):
        rows = order[start : start + size]
        edge_s = float(edges_s[rows].max())
        features(log_mel, collate([clips[SampleReference(int(row), edge_s)] for row in rows]))


def features(log_mel: LogMel, batch: dict[str, Any]) -> torch.Tensor:
    """input_features (B, mel bins, frames), as SpeechTrainer makes them of a collated batch."""
    clips = [clip[:length] for clip, length in zip(batch["samples"], batch["sizes"], strict=True)]
    return log_mel.inputs(clips, batch["edge_s"])["input_features"]


def train_in_turns(turns: dict[str, Any], loop_config: dict[str, Any]) -> str | None:
    """train_loop_per_worker, in turns."""
    take_turns(ray.train.get_context().get_world_rank(), **turns)
    return train_loop_per_worker(loop_config)


def take_turns(rank: int, address: str, **turns: Any) -> None:
    """Makes every Trainer of this process train in turns."""
    callbacks: list[Any] = transformers.trainer.DEFAULT_CALLBACKS
    callbacks.append(training_turns(address, rank, **turns))


def train(given: argparse.Namespace) -> None:
    """A whole run under torchrun, without Ray."""
    session, config = LocalSession.of_this_process(), config_of(given)
    take_turns(session.rank, **turns_of(given))
    name = session.broadcast(lambda: config.run.name, "naming the run")
    fit(config.model_copy(update={"run": config.run.model_copy(update={"name": name})}), LocalEngine())


def fit_on_ray(given: argparse.Namespace) -> None:
    """A whole run on Ray: Ray Data prepares, a TorchTrainer's workers train."""
    config = config_of(given)
    start_ray()
    fit(config, RayEngine(train_loop=partial(train_in_turns, turns_of(given))))


def turns_of(given: argparse.Namespace) -> dict[str, Any]:
    """Arguments of `take_turns`."""
    turns = {"address": given.turns, "steps": given.turn_steps, "step_clips": RANKS * given.batch}
    if given.batch_seconds is None:
        return turns
    with (given.speech / "train.csv").open(encoding="utf-8") as file:
        return {**turns, "epoch_clips": sum(1 for _ in file) - 1}


def evaluate(given: argparse.Namespace) -> None:
    """Scores the test split on two ranks in every turn; one batch of each rank goes before, uncounted."""
    session, config = LocalSession.of_this_process(), config_of(given)
    silence_libraries()
    recognizer = family_of(config.model).load_recognizer(config.model, None, 0)
    options = scoring_options(config, recognizer.limits)
    warm, scorer = (
        Scorer(
            scored_clips(config, prepared_split(config, session, split), recognizer, split),
            recognizer,
            session,
            cache_bytes=0,
        )
        for split in ("validation", "test")
    )
    warm.score(options)
    turns = Turns(given.turns, session.rank)
    while turns.wait():
        began = time.perf_counter()
        result = scorer.score(options)
        seconds = time.perf_counter() - began
        turns.done({"clips": len(result.utterances), "seconds": seconds, "wer": result.score.rates["wer"]})


def prepared_split(config: TrainConfig, session: LocalSession, split: str) -> PreparedSet:
    """The split, prepared by rank 0 where it is not yet."""
    engine = LocalEngine()
    prepared: PreparedSet = session.broadcast(lambda: prepare_all(config, engine, (split,))[split], "preparing")
    return prepared


VERBS: dict[str, Callable[[argparse.Namespace], None]] = {
    "prepare": prepare,
    "read": read,
    "train": train,
    "fit": fit_on_ray,
    "evaluate": evaluate,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=VERBS)
    for name in ("model", "speech", "cache", "work"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--turns", required=True, help="address of the benchmark")
    parser.add_argument("--score", default="score", help="name of the manifest to score")
    parser.add_argument("--endpoint", help="of the S3 whose bucket has the clips, in place of their folder")
    for name in ("batch", "steps", "turn-steps", "max-new-tokens"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--batch-seconds", type=float, help="padded seconds of a forward pass, in place of --batch")
    parser.add_argument("--context", type=int, default=0, help="seconds of the bucketed context; 0: the full one")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one verb."""
    given = _parser().parse_args(arguments)
    VERBS[given.verb](given)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
