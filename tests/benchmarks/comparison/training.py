"""Optimizer steps of Whisper: at 30 s, and in buckets."""

from tests.benchmarks.comparison.bench import Bench, memory_rows, rate_rows, step_arguments, take_turns
from tests.benchmarks.comparison.sides import Side
from tests.benchmarks.table import Row

FULL_GOAL, EQUAL_BATCH_GOAL, EQUAL_SECONDS_GOAL, LIMIT_GOAL = 1.2, 15, 20, 0.9


def compare_training(bench: Bench) -> list[Row]:
    """At 30 s, on the same weights with the same batch."""
    sizes = bench.sizes
    common = step_arguments(sizes, sizes.train_batch, sizes.turn_steps)
    stock = bench.stock("stock", "train", *common, "--features", bench.features())
    on_ray = bench.ours("Ray TorchTrainer", "fit", *common, "--max-new-tokens", 2, ranks=1)
    local = bench.ours("torchrun", "train", *common, "--max-new-tokens", 2) if sizes.variants else None
    bare = bench.bare("bare loop", "train", *common)
    theirs, limit, *ours = take_turns(bench, "train", (stock, bare, on_ray, local))
    rows: list[Row] = []
    for side, rates in zip((on_ray, local), ours, strict=True):
        if side is None:
            continue
        rows += rate_rows(f"train, clips/s at 30 s ({side.name})", rates, theirs, limit, FULL_GOAL, LIMIT_GOAL)
    return [*rows, *memory_rows(bench, "train", on_ray, stock)]


def compare_short_training(bench: Bench) -> list[Row]:
    """In buckets next to the stock recipe's at 30 s: with the same batch, and with as many seconds."""
    sizes, context = bench.sizes, ("--context", bench.sizes.short_context_s)
    at_30_s = step_arguments(sizes, sizes.train_batch, sizes.turn_steps)
    stock = bench.stock("stock", "train", *at_30_s, "--features", bench.features())
    goals = {sizes.short_batch: EQUAL_SECONDS_GOAL}
    if sizes.variants:
        goals = {sizes.train_batch: EQUAL_BATCH_GOAL, **goals}
    sides: list[Side | None] = []
    for batch in goals:
        common = (*step_arguments(sizes, batch, sizes.short_turn_steps(batch)), *context)
        sides.append(bench.ours(f"buckets, {batch} a batch", "train", *common, "--max-new-tokens", 2))
        sides.append(bench.bare(f"bare loop, {batch} a batch", "train", *common))
    update = bench.bare("reduction and optimizer alone, of steps that take", "update", *at_30_s)
    theirs, _, *others = take_turns(bench, "train", (stock, update, *sides))
    rows: list[Row] = []
    for (batch, goal), ours, limit in zip(goals.items(), others[::2], others[1::2], strict=True):
        what = f"train, clips/s, buckets to {sizes.short_context_s} s, {batch} a batch"
        rows += rate_rows(what, ours, theirs, limit, goal, LIMIT_GOAL)
    return rows
