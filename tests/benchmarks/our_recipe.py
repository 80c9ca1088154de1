"""Rayscribe's side: each verb runs the same functions that `task.py` runs, and reads the clock from inside.

`prepare` and `fit` are drivers on a Ray that they start; `train`, `read` and `evaluate` run under torchrun.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import ray.data  # noqa: F401  # a rate leaves imports out
import torch
from transformers import WhisperForConditionalGeneration, set_seed

from tests.benchmarks.processes import write_figures
from trainers.cluster import connected
from trainers.config import DataPart, ModelPart, RunPart, ScalingPart, TrainConfig, TrainingPart
from trainers.data.batches import bucket_edges, bucket_of
from trainers.data.features import LogMel
from trainers.data.prepared import ClipReader, PreparedSet
from trainers.ray_engine import RayEngine
from trainers.run import LoneEngine, fit, prepare_all
from trainers.run_folder import METRICS, RunFolder
from trainers.scoring.evaluate import Scorer
from trainers.seq2seq import load_recogniser, write_scratch_description
from trainers.session import LoneSession
from trainers.trainer import Clips, Collator, Request
from trainers.worker import be_quiet, cache_bytes, scoring_options

FULL_CONTEXT_S = 30.0


def config_of(given: argparse.Namespace) -> TrainConfig:
    """The config of a run; training and evaluation at full context unless `--context` says otherwise."""
    folder = given.speech
    return TrainConfig(
        run=RunPart(name=f"run-{time.time_ns()}", storage_path=str(given.work), resume="never"),
        data=DataPart(
            train=str(folder / "train.csv"),
            validation=str(folder / "warm.csv"),
            test=str(folder / "score.csv") if given.verb == "evaluate" else None,
            cache_dir=str(given.cache),
            do_normalize_eval=False,
        ),
        model=ModelPart(name_or_path=str(given.model), language="english", max_context_s=given.context or None),
        training=TrainingPart(
            max_steps=given.steps,
            per_device_train_batch_size=given.batch,
            per_device_eval_batch_size=given.batch,
            learning_rate=1e-4,
            save_steps=given.steps,
            logging_steps=given.log_every,
            generation_max_length=given.max_new_tokens,
            report_to=[],
        ),
        scaling=ScalingPart(num_workers=2),
    )


def make_model(given: argparse.Namespace) -> dict[str, Any]:
    """Writes a Whisper of new weights, 30 s of context, that both sides open with from_pretrained."""
    sizes = json.loads(given.sizes)
    names = ("d_model", "encoder_layers", "decoder_layers")
    part = ModelPart(
        init="scratch", language="english", vocab_size=400, attention_heads=3, **{name: sizes[name] for name in names}
    )
    texts = [line.split(",")[1] for line in (given.speech / "train.csv").read_text().splitlines()[1:]]
    write_scratch_description(given.model, texts, part)
    network = load_recogniser(part, given.model, seed=0).model
    network.save_pretrained(given.model)
    return {"weights": sum(weight.numel() for weight in network.parameters())}


def prepare(given: argparse.Namespace) -> dict[str, Any]:
    """Prepares the training split on a Ray that is started here; its start is timed apart."""
    config = config_of(given)
    began = time.perf_counter()
    with connected(config):
        started = time.perf_counter()
        prepared = prepare_all(config, RayEngine(), ("train",))["train"]
        ended = time.perf_counter()
        # What a worker needs a moment for happens once a cluster; the second time it has happened.
        again = config.model_copy(update={"data": config.data.model_copy(update={"cache_dir": f"{given.cache}-warm"})})
        warm = time.perf_counter()
        prepare_all(again, RayEngine(), ("train",))
        warm_s = time.perf_counter() - warm
    summary = prepared.summary
    return {
        "clips": summary.prepared,
        "ray_s": started - began,
        "prepare_s": ended - started,
        "warm_s": warm_s,
        "stored_bytes": sum(path.stat().st_size for path in Path(prepared.url).iterdir()),
        "audio_s": summary.duration_s,
    }


def read(given: argparse.Namespace) -> dict[str, Any]:
    """Reads the prepared training split and computes its features on two ranks, padded to 30 s and to buckets."""
    session, config = LoneSession.of_this_process(), config_of(given)
    prepared = _prepared(config, session, "train")
    recogniser = load_recogniser(config.model, None, 0)
    extractor = recogniser.processor.feature_extractor
    durations_s = prepared.index["duration_s"].to_numpy()
    share = np.arange(len(durations_s))[session.rank :: session.world_size]
    edges = bucket_edges(FULL_CONTEXT_S, bucketed=True)
    bucketed_s = np.asarray(edges)[bucket_of(durations_s, edges)]
    figures: dict[str, Any] = {"clips": len(durations_s)}
    for name, edges_s in (("read_s", np.full(len(durations_s), FULL_CONTEXT_S)), ("bucketed_s", bucketed_s)):
        clips = Clips(ClipReader(prepared, cache_bytes=cache_bytes(config)), [[0]] * len(durations_s))
        log_mel, collate = LogMel(extractor), Collator(0, 0)
        session.barrier()
        began = time.perf_counter()
        order = share[np.argsort(edges_s[share], kind="stable")]
        for start in range(0, len(order), given.batch):
            rows = order[start : start + given.batch]
            edge_s = float(edges_s[rows].max())
            features(log_mel, collate([clips[Request(int(row), edge_s)] for row in rows]))
        session.barrier()
        figures[name] = time.perf_counter() - began
    return figures


def features(log_mel: LogMel, batch: dict[str, Any]) -> torch.Tensor:
    """input_features (B, mel bins, frames), as SpeechTrainer makes them of a collated batch."""
    frames = log_mel.frames(batch["edge_s"])
    pairs = zip(batch["samples"], batch["lengths"], strict=True)
    return torch.stack([log_mel(clip[:length], frames) for clip, length in pairs])


def train(given: argparse.Namespace) -> dict[str, Any]:
    """A whole run under torchrun, without Ray."""
    config = _one_name(config_of(given))
    fit(config, LoneEngine())
    return _training_figures(config, given)


def fit_on_ray(given: argparse.Namespace) -> dict[str, Any]:
    """A whole run on Ray: Ray Data prepares, a TorchTrainer's workers train."""
    config = config_of(given)
    with connected(config):
        fit(config, RayEngine())
    return _training_figures(config, given)


