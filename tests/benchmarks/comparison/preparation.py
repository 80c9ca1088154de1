"""Preparing: from a manifest to features in the workers' memory, and the bytes that are stored between."""

from statistics import median

from tests.benchmarks.comparison.bench import Bench, memory_rows
from tests.benchmarks.comparison.sides import Side, alternate, running
from tests.benchmarks.scale.object_server import serving
from tests.benchmarks.table import Row

PREPARE_GOAL, FIRST_GOAL, BUCKET_GOAL, LIMIT_GOAL, STORED_GOAL_GB = 15, 10, 0.7, 0.7, 0.08


def compare_preparation(bench: Bench) -> list[Row]:
    """The faster of two stock recipes is compared, and what decoding, encoding and log-mel alone take on all cores."""
    sizes = bench.sizes
    stocks = [bench.stock_preparation(count) for count in ((2, 1) if sizes.variants else (2,))]
    prepare = bench.ours("preparation", "prepare", ranks=1)
    read = bench.ours("reading", "read", "--batch", sizes.train_batch)
    bare = bench.bare("codecs and log-mel alone", "codecs", "--clips", sizes.stock_clips)
    with serving(bench.speech.folder) as endpoint:
        from_bucket = ("preparation from a bucket", "prepare", "--endpoint", endpoint)
        bucket = bench.ours(*from_bucket, ranks=1) if sizes.variants else None
        sides = [side for side in (prepare, bucket, read, *stocks, bare) if side is not None]
        with running(sides):
            alternate(sides, sizes.rounds)
    for side in stocks:
        bench.say(f"{side.name}: " + _parts(side, "map_s", "read_s"))
    for side in [prepare] if bucket is None else [prepare, bucket]:
        bench.say(f"{side.name}: Ray's start {side.turns[0]['ray_s']:.1f} s · {_parts(side, 'prepare_s')}")
    bench.say(f"{read.name}: {_parts(read, 'read_s', 'bucketed_s')}")
    stock = max((_stock_rates(side) for side in stocks), key=median)
    ours = [
        turn["clips"] / (turn["prepare_s"] + reading["read_s"])
        for turn, reading in zip(prepare.turns, read.turns, strict=True)
    ]
    first = prepare.turns[0]
    with_start = first["clips"] / (first["ray_s"] + first["prepare_s"] + read.turns[0]["read_s"])
    what = "prepare, clips/s to features in memory"
    rows = [
        Row(f"{what} (Ray's start included)", [with_start], stock[:1]),
        Row(f"{what} (Ray up, first use)", ours[:1], stock[:1], least_ratio=FIRST_GOAL),
        Row(f"{what} (Ray up, in use)", ours[1:], stock[1:], least_ratio=PREPARE_GOAL),
    ]
    if bucket is not None:
        stored = "prepare, clips/s stored from a bucket : from disk"
        rows.append(Row(stored, _stored_rates(bucket), _stored_rates(prepare), least_ratio=BUCKET_GOAL))
    gb_ours, gb_stock = (
        side.total("stored_bytes") / 1e9 / (side.total("audio_s") / 3600) for side in (prepare, stocks[0])
    )
    rows.append(Row("stored, GB an hour of speech", [gb_ours], [gb_stock], "low", most=STORED_GOAL_GB, digits=3))
    if bare is not None:
        bench.say(f"{bare.name}: {_parts(bare, 'encode_s', 'decode_s', 'log_mel_s')}")
        limit = [turn["clips"] / (turn["encode_s"] + turn["decode_s"] + turn["log_mel_s"]) for turn in bare.turns]
        rows.append(Row(f"{what}, in use : {bare.name}", ours[1:], limit[1:], least_ratio=LIMIT_GOAL))
    return [*rows, *memory_rows(bench, "prepare", prepare, stocks[0])]


def _stored_rates(side: Side) -> list[float]:
    return [turn["clips"] / turn["prepare_s"] for turn in side.turns[1:]]


def _stock_rates(side: Side) -> list[float]:
    return [turn["clips"] / (turn["map_s"] + turn["read_s"]) for turn in side.turns]


def _parts(side: Side, *names: str) -> str:
    lists = (f"{name} {', '.join(f'{turn[name]:.2f}' for turn in side.turns)}" for name in names)
    return f"{side.turns[0]['clips']} clips a turn · {' · '.join(lists)}"
