"""Optimizer steps and scores of the same wav2vec2, every weight trained."""

from tests.benchmarks.comparison.bench import Bench, rate_rows, step_arguments, take_turns
from tests.benchmarks.comparison.scoring import bare_steps
from tests.benchmarks.table import Row

GOAL, EQUAL_SECONDS_GOAL, LIMIT_GOAL = 1.2, 1.5, 0.9


def compare_ctc_training(bench: Bench) -> list[Row]:
    """With the same batch, and with as many padded seconds as the stock recipe's batch has of speech.

    A turn has enough steps that the lengths of its clips are about those of all.
    """
    sizes = bench.sizes
    common = step_arguments(sizes, sizes.train_batch, sizes.ctc_turn_steps)
    stock = bench.stock_ctc("stock", "train", *common, "--clips", sizes.ctc_clips)
    ours = bench.ours("Rayscribe", "train", *common, model="ctc-model")
    bare = bench.bare("bare loop", "train", *common, model="ctc-model")
    seconds = round(sizes.train_batch * bench.speech.mean_s, 1)
    padded = (*common, "--batch-seconds", seconds)
    even = bench.ours(f"{seconds} padded s", "train", *padded, model="ctc-model") if sizes.variants else None
    theirs, mine, even_rates, limit = take_turns(bench, "CTC, train", (stock, ours, even, bare))
    rows = rate_rows("CTC, train, clips/s", mine, theirs, limit, GOAL, LIMIT_GOAL)
    if even is not None:
        rows += rate_rows(f"CTC, train, clips/s, {even.name} a batch", even_rates, theirs, [], EQUAL_SECONDS_GOAL)
    return rows


def compare_ctc_scoring(bench: Bench) -> list[Row]:
    """With the same batch over the same clips."""
    sizes = bench.sizes
    common = ("--batch", sizes.score_batch)
    stock = bench.stock_ctc("stock", "evaluate", *common, "--clips", sizes.ctc_clips)
    ours = bench.ours("Rayscribe", "evaluate", *common, "--score", "score-short", model="ctc-model")
    bare = bench.bare(
        "bare loop", "score", *common, *bare_steps(sizes.short_score_clips, sizes.score_batch), model="ctc-model"
    )
    theirs, mine, limit = take_turns(bench, "CTC, evaluate", (stock, ours, bare))
    return rate_rows("CTC, evaluate, clips/s", mine, theirs, limit, GOAL)
