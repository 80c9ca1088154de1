from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers.synthetic import config
from trainers.config.parts.training_part import AdaptPart
from trainers.models.adaptation.base_weights import BaseWeightsReference
from trainers.models.adaptation.lora import Adapter
from trainers.models.recognizer import pad_labels
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.models.whisper.whisper_recognizer import FullContextMatching, WhisperRecognizer

MODEL: Any = config({"model.encoder_layers": 2}).model
MATCHED = MODEL.model_copy(update={"full_context_matching": 2.0})
# Three clips of a second, the first two of which are in the sample; a context of 3 s.
CLIPS = torch.randint(-9000, 9000, (3, 16_000), dtype=torch.int16, generator=torch.Generator().manual_seed(1))
SAMPLE, SHARES = list(CLIPS[:2]), torch.tensor([0.25, 0.5])
CONTEXT_S, POSITIONS = 3, 150
PRECISIONS = (None, torch.bfloat16)


@pytest.fixture
def recognizer(tmp_path: Path) -> WhisperRecognizer:
    WhisperFamily().write_description(tmp_path, ["one two"], MODEL)
    recognizer = WhisperFamily().load_recognizer(MODEL, tmp_path, seed=1)
    assert isinstance(recognizer, WhisperRecognizer)
    return recognizer


@pytest.fixture
def matching(recognizer: WhisperRecognizer) -> FullContextMatching:
    return FullContextMatching(recognizer, MATCHED, None)


def forward(recognizer: WhisperRecognizer, matching: FullContextMatching | None) -> Any:
    """A pass of all clips at the short context, some of which are in the sample."""
    short = recognizer.new_features().inputs(list(CLIPS), 1.0)
    labels = pad_labels([[1, 2], [3], [4]], start_id=recognizer.model.config.decoder_start_token_id, pad_id=0)
    del labels["labels"]
    with recognizer.with_input_length(short):
        if matching is None:
            return recognizer.model(**short, **labels)
        with matching.of(SAMPLE, SHARES):
            return recognizer.model(**short, **labels)


def move(network: Any) -> None:
    """Moves every weight that is trained."""
    generator = torch.Generator().manual_seed(2)
    for weight in network.parameters():
        if weight.requires_grad:
            weight.data.add_(0.05 * torch.randn(weight.shape, generator=generator))


def test_nothing_differs_before_the_first_step(recognizer: WhisperRecognizer, matching: FullContextMatching) -> None:
    assert float(forward(recognizer, matching)["loss"].detach()) == 0.0


def test_it_is_the_mean_square_of_each_clip_by_its_share(
    recognizer: WhisperRecognizer, matching: FullContextMatching
) -> None:
    encoder, full = recognizer.model.get_encoder(), recognizer.new_features().inputs(SAMPLE, CONTEXT_S)
    with torch.no_grad():
        before = encoder(**full).last_hidden_state
        move(recognizer.model)
        after = encoder(**full).last_hidden_state
    each = [float(((after[row] - before[row]) ** 2).mean()) for row in range(2)]
    assert min(each) > 1e-4
    output = forward(recognizer, matching)
    assert float(output["loss"].detach()) == pytest.approx(0.25 * each[0] + 0.5 * each[1], rel=1e-5)
    plain = forward(recognizer, None)
    assert plain.loss is None and torch.equal(plain.logits, output.logits)


def test_its_gradient_is_the_trained_encoder_s(recognizer: WhisperRecognizer, matching: FullContextMatching) -> None:
    move(recognizer.model)
    forward(recognizer, matching)["loss"].backward()
    gradients = {name for name, weight in recognizer.model.named_parameters() if weight.grad is not None}
    encoder = {name for name, weight in recognizer.model.named_parameters() if name.startswith("model.encoder.")}
    assert gradients == encoder - {"model.encoder.embed_positions.weight"}
    assert all(weight.grad is None for weight in matching._original.parameters())


def test_in_lower_precision_it_is_about_the_same(recognizer: WhisperRecognizer) -> None:
    single, half = (FullContextMatching(recognizer, MATCHED, dtype) for dtype in PRECISIONS)
    move(recognizer.model)
    expected, found = (forward(recognizer, matching)["loss"] for matching in (single, half))
    assert found.dtype == torch.float32 and float(found.detach()) != float(expected.detach())
    assert float(found.detach()) == pytest.approx(float(expected.detach()), rel=0.05)
    found.backward()
    assert all(weight.grad is not None for weight in recognizer.model.get_encoder().layers.parameters())


def test_the_original_is_no_part_of_the_model(recognizer: WhisperRecognizer) -> None:
    names = set(recognizer.model.state_dict())
    matching = FullContextMatching(recognizer, MATCHED, None)
    assert set(recognizer.model.state_dict()) == names
    assert recognizer.model.config.max_source_positions == POSITIONS
    forward(recognizer, matching)
    assert recognizer.model.config.max_source_positions == POSITIONS


def test_of_an_adapter_the_original_is_the_base_without_it(recognizer: WhisperRecognizer) -> None:
    base = BaseWeightsReference.of_run(recognizer.model)
    matching = FullContextMatching(recognizer, MATCHED, None)
    Adapter.added(recognizer.model, AdaptPart(method="lora", r=2, alpha=4), 0, base)
    assert float(forward(recognizer, matching)["loss"].detach()) == 0.0, "a new adapter changes nothing"
    move(recognizer.model)
    moved = forward(recognizer, matching)["loss"]
    moved.backward()
    assert float(moved.detach()) > 1e-5
    gradients = {name for name, weight in recognizer.model.named_parameters() if weight.grad is not None}
    assert gradients and all("lora_" in name for name in gradients)
    assert base.is_own
