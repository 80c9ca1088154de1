"""A token-and-duration transducer, as a family of another distribution, keeps what every family promises."""

from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from transformers import AutoModelForTDT, AutoProcessor

from tests.trainers.synthetic import speechlike
from trainers.config.parts.adapt_part import AdaptPart
from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.features.model_input import INT16_RANGE, LENGTHS
from trainers.models import families
from trainers.models.adaptation.trained_weights import trained_names
from trainers.models.recognizer import IGNORED_LABEL, Decoding, Recognizer, Target

TENANTS = Path(__file__).parent / "tenants"
TEXTS, DURATIONS_S = ["one two", "a", "three four"], [1.0, 0.7, 1.5]
HOW = Decoding(max_length=20, num_beams=1)


@pytest.fixture(scope="module")
def family() -> Iterator[Any]:
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TENANTS)
        made = import_module("speech_tenants.tdt_family").ParakeetTdtFamily()
        patch.setitem(families.FAMILIES, made.name, made)
        yield made


@pytest.fixture(scope="module")
def folder(family: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("tdt")
    import_module("speech_tenants.tiny_tdt").write_tiny_tdt(folder)
    return folder


@pytest.fixture(scope="module")
def recognizer(family: Any, folder: Path) -> Recognizer:
    part = import_module("speech_tenants.parts").ParakeetTdtPart(name_or_path=str(folder))
    loaded: Recognizer = family.load_recognizer(part, None, seed=1)
    loaded.model.eval()
    return loaded


def clips() -> list[torch.Tensor]:
    return [torch.from_numpy(speechlike(seconds)) for seconds in DURATIONS_S]


@torch.no_grad()
def loss_of(recognizer: Recognizer, rows: list[list[int]], samples: list[torch.Tensor], count: int | None) -> float:
    """By the seam, as training computes it."""
    given = recognizer.new_features().inputs(samples, None)
    lengths = given.pop(LENGTHS)
    collated = recognizer.collate_labels(rows, [len(clip) for clip in samples])
    labels = collated.pop("labels")
    return float(recognizer.loss(recognizer.model(**given, **collated), Target(labels, lengths), count))


def test_the_loss_is_the_one_of_transformers(recognizer: Recognizer) -> None:
    waves = [clip.numpy().astype(np.float32) / INT16_RANGE for clip in clips()]
    inputs = recognizer.processor(waves, text=TEXTS, sampling_rate=SAMPLING_RATE_HZ)
    stock = recognizer.model(**inputs).loss.item()
    ours = loss_of(recognizer, recognizer.encode_labels(TEXTS), clips(), None)
    assert ours == pytest.approx(stock, rel=1e-5)


def test_parts_of_a_batch_add_to_the_loss_of_it_and_a_filler_costs_nothing(recognizer: Recognizer) -> None:
    rows, samples = recognizer.encode_labels(TEXTS), clips()
    together = loss_of(recognizer, rows, samples, 3)
    apart = sum(loss_of(recognizer, [row], [clip], 3) for row, clip in zip(rows, samples, strict=True))
    assert apart == pytest.approx(together, rel=1e-5)
    filler = loss_of(recognizer, [rows[0], [IGNORED_LABEL] * 2], samples[:2], 1)
    assert filler == pytest.approx(loss_of(recognizer, rows[:1], samples[:1], 1), rel=1e-5)


def test_an_utterance_is_recognized_alike_alone_and_in_a_batch(recognizer: Recognizer) -> None:
    rows, features = recognizer.encode_labels(TEXTS), recognizer.new_features()
    together = recognizer.recognize(features.inputs(clips(), None), rows, HOW)
    for found, row, clip in zip(together, rows, clips(), strict=True):
        (alone,) = recognizer.recognize(features.inputs([clip], None), [row], HOW)
        assert alone.text == found.text != ""
        assert alone.loss == pytest.approx(found.loss, rel=1e-4)
        assert alone.avg_logprob == pytest.approx(found.avg_logprob, rel=1e-4)


@pytest.mark.parametrize(
    ("adapt", "modules"),
    [
        (AdaptPart(method="freeze_encoder"), {"encoder_projector", "decoder", "joint"}),
        (AdaptPart(method="last_n_layers", n=1), {"encoder.layers.1", "joint"}),
    ],
)
def test_a_method_trains_what_it_names(recognizer: Recognizer, adapt: AdaptPart, modules: set[str]) -> None:
    names = {name for name, _ in recognizer.model.named_parameters()}
    expected = {name for name in names if any(name.startswith(f"{module}.") for module in modules)}
    assert expected and trained_names(recognizer.model, adapt) == expected


def test_an_export_is_opened_by_the_auto_classes_and_gives_the_same_words(
    family: Any, recognizer: Recognizer, tmp_path: Path
) -> None:
    recognizer.model.save_pretrained(tmp_path)
    recognizer.processor.save_pretrained(tmp_path)
    family.export_processor(tmp_path)
    assert AutoProcessor.from_pretrained(tmp_path).decoder_type == "tdt"
    assert type(AutoModelForTDT.from_pretrained(tmp_path)) is type(recognizer.model)
    again = family.open_exported(tmp_path)
    again.model.eval()
    rows, inputs = recognizer.encode_labels(TEXTS), recognizer.new_features().inputs(clips(), None)
    assert again.recognize(inputs, rows, HOW) == recognizer.recognize(inputs, rows, HOW)
