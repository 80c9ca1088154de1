"""Scores of Whisper with the same weights and the same number of tokens: at 30 s, and in buckets."""

from tests.benchmarks.comparison.bench import Bench, memory_rows, take_turns
from tests.benchmarks.table import Row

FULL_GOAL, BUCKETS_GOAL = 2, 20


def compare_scoring(bench: Bench) -> list[Row]:
    """Next to the stock recipe at 30 s; in buckets with its batch, and with as many seconds."""
    sizes, tokens = bench.sizes, ("--max-new-tokens", bench.sizes.max_new_tokens)
    common = ("--batch", sizes.score_batch, *tokens)
    stock = bench.stock("stock", "evaluate", *common, "--clips", sizes.score_clips, "--features", bench.features())
    ours = bench.ours("Rayscribe", "evaluate", *common)
    context = (*tokens, "--context", sizes.short_context_s, "--score", "score-short")
    batches = (sizes.score_batch, sizes.short_score_batch)
    short = [bench.ours(f"buckets, {batch} a batch", "evaluate", "--batch", batch, *context) for batch in batches]
    theirs, at_30_s, *in_buckets = take_turns(bench, "evaluate", (stock, ours, *short))
    rows = [Row("evaluate, clips/s at 30 s", at_30_s, theirs, least_ratio=FULL_GOAL, digits=2)]
    for batch, rates in zip(batches, in_buckets, strict=True):
        what = f"evaluate, clips/s, buckets to {sizes.short_context_s} s, {batch} a batch"
        rows.append(Row(what, rates, theirs, least_ratio=BUCKETS_GOAL, digits=2))
    return [*rows, *memory_rows("evaluate", ours, stock)]
