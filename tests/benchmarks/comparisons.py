"""The comparisons: which sides take turns, and what rows their figures come to."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from tests.benchmarks.sides import Side, alternate, running
from tests.benchmarks.sizes import RANKS, Sizes
from tests.benchmarks.speech import Speech
from tests.benchmarks.table import Row

OURS, STOCK = "tests.benchmarks.our_recipe", "tests.benchmarks.stock_recipe"
STOCK_CTC = "tests.benchmarks.stock_ctc_recipe"
PREPARE_GOAL, TRAIN_GOAL, EVALUATE_GOAL, SHORT_GOAL, CTC_GOAL, STORED_GOAL_GB = 15, 0.98, 2, 15, 1.5, 0.08


@dataclass(frozen=True)
class Bench:
    """What all comparisons share.

    Attributes:
        folder: Temporary folder of everything.
        speech: The clips.
        sizes: Counts.
        say: Takes lines of progress and notes.
    """

    folder: Path
    speech: Speech
    sizes: Sizes
    say: Callable[[str], None]

    def ours(self, name: str, verb: str, *arguments: object, ranks: int = RANKS, model: str = "model") -> Side:
        """Starts a side of Rayscribe."""
        common = {"model": model, "cache": "cache", "work": "runs", "speech": "speech"}
        return self._start(name, OURS, verb, common, arguments, ranks)

    def stock(self, name: str, verb: str, *arguments: object) -> Side:
        """Starts a side of the stock recipe."""
        common = {"model": "model", "work": "stock", "manifest": "speech/train.csv"}
        return self._start(name, STOCK, verb, common, arguments, RANKS)

    def stock_ctc(self, name: str, verb: str, *arguments: object) -> Side:
        """Starts a side of the stock recipe for CTC."""
        common = {"model": "ctc-model", "work": "stock-ctc", "speech": "speech"}
        return self._start(name, STOCK_CTC, verb, common, arguments, RANKS)

    def _start(
        self, name: str, module: str, verb: str, paths: dict[str, str], arguments: Sequence[object], ranks: int
    ) -> Side:
        given = [verb, *(str(argument) for argument in arguments)]
        for flag, path in paths.items():
            given += [f"--{flag}", str(self.folder / path)]
        return Side.start(name, module, given, folder=self.folder, ranks=ranks)


def compare_preparation(bench: Bench) -> list[Row]:
    """From manifest to features in the workers' memory, and the bytes stored between; the faster stock is compared."""
    sizes = bench.sizes
    stock_arguments = ("--clips", sizes.stock_clips, "--batch", sizes.train_batch)
    both, single = (
        bench.stock(f"stock, num_proc={count}", "prepare", "--num-proc", count, *stock_arguments, "--features", folder)
        for count in (2, 1)
        for folder in (bench.folder / f"features-{count}",)
    )
    prepare = bench.ours("preparation", "prepare", ranks=1)
    read = bench.ours("reading", "read", "--batch", sizes.train_batch)
    with running([both, single, prepare, read]):
        alternate([prepare, read, both, single], sizes.rounds)
    first, later = prepare.turns[0], prepare.turns[1:]
    read_s = read.typical("read_s")
    warm_s = median(turn["prepare_s"] for turn in later)
    clips = first["clips"]
    ours = {
        "Ray's start included": clips / (first["ray_s"] + first["prepare_s"] + read_s),
        "Ray up, first use": clips / (first["prepare_s"] + read_s),
        "Ray up, in use": clips / (warm_s + read_s),
    }
    for side in (both, single):
        bench.say(f"{side.name}: " + _parts(side, "map_s", "read_s"))
    bench.say(f"{prepare.name}: Ray's start {first['ray_s']:.1f} s · {_parts(prepare, 'prepare_s')}")
    bench.say(f"{read.name}: {_parts(read, 'read_s', 'bucketed_s')}")
    stock = max((both, single), key=_prepared_rate)
    theirs = _prepared_rate(stock)
    rows = [
        Row(f"prepare, clips/s to features in memory ({state})", rate, theirs, "high", PREPARE_GOAL)
        for state, rate in ours.items()
    ]
    gb_ours, gb_stock = (side.total("stored_bytes") / 1e9 / (side.total("audio_s") / 3600) for side in (prepare, both))
    rows.append(Row("stored, GB an hour of speech", gb_ours, gb_stock, better="low", most=STORED_GOAL_GB, digits=3))
    return [*rows, *_memory_rows("prepare", prepare, stock)]


def compare_training(bench: Bench) -> list[Row]:
    """Optimizer steps at 30 s, on the same weights with the same batch."""
    sizes, steps = bench.sizes, _step_arguments(bench.sizes)
    common = ("--batch", sizes.train_batch, *steps)
    stock = bench.stock("stock", "train", *common, "--features", bench.folder / "features-2" / "0")
    on_ray = bench.ours("Ray TorchTrainer", "fit", *common, "--max-new-tokens", 2, ranks=1)
    local = bench.ours("torchrun", "train", *common, "--max-new-tokens", 2)
    with running([stock, on_ray, local]):
        alternate([stock, on_ray, local], sizes.rounds)
    clips = _step_clips(sizes, sizes.train_batch)
    for side in (stock, on_ray, local):
        bench.say(f"train, {side.name}: clips/s of each turn {_rates(side, clips)}")
    theirs = _rate(stock, clips)
    return [
        Row("train, clips/s at 30 s (Ray TorchTrainer)", _rate(on_ray, clips), theirs, "high", TRAIN_GOAL, digits=2),
        Row("train, clips/s at 30 s (torchrun)", _rate(local, clips), theirs, "high", TRAIN_GOAL, digits=2),
        *_memory_rows("train", on_ray, stock),
    ]


