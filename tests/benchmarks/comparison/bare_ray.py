"""One step of the same model under a bare TorchTrainer: how soon Ray and Ray Train alone let anything train.

python -m tests.benchmarks.comparison.bare_ray --model … --work … --turns …
"""

import argparse
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import ray
from ray.train import RunConfig, ScalingConfig
from ray.train.torch import TorchTrainer

from tests.benchmarks.sizes import FULL_CONTEXT_S, RANKS

FRAMES = 100 * int(FULL_CONTEXT_S)


def step(given: dict[str, Any]) -> None:
    """Loads the model, takes one step on one clip at the full context, and calls the benchmark."""
    import torch  # noqa: PLC0415 - in the worker alone, as in every example of Ray Train
    from torch.nn.parallel import DistributedDataParallel  # noqa: PLC0415
    from transformers import AutoModelForSpeechSeq2Seq  # noqa: PLC0415

    from tests.benchmarks.comparison.turns import Turns  # noqa: PLC0415

    network = AutoModelForSpeechSeq2Seq.from_pretrained(given["model"])
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    features = torch.randn(1, network.config.num_mel_bins, FRAMES)
    model(input_features=features, labels=torch.tensor([[1, 2, 3]])).loss.backward()
    optimizer.step()
    Turns(given["turns"], ray.train.get_context().get_world_rank()).wait()


def main(arguments: Sequence[str] | None = None) -> None:
    """Starts a Ray, and trains."""
    parser = argparse.ArgumentParser()
    for name in ("model", "work"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--turns", required=True, help="address of the benchmark")
    given = parser.parse_args(arguments)
    ray.init(address="local", num_cpus=max(os.cpu_count() or 1, RANKS + 1))
    TorchTrainer(
        step,
        train_loop_config={"model": str(given.model), "turns": given.turns},
        scaling_config=ScalingConfig(num_workers=RANKS),
        run_config=RunConfig(storage_path=str(given.work)),
    ).fit()


if __name__ == "__main__":
    main()
