"""Rayscribe next to the stock recipe, in one run: python -m tests.benchmarks [--quick | --smoke] [--only NAME…].

Prints what was measured, whatever it is; the exit code says only whether it could be measured.
"""

import argparse
import os
import signal
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path

from tests.benchmarks.comparison.bench import Bench
from tests.benchmarks.comparison.ctc import compare_ctc_scoring, compare_ctc_training
from tests.benchmarks.comparison.preparation import compare_preparation
from tests.benchmarks.comparison.scoring import compare_scoring
from tests.benchmarks.comparison.sides import SideError
from tests.benchmarks.comparison.starts import compare_starts
from tests.benchmarks.comparison.training import compare_short_training, compare_training
from tests.benchmarks.comparison.transcribing import compare_transcribing
from tests.benchmarks.sizes import FULL, QUICK, RANKS, SMOKE
from tests.benchmarks.speech import make_speech
from tests.benchmarks.table import machine_facts, render
from tests.benchmarks.weights import write_ctc_weights, write_weights

COMPARISONS = {
    "prepare": compare_preparation,
    "train": compare_training,
    "buckets": compare_short_training,
    "evaluate": compare_scoring,
    "ctc-train": compare_ctc_training,
    "ctc-evaluate": compare_ctc_scoring,
    "starts": compare_starts,
    "transcribe": compare_transcribing,
}
# Left out of --quick, unless they are asked for.
LONG = ("transcribe",)
LEGEND = (
    "ratio: more than 1 favors Rayscribe; the median of all turns, and from the lowest to the highest. A goal is met\n"
    "or missed by all turns, else the table says that their spread crosses it. Rates are read from inside, imports\n"
    "left out. The peer is the stock recipe, or what stands behind a colon; bare loops and codecs alone do the same\n"
    "work with nothing around it. Memory is resident memory, with pages of mapped files, and what processes share in\n"
    "each of them."
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures and prints."""
    parser = argparse.ArgumentParser(prog="python -m tests.benchmarks", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="fewer clips, steps, rounds and rows: for trying out")
    parser.add_argument("--smoke", action="store_true", help="next to nothing: only for seeing that it runs")
    parser.add_argument("--only", nargs="+", choices=COMPARISONS, help="what to compare")
    chosen = parser.parse_args(arguments)
    sizes = SMOKE if chosen.smoke else QUICK if chosen.quick else FULL
    names = chosen.only or [name for name in COMPARISONS if not (chosen.quick and name in LONG)]
    # So that the sides are ended with this process, and the temporary folder goes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    began, load = time.monotonic(), os.getloadavg()[0]

    def say(line: str) -> None:
        print(f"[{time.monotonic() - began:4.0f} s] {line}", flush=True)

    with tempfile.TemporaryDirectory(prefix="rayscribe-bench-") as made:
        folder = Path(made)
        speech = make_speech(folder / "speech", sizes)
        weights = write_weights(folder / "model", speech.folder / "train.csv", sizes)
        ctc_weights = write_ctc_weights(folder / "ctc-model", speech.folder / "train.csv", sizes)
        say(f"{speech.clips} clips of mean {speech.mean_s:.2f} s: {speech.origin}")
        say(f"Whisper of {weights / 1e6:.1f} M new weights, d_model {sizes.d_model}, {RANKS} ranks a side, {sizes}")
        say(f"wav2vec2 of {ctc_weights / 1e6:.1f} M new weights, of the same width and depth")
        bench, rows = Bench(folder, speech, sizes, say), []
        try:
            for name in names:
                rows += COMPARISONS[name](bench)
        except SideError as error:
            print(error, file=sys.stderr)
            return 1
    say("done")
    print(f"\n{render(rows)}\n\n{LEGEND}\n{machine_facts()} · load at the start {load:.1f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
