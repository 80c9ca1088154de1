"""Scores of Whisper with the same weights and the same number of tokens: at 30 s, and in buckets."""

from tests.benchmarks.comparison.bench import Bench, memory_rows, rate_rows, take_turns
from tests.benchmarks.comparison.sides import Side
from tests.benchmarks.sizes import RANKS
from tests.benchmarks.table import Row

FULL_GOAL, BUCKETS_GOAL = 2, 20


def compare_scoring(bench: Bench) -> list[Row]:
    """Next to the stock recipe at 30 s; in buckets with its batch, and with as many seconds."""
    sizes, tokens = bench.sizes, ("--max-new-tokens", bench.sizes.max_new_tokens)
    common = ("--batch", sizes.score_batch, *tokens)
    stock = bench.stock("stock", "evaluate", *common, "--clips", sizes.score_clips, "--features", bench.features())
    ours = bench.ours("Rayscribe", "evaluate", *common)
    bare = bench.bare("bare loop", "score", *common, *bare_steps(sizes.score_clips, sizes.score_batch))
    in_buckets = (*tokens, "--context", sizes.short_context_s)
    batches = (sizes.score_batch, sizes.short_score_batch)[0 if sizes.variants else 1 :]
    short: list[Side | None] = []
    for batch in batches:
        arguments = ("--batch", batch, *in_buckets)
        short.append(bench.ours(f"buckets, {batch} a batch", "evaluate", *arguments, "--score", "score-short"))
        steps = bare_steps(sizes.short_score_clips, batch)
        short.append(bench.bare(f"bare loop, {batch} a batch", "score", *arguments, *steps))
    theirs, at_30_s, limit, *others = take_turns(bench, "evaluate", (stock, ours, bare, *short))
    rows = rate_rows("evaluate, clips/s at 30 s", at_30_s, theirs, limit, FULL_GOAL)
    for batch, rates, limit in zip(batches, others[::2], others[1::2], strict=True):
        what = f"evaluate, clips/s, buckets to {sizes.short_context_s} s, {batch} a batch"
        rows += rate_rows(what, rates, theirs, limit, BUCKETS_GOAL)
    return [*rows, *memory_rows(bench, "evaluate", ours, stock)]


def bare_steps(clips: int, batch: int) -> tuple[object, ...]:
    """As many batches of each rank as a turn of the others has."""
    return "--turn-steps", max(1, clips // (RANKS * batch))
