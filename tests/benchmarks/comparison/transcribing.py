"""`rayscribe transcribe` and faster-whisper with the same weights on the same recordings."""

import sys
from pathlib import Path

from tests.benchmarks.comparison.bench import SIDES, Bench, take_turns
from tests.benchmarks.comparison.sides import Side
from tests.benchmarks.table import Row
from tests.benchmarks.weights import write_known_weights
from tests.trainers.pipeline.export.exports_environment import PYTHON


def compare_transcribing(bench: Bench) -> list[Row]:
    """Ours alone where faster-whisper is not installed; the row then says how it is."""
    manifest, model = bench.speech.folder / "score.csv", bench.folder / "known-model"
    write_known_weights(model, manifest, bench.sizes)

    def start(name: str, verb: str, python: Path) -> Side:
        given = [verb, "--model", str(model), "--manifest", str(manifest)]
        return Side.start(name, f"{SIDES}.transcribers", given, folder=bench.folder, ranks=1, python=python)

    ours = start("Rayscribe", "rayscribe", Path(sys.executable))
    peer = start("faster-whisper", "faster-whisper", PYTHON) if PYTHON.exists() else None
    mine, theirs = take_turns(bench, "transcribe", (ours, peer))
    errors = " : ".join(f"{side.turns[0]['wer']:.1f}" for side in (ours, peer) if side is not None)
    note = "" if peer is not None else ", not installed: `make exports`"
    return [Row(f"transcribe, clips/s (WER {errors} %) : faster-whisper{note}", mine, theirs, digits=2)]
