"""Rayscribe against the stock recipe on one GPU, in one run: speech trained on in an hour, MFU, and memory.

    make bench-gpu        or    python -m tests.gpu.benchmark [--sizes whisper-large-v3 w2v-bert-2.0] [--steps 16]

Models have the sizes of the published ones and random weights, clips the lengths of read speech. Both sides train all
weights in bf16 with the same batch; only Rayscribe computes features in the step. Prints a table in Markdown, each row
when it is measured.
"""

import argparse
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import torch
import transformers

from tests.gpu.device import GIB, NAME, ON_GPU, missing
from tests.gpu.sizes import FULL_CONTEXT_S, REHEARSAL, SIZES, Size, recognizer_of, training_config
from tests.gpu.steps import WARM_UP, Timed, our_steps, stock_steps
from tests.gpu.tones import DURATIONS_S, Speech, new_speech

GIB_COLUMNS = ("static GiB", "activations GiB", "peak GiB")
HEADER = ("model", "recipe", "clips/s", "audio h / GPU h", "MFU", *GIB_COLUMNS)
# Dense bf16 (V100, T4: fp16) tensor cores with float32 sums, in 1e12 flops a second, by a part of the device's name;
# from NVIDIA's data sheets of each, SXM where there are several.
PEAK_TFLOPS = {
    "B200": 2250.0,
    "H200": 989.0,
    "H100 PCIe": 756.0,
    "H100": 989.0,
    "A100": 312.0,
    "L40S": 362.0,
    "A10": 125.0,
    "L4": 121.0,
    "V100": 125.0,
    "T4": 65.0,
}
COMPILED = {"training.torch_compile": True}
# So many that no recipe sees them twice: decoding starts anew with each epoch, which real ones are too long to show.
CLIPS = 4096 if ON_GPU else 4


def peak_flops(name: str) -> float | None:
    """Of a device, flops a second; None where it is not known."""
    return next((tera * 1e12 for part, tera in PEAK_TFLOPS.items() if part in name), None)


def row(size: Size, recipe: str, timed: Timed, peak: float | None) -> tuple[str, ...]:
    """As shown."""
    mfu = f"{timed.flops(size) / timed.seconds / peak:.1%}" if peak is not None else "not known"
    memory = [f"{taken / GIB:.1f}" if ON_GPU else "not measured" for taken in timed.memory]
    speed = f"{timed.clips / timed.seconds:.1f}", f"{timed.audio_s / timed.seconds:,.0f}"
    return size.name, recipe, *speed, mfu, *memory


def recipes_of(size: Size) -> dict[str, dict[str, Any]]:
    """What Rayscribe is told of each recipe, by its name."""
    whole_s = max(DURATIONS_S) if size.is_ctc else FULL_CONTEXT_S
    padded = {"training.max_batch_duration_s": whole_s * size.batch}
    of_seconds = f"{whole_s * size.batch:.0f} s a batch"
    if size.is_ctc:
        return {f"Rayscribe, {size.batch} a batch": {}, f"Rayscribe, {of_seconds}": padded}
    buckets = {"model.max_context_s": FULL_CONTEXT_S}
    return {
        f"Rayscribe, 30 s, {size.batch} a batch": {},
        f"Rayscribe, buckets, {size.batch} a batch": buckets,
        f"Rayscribe, buckets, {of_seconds}": buckets | padded,
    }


class Bench(NamedTuple):
    """What all rows have in common.

    Attributes:
        speech: The clips.
        steps: Timed ones.
        folder: For what a Trainer would save.
        peak: Flops a second of the device; None: not known.
    """

    speech: Speech
    steps: int
    folder: Path
    peak: float | None

    def rows(self, size: Size) -> Iterator[tuple[str, ...]]:
        """All recipes of one size, the stock one first."""
        made = training_config(size, {"training.max_steps": WARM_UP + self.steps})
        padded = "stock" if size.is_ctc else "stock, 30 s"
        timed = stock_steps(size, self.speech, made, self.folder)
        yield row(size, f"{padded}, {size.batch} a batch", timed, self.peak)
        for name, changes in recipes_of(size).items():
            yield self.ours(size, name, changes)

    def ours(self, size: Size, name: str, changes: Mapping[str, Any]) -> tuple[str, ...]:
        """One of Rayscribe's recipes."""
        made = training_config(size, {"training.max_steps": WARM_UP + self.steps, **changes})
        timed = our_steps(recognizer_of(size, self.speech, made), self.speech, made, self.folder)
        note = "" if timed.compiled == made.training.torch_compile else " (not compiled)"
        return row(size, name + note, timed, self.peak)


def show(cells: Sequence[str]) -> None:
    """As Markdown, at once."""
    print(f"| {' | '.join(cells)} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=[size.name for size in SIZES], help="default: all")
    parser.add_argument("--steps", type=int, default=16, help="timed optimizer steps of each recipe (default: 16)")
    given = parser.parse_args(arguments)
    if (reason := missing()) is not None:
        print(f"not measured: {reason}")
        return 1
    sizes = [size for size in SIZES if given.sizes is None or size.name in given.sizes] if ON_GPU else REHEARSAL
    device = torch.cuda.get_device_name() if ON_GPU else NAME
    print(f"{device} · torch {torch.__version__} · transformers {transformers.__version__} · {given.steps} steps")
    show(HEADER)
    show(("---", "---", *["---:"] * (len(HEADER) - 2)))
    with tempfile.TemporaryDirectory() as folder:
        speech = new_speech(Path(folder) / "speech", CLIPS)
        bench = Bench(speech, given.steps, Path(folder), peak_flops(device))
        for size in sizes:
            for cells in bench.rows(size):
                show(cells)
        # Last: what a layer is compiled to takes longer than its training here.
        for size in sizes:
            if ON_GPU and not size.is_ctc:
                show(bench.ours(size, f"Rayscribe, 30 s, {size.batch} a batch, compiled", COMPILED))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
