"""Rayscribe against the stock recipe on one GPU, in one run: speech trained on in an hour, MFU, and memory.

    make bench-gpu        or    python -m tests.gpu.benchmark [--sizes tiny small large-v3] [--steps 12]

Models have the sizes of the published ones and random weights, clips the lengths of read speech. Both sides train all
weights in bf16 with the same batch; only Rayscribe computes features in the step. Prints a table in Markdown.
"""

import argparse
import gc
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import torch
import transformers

from tests.gpu.device import GIB, NAME, ON_GPU, missing
from tests.gpu.sizes import FULL_CONTEXT_S, REHEARSAL, SIZES, Size, Speech, new_speech, recognizer_of, training_config
from tests.gpu.steps import WARM_UP, Timed, our_steps, stock_steps

HEADER = ("model", "recipe", "batch", "clips/s", "audio h / GPU h", "MFU", "peak GiB")
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
BATCHES = {"tiny": 32, "small": 16, "large-v3": 8}
LARGE = "large-v3"


def peak_flops(name: str) -> float | None:
    """Of a device, flops a second; None where it is not known."""
    return next((tera * 1e12 for part, tera in PEAK_TFLOPS.items() if part in name), None)


def row(size: Size, recipe: str, batch: int, timed: Timed, peak: float | None) -> tuple[str, ...]:
    """As shown."""
    mfu = f"{timed.flops / timed.seconds / peak:.1%}" if peak is not None else "not known"
    memory = f"{timed.peak_bytes / GIB:.1f}" if ON_GPU else "not measured"
    speed = f"{timed.clips / timed.seconds:.1f}", f"{timed.audio_s / timed.seconds:,.0f}"
    return size.name, recipe, str(batch), *speed, mfu, memory


def rows_of(size: Size, speech: Speech, steps: int, folder: Path, peak: float | None) -> Iterator[tuple[str, ...]]:
    """All recipes of one size."""
    batch = BATCHES.get(size.name, 1)
    common = {
        "training.max_steps": WARM_UP + steps,
        "training.per_device_train_batch_size": batch,
        "training.bf16": True,
        "training.gradient_checkpointing": size.name == LARGE,
    }
    whole = training_config(common)
    recipes = {
        "Rayscribe, 30 s": whole,
        "Rayscribe, buckets": training_config(common | {"model.max_context_s": FULL_CONTEXT_S}),
    }
    if ON_GPU:
        recipes["Rayscribe, 30 s, torch_compile"] = training_config(common | {"training.torch_compile": True})
    processor = None
    for name, made in recipes.items():
        recognizer = recognizer_of(size, speech, made)
        processor = recognizer.processor
        timed = our_steps(recognizer, speech, made, size, folder)
        note = "" if timed.compiled == made.training.torch_compile else " (not compiled)"
        yield row(size, name + note, batch, timed, peak)
        del recognizer
        gc.collect()
    yield row(size, "stock, 30 s", batch, stock_steps(size, speech, whole, processor, folder), peak)
    gc.collect()


def render(rows: Sequence[tuple[str, ...]]) -> str:
    """The table as Markdown."""
    rule = ("---", "---", *["---:"] * (len(HEADER) - 2))
    return "\n".join(f"| {' | '.join(cells)} |" for cells in (HEADER, rule, *rows))


def main(arguments: Sequence[str] | None = None) -> int:
    """Measures, and prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--sizes", nargs="+", choices=[size.name for size in SIZES], help="default: all")
    parser.add_argument("--steps", type=int, default=12, help="timed optimizer steps of each recipe")
    given = parser.parse_args(arguments)
    if (reason := missing()) is not None:
        print(f"not measured: {reason}")
        return 1
    sizes = [size for size in SIZES if given.sizes is None or size.name in given.sizes] if ON_GPU else [REHEARSAL]
    device = torch.cuda.get_device_name() if ON_GPU else NAME
    print(f"{device} · torch {torch.__version__} · transformers {transformers.__version__} · {given.steps} steps")
    with tempfile.TemporaryDirectory() as folder:
        speech = new_speech(Path(folder) / "speech", 64 if ON_GPU else 4)
        rows = [
            cells for size in sizes for cells in rows_of(size, speech, given.steps, Path(folder), peak_flops(device))
        ]
    print(render(rows))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
