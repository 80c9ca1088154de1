"""What all comparisons share: how a side is started, and rows of what sides measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from tests.benchmarks.comparison.sides import Side, alternate, is_rays_own, running, without_rays_own
from tests.benchmarks.sizes import RANKS, Sizes
from tests.benchmarks.speech import Speech
from tests.benchmarks.table import Row

SIDES = "tests.benchmarks.comparison"
# At most 1.3 times the stock recipe's.
MEMORY_GOAL = 0.77


@dataclass(frozen=True)
class Bench:
    """The clips, the models, and the sides that work on them.

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
        return self._start(name, "our_recipe", verb, common, arguments, ranks)

    def stock(self, name: str, verb: str, *arguments: object) -> Side:
        """Starts a side of the stock recipe."""
        common = {"model": "model", "work": "stock", "manifest": "speech/train.csv"}
        return self._start(name, "stock_recipe", verb, common, arguments, RANKS)

    def stock_ctc(self, name: str, verb: str, *arguments: object) -> Side:
        """Starts a side of the stock recipe for CTC."""
        common = {"model": "ctc-model", "work": "stock-ctc", "speech": "speech"}
        return self._start(name, "stock_ctc_recipe", verb, common, arguments, RANKS)

    def bare(self, name: str, verb: str, *arguments: object, model: str = "model") -> Side | None:
        """Starts what computes the same with nothing around it; None where limits are not measured."""
        if not self.sizes.limits:
            return None
        common = {"model": model, "manifest": "speech/train.csv"}
        return self._start(name, "bare_loops", verb, common, arguments, RANKS)

    def bare_ray(self, name: str) -> Side:
        """Starts a bare TorchTrainer."""
        return self._start(name, "bare_ray", None, {"model": "model", "work": "bare-ray"}, (), 1)

    def features(self) -> Path:
        """Features that the stock recipe trains on and scores: those that it stored in its first turn of preparing."""
        first = self._features(2) / "0"
        if not first.exists():
            side = self.stock_preparation(2)
            with running([side]):
                side.turn()
        return first

    def stock_preparation(self, processes: int) -> Side:
        """Starts a side of the stock recipe that stores features by so many processes."""
        options = ("--num-proc", processes, "--clips", self.sizes.stock_clips, "--batch", self.sizes.train_batch)
        return self.stock(f"stock, num_proc={processes}", "prepare", *options, "--features", self._features(processes))

    def _features(self, processes: int) -> Path:
        return self.folder / f"features-{processes}"

    def _start(
        self, name: str, module: str, verb: str | None, paths: dict[str, str], arguments: Sequence[object], ranks: int
    ) -> Side:
        given = [str(word) for word in (verb, *arguments) if word is not None]
        for flag, path in paths.items():
            given += [f"--{flag}", str(self.folder / path)]
        return Side.start(name, f"{SIDES}.{module}", given, folder=self.folder, ranks=ranks)


def step_arguments(sizes: Sizes, batch: int, turn_steps: int) -> tuple[object, ...]:
    """Utterances of a forward pass, and steps: one before the first turn, and those of all turns."""
    return "--batch", batch, "--steps", 1 + sizes.rounds * turn_steps, "--turn-steps", turn_steps


def take_turns(bench: Bench, what: str, sides: Sequence[Side | None]) -> list[list[float]]:
    """Clips a second of each turn of each side; no turns of a side that there is not."""
    there = [side for side in sides if side is not None]
    with running(there):
        alternate(there, bench.sizes.rounds)
    for side in there:
        score = f" · WER {side.turns[0]['wer']:.2f}" if "wer" in side.turns[0] else ""
        clips = side.turns[0]["clips"]
        bench.say(f"{what}, {side.name}: {clips} clips a turn · clips/s of each turn {shown(rates_of(side))}{score}")
    return [rates_of(side) if side is not None else [] for side in sides]


def rates_of(side: Side) -> list[float]:
    """Clips a second of each turn."""
    return [turn["clips"] / turn["seconds"] for turn in side.turns]


def rate_rows(
    what: str, ours: list[float], peer: list[float], limit: list[float], goal: float, limit_goal: float | None = None
) -> list[Row]:
    """Clips a second next to a peer's, and to those of a bare loop where it had turns."""
    rows = [Row(what, ours, peer, least_ratio=goal, digits=2)]
    if limit:
        rows.append(Row(f"{what} : bare loop", ours, limit, least_ratio=limit_goal, digits=2))
    return rows


def shown(figures: Sequence[float]) -> str:
    """For a line of progress."""
    return ", ".join(f"{figure:.2f}" for figure in figures)


def memory_rows(bench: Bench, stage: str, ours: Side, stock: Side) -> list[Row]:
    """Peaks of resident memory, without Ray's own processes, which are shown next to them."""
    for side in (ours, stock):
        sizes = sorted(side.peak, key=lambda pair: -pair[1])
        bench.say(
            f"{stage}, {side.name}, MB at the peak: {', '.join(f'{name} {size / 1e6:.0f}' for name, size in sizes)}"
        )
    mine, theirs = (without_rays_own(side.peak) / 1e6 for side in (ours, stock))
    rays_own = sum(size for name, size in ours.peak if is_rays_own(name)) / 1e6
    what = f"{stage}, peak MB of all processes"
    apart = f" (Ray's own apart, no dashboard: {rays_own:.0f})" if rays_own else ""
    return [Row(f"{what}{apart}", [mine], [theirs], better="low", least_ratio=MEMORY_GOAL, digits=0)]
