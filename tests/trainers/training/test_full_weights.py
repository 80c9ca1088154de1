"""Scoring with a model whose weights are sharded: ranks that score unequally often do not wait for each other."""

from pathlib import Path
from typing import Literal

import pytest
import torch

from tests.trainers.training.fsdp_process import train_and_score
from tests.trainers.training.rank_processes import run_ranks
from trainers.config.parts.strategy_part import StrategyPart
from trainers.training.sharding import sharding_process


def run(folder: Path, *, sharded: bool) -> list[list[torch.Tensor]]:
    """Losses, encoder outputs and tokens of both ranks."""
    folder.mkdir()
    run_ranks(_one_rank, 2, folder, sharded)
    return [torch.load(folder / f"rank_{rank}.pt", weights_only=True) for rank in (0, 1)]


def _one_rank(rank: int, folder: Path, sharded: bool) -> None:
    train_and_score(rank, folder, sharded=sharded)


@pytest.mark.integration
def test_fsdp2_trains_and_scores_as_a_model_that_is_whole(tmp_path: Path) -> None:
    whole, sharded = (run(tmp_path / str(kind), sharded=kind) for kind in (False, True))
    for expected, got in zip(whole, sharded, strict=True):
        for one, other in zip(expected, got, strict=True):
            assert torch.allclose(one, other, atol=1e-6)


@pytest.mark.parametrize("name", ["ddp", "fsdp"])
def test_a_process_that_shards_alone_has_a_group(name: Literal["ddp", "fsdp"]) -> None:
    assert not torch.distributed.is_initialized()
    with sharding_process(StrategyPart(name=name), on_gpu=False):
        assert torch.distributed.is_initialized() == (name == "fsdp")
    assert not torch.distributed.is_initialized()