def compare_short_training(bench: Bench) -> list[Row]:
    """Optimizer steps in buckets next to the stock recipe's at 30 s: with the same batch, and with as many seconds."""
    sizes, steps = bench.sizes, _step_arguments(bench.sizes)
    features = bench.folder / "features-2" / "0"
    stock = bench.stock("stock", "train", "--batch", sizes.train_batch, *steps, "--features", features)
    common = (*steps, "--max-new-tokens", 2, "--context", sizes.short_context_s)
    batches = (sizes.train_batch, sizes.short_batch)
    sides = [bench.ours(f"buckets, {batch} a batch", "train", "--batch", batch, *common) for batch in batches]
    with running([stock, *sides]):
        alternate([stock, *sides], sizes.rounds)
    rows = []
    for batch, side in zip((sizes.train_batch, *batches), (stock, *sides), strict=True):
        clips = _step_clips(sizes, batch)
        bench.say(f"train, {side.name}: clips/s of each turn {_rates(side, clips)}")
        if side is not stock:
            what = f"train, clips/s, buckets to {sizes.short_context_s} s, {batch} a batch"
            theirs = _rate(stock, _step_clips(sizes, sizes.train_batch))
            rows.append(Row(what, _rate(side, clips), theirs, least_ratio=SHORT_GOAL, digits=2))
    return rows


def compare_evaluation(bench: Bench) -> list[Row]:
    """Scoring with the same weights and the same number of tokens: at 30 s, and in buckets with both batches."""
    sizes, tokens = bench.sizes, ("--max-new-tokens", bench.sizes.max_new_tokens)
    common = ("--batch", sizes.score_batch, *tokens)
    features = bench.folder / "features-2" / "0"
    stock = bench.stock("stock", "evaluate", *common, "--clips", sizes.score_clips, "--features", features)
    ours = bench.ours("Rayscribe", "evaluate", *common)
    context = (*tokens, "--context", sizes.short_context_s)
    batches = (sizes.score_batch, sizes.short_score_batch)
    short = [bench.ours(f"buckets, {batch} a batch", "evaluate", "--batch", batch, *context) for batch in batches]
    sides = (stock, ours, *short)
    with running(sides):
        alternate(sides, sizes.rounds)
    rates = []
    for side in sides:
        clips = int(side.turns[0]["clips"])
        rates.append(_rate(side, clips))
        wer = side.turns[0]["wer"]
        bench.say(f"evaluate, {side.name}: {clips} clips · clips/s of each turn {_rates(side, clips)} · WER {wer:.2f}")
    theirs, at_30_s, *in_buckets = rates
    rows = [Row("evaluate, clips/s at 30 s", at_30_s, theirs, least_ratio=EVALUATE_GOAL, digits=2)]
    for batch, rate in zip(batches, in_buckets, strict=True):
        what = f"evaluate, clips/s, buckets to {sizes.short_context_s} s, {batch} a batch"
        rows.append(Row(what, rate, theirs, least_ratio=SHORT_GOAL, digits=2))
    return [*rows, *_memory_rows("evaluate", ours, stock)]


def compare_ctc(bench: Bench) -> list[Row]:
    """Optimizer steps and scores of the same wav2vec2 on the same batch, every weight trained."""
    sizes, rows = bench.sizes, []
    for verb, batch, clips in (
        ("train", sizes.train_batch, _step_clips(sizes, sizes.train_batch)),
        ("evaluate", sizes.score_batch, sizes.score_clips),
    ):
        common = ("--batch", batch, *_step_arguments(sizes))
        stock = bench.stock_ctc("stock", verb, *common, "--clips", max(sizes.stock_clips, sizes.score_clips))
        ours = bench.ours("Rayscribe", verb, *common, model="ctc-model")
        with running([stock, ours]):
            alternate([stock, ours], sizes.rounds)
        for side in (stock, ours):
            bench.say(f"CTC, {verb}, {side.name}: clips/s of each turn {_rates(side, clips)}")
        what = f"CTC, {verb}, clips/s"
        rows.append(Row(what, _rate(ours, clips), _rate(stock, clips), least_ratio=CTC_GOAL, digits=2))
    return rows


def _step_arguments(sizes: Sizes) -> tuple[object, ...]:
    return "--steps", (sizes.rounds + 1) * sizes.turn_steps, "--turn-steps", sizes.turn_steps


def _step_clips(sizes: Sizes, batch: int) -> int:
    """Clips of a turn of optimizer steps."""
    return batch * RANKS * sizes.turn_steps


def _rate(side: Side, clips: int) -> float:
    return clips / side.typical("seconds")


def _rates(side: Side, clips: int) -> str:
    return ", ".join(f"{clips / turn['seconds']:.2f}" for turn in side.turns)


def _prepared_rate(side: Side) -> float:
    return float(side.turns[0]["clips"]) / (side.typical("map_s") + side.typical("read_s"))


def _parts(side: Side, *names: str) -> str:
    lists = (f"{name} {', '.join(f'{turn[name]:.2f}' for turn in side.turns)}" for name in names)
    return f"{side.turns[0]['clips']} clips a turn · {' · '.join(lists)}"


def _memory_rows(stage: str, ours: Side, stock: Side) -> list[Row]:
    pairs = (
        (f"{stage}, peak MB of the largest process", ours.largest_bytes, stock.largest_bytes),
        (f"{stage}, peak MB of all processes", ours.sum_bytes, stock.sum_bytes),
    )
    return [Row(what, mine / 1e6, theirs / 1e6, better="low", digits=0) for what, mine, theirs in pairs]
