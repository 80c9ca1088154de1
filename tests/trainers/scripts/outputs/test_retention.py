"""The newest checkpoints of a program stay, and those that it may load at its end as its best."""

from trainers.run_folder.journal import Checkpoint
from trainers.scripts.outputs.checkpoint_keeper import NewestAndBest


def checkpoint(step: int, **scores: float) -> Checkpoint:
    return Checkpoint(f"checkpoint-{step}", step, 1, scores, "2026-01-01T00:00:00+00:00", {})


def steps(checkpoints: list[Checkpoint]) -> list[int]:
    return [item.step for item in checkpoints]


def test_the_best_ones_stays_next_to_the_newest() -> None:
    found = [
        checkpoint(1, eval_wer=9.0, eval_acc=0.1),
        checkpoint(2, eval_wer=5.0, eval_acc=0.2),
        checkpoint(3, eval_wer=7.0, eval_acc=0.9),
        checkpoint(4, eval_wer=8.0, eval_acc=0.3, loss=0.5),
        checkpoint(5),
    ]
    policy = NewestAndBest(1)
    assert steps(policy.surplus(found)) == [1, 4]
    assert steps(policy.best_ones(found)) == [3, 2]


def test_without_scores_the_newest_stay() -> None:
    found = [checkpoint(step) for step in range(1, 5)]
    assert steps(NewestAndBest(2).surplus(found)) == [1, 2]
    assert NewestAndBest(None).surplus(found) == []
    assert NewestAndBest(2).best_ones(found) == []


def test_the_best_that_the_newest_names_stays() -> None:
    found = [checkpoint(step, best_step=float(min(step, 2))) for step in range(1, 5)]
    assert steps(NewestAndBest(1).surplus(found)) == [1, 3]
    assert steps(NewestAndBest(1).best_ones(found)) == [2]