def evaluate(given: argparse.Namespace) -> dict[str, Any]:
    """Scores the test split on two ranks; one batch of each goes before, uncounted."""
    session, config = LoneSession.of_this_process(), config_of(given)
    be_quiet()
    recogniser = load_recogniser(config.model, None, 0)
    options = scoring_options(config, recogniser.context_s)
    # Bound to the same config, so that nothing but the split differs.
    warm = Scorer(_prepared(config, session, "validation"), recogniser, session, cache_bytes=cache_bytes(config))
    scorer = Scorer(_prepared(config, session, "test"), recogniser, session, cache_bytes=cache_bytes(config))
    warm.score(options)
    session.barrier()
    began = time.perf_counter()
    result = scorer.score(options)
    seconds = time.perf_counter() - began
    return {"clips": len(result.utterances), "seconds": seconds, "wer": result.score.wer, "loss": result.loss}


def _prepared(config: TrainConfig, session: LoneSession, split: str) -> PreparedSet:
    engine = LoneEngine()
    prepared: PreparedSet = session.from_leader(lambda: prepare_all(config, engine, (split,))[split])
    return prepared


def _one_name(config: TrainConfig) -> TrainConfig:
    """The config with the run's name of rank 0 on every rank."""
    name = LoneSession.of_this_process().from_leader(lambda: config.run.name)
    return config.model_copy(update={"run": config.run.model_copy(update={"name": name})})


def _training_figures(config: TrainConfig, given: argparse.Namespace) -> dict[str, Any]:
    lines = RunFolder.of(config).storage.read_bytes(METRICS).decode().splitlines()
    rates = [line["clips_per_s"] for line in map(json.loads, lines) if "clips_per_s" in line][1:]
    each = given.log_every * given.batch * config.scaling.num_workers
    return {"clips": each * len(rates), "seconds": sum(each / rate for rate in rates)}


VERBS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "model": make_model,
    "prepare": prepare,
    "read": read,
    "train": train,
    "fit": fit_on_ray,
    "evaluate": evaluate,
}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=VERBS)
    for name in ("model", "speech", "cache", "work", "out"):
        parser.add_argument(f"--{name}", type=Path)
    for name in ("batch", "steps", "log-every", "max-new-tokens"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--context", type=int, default=0, help="seconds of the bucketed context; 0: the full one")
    parser.add_argument("--sizes", default="{}")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one verb; rank 0 writes the figures."""
    given = _parser().parse_args(arguments)
    set_seed(0)
    figures = VERBS[given.verb](given)
    if int(LoneSession.of_this_process().rank) == 0:
        write_figures(given.out, figures)
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
