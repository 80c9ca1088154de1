"""What training at the size of whisper-large-v3 takes of a GPU's memory, against the bounds in docs/gpu.md."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.gpu.device import GIB, NAME, ON_GPU, memory_bytes
from tests.gpu.sizes import LARGE, REHEARSAL, recognizer_of, training_config
from tests.gpu.steps import WARM_UP, our_steps
from tests.gpu.tones import new_speech
from trainers.models.adaptation.base_weights import BaseWeightsReference
from trainers.models.adaptation.lora import Adapter
from trainers.models.adaptation.trained_weights import count

# Eight clips of 30 s, bf16, activations recomputed. Full: 16 bytes a weight (float32 weight, gradient, AdamW's two) and
# 2 for autocast's copy are 26 GiB. LoRA: 4 and 2 bytes are 9 GiB. The rest is activations, and logits in float32.
BATCH = 8 if ON_GPU else 1
BOUNDS_GIB = {"full": 40, "lora": 20}


@pytest.mark.parametrize("method", BOUNDS_GIB)
def test_large_v3_trains_within_the_documented_memory(method: str, tmp_path: Path) -> None:
    bound = BOUNDS_GIB[method] * GIB
    if ON_GPU and memory_bytes() < bound:
        pytest.skip(f"needs a GPU of {BOUNDS_GIB[method]} GiB")
    size = LARGE if ON_GPU else REHEARSAL[0]
    changes: dict[str, Any] = {
        "training.max_steps": WARM_UP + 2,
        "training.per_device_train_batch_size": BATCH,
        "training.gradient_checkpointing": True,
        "adapt": {"method": "lora"} if method == "lora" else {},
    }
    made, speech = training_config(size, changes), new_speech(tmp_path / "speech", 2 * BATCH)
    recognizer = recognizer_of(size, speech, made)
    if method == "lora":
        base = BaseWeightsReference.of_run(recognizer.model.cpu())
        recognizer = replace(recognizer, adapter=Adapter.added(recognizer.model.to(NAME), made.adapt, 1, base))
    trained, weights = count(recognizer.model)
    assert (trained < weights / 20) == (method == "lora")
    timed = our_steps(recognizer, speech, made, tmp_path / "out")
    assert timed.clips == 2 * BATCH
    print(f"\n{size.name}, {method}: {weights:,} weights, {timed.memory.peak / GIB:.1f} GiB at most")
    assert timed.memory.peak <= bound
    # Weights in float32; of what is trained a gradient and AdamW's two moments, whose counters are next to nothing.
    assert timed.memory.static == pytest.approx(4 * weights + 12 * trained, rel=1e-3)
