"""Rayscribe against the stock recipe on one GPU, in one run: speech trained on in an hour, MFU, and memory.

    make bench-gpu        or    python -m tests.gpu.benchmark [--sizes whisper-large-v3 w2v-bert-2.0] [--steps 24]

Models have the sizes of the published ones and random weights, clips the lengths of read speech. Both sides train all
weights in bf16 with the same batch; only Rayscribe computes features in the step. Prints a table in Markdown, each row
when it is measured.
"""

import argparse
import gc
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import transformers

from tests.gpu.device import GIB, NAME, ON_GPU, missing
from tests.gpu.sizes import FULL_CONTEXT_S, REHEARSAL, SIZES, Size, recognizer_of, training_config
from tests.gpu.steps import WARM_UP, Timed, our_steps, stock_steps
from tests.gpu.tones import DURATIONS_S, Speech, new_speech

HEADER = ("model", "recipe", "clips/s", "audio h / GPU h", "MFU", "static GiB", "activations GiB")
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
CLIPS = 256 if ON_GPU else 4


def peak_flops(name: str) -> float | None:
    """Of a device, flops a second; None where it is not known."""
    return next((tera * 1e12 for part, tera in PEAK_TFLOPS.items() if part in name), None)


def row(size: Size, recipe: str, timed: Timed, peak: float | None) -> tuple[str, ...]:
    """As shown."""
    mfu = f"{timed.flops(size) / timed.seconds / peak:.1%}" if peak is not None else "not known"
    static, most = timed.memory
    activations = f"{(most - static) / GIB:.1f}" if ON_GPU else "not measured"
    speed = f"{timed.clips / timed.seconds:.1f}", f"{timed.audio_s / timed.seconds:,.0f}"
    return size.name, recipe, *speed, mfu, f"{static / GIB:.1f}", activations


def recipes_of(size: Size) -> dict[str, dict[str, Any]]:
    """What Rayscribe is told of each recipe, by its name."""
    whole_s = max(DURATIONS_S) if size.is_ctc else FULL_CONTEXT_S
    padded = {"training.max_batch_duration_s": whole_s * size.batch}
    of_seconds = f"{whole_s * size.batch:.0f} s a batch"
    if size.is_ctc:
        return {f"Rayscribe, {size.batch} a batch": {}, f"Rayscribe, {of_seconds}": padded}
    buckets = {"model.max_context_s": FULL_CONTEXT_S}
    found: dict[str, dict[str, Any]] = {
        f"Rayscribe, 30 s, {size.batch} a batch": {},
        f"Rayscribe, buckets, {size.batch} a batch": buckets,
        f"Rayscribe, buckets, {of_seconds}": buckets | padded,
    }
    if ON_GPU:
        found[f"Rayscribe, 30 s, {size.batch} a batch, compiled"] = {"training.torch_compile": True}
    return found


def rows_of(size: Size, speech: Speech, steps: int, folder: Path, peak: float | None) -> Iterator[tuple[str, ...]]:
    """All recipes of one size, the stock one first."""
    length = {"training.max_steps": WARM_UP + steps}
    stock = "stock" if size.is_ctc else "stock, 30 s"
    timed = stock_steps(size, speech, training_config(size, length), folder)
    yield row(size, f"{stock}, {size.batch} a batch", timed, peak)
    gc.collect()
    for name, changes in recipes_of(size).items():
        made = training_config(size, length | changes)
        timed = our_steps(recognizer_of(size, speech, made), speech, made, folder)
        note = "" if timed.compiled == made.training.torch_compile else " (not compiled)"
        yield row(size, name + note, timed, peak)
        gc.collect()


def show(cells: Sequence[str]) -> None:
    """As Markdown, at once."""
    print(f"| {' | '.join(cells)} |", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=[size.name for size in SIZES], help="default: all")
    parser.add_argument("--steps", type=int, default=24, help="timed optimizer steps of each recipe")
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
        for size in sizes:
            for cells in rows_of(size, speech, given.steps, Path(folder), peak_flops(device)):
                show(cells)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
