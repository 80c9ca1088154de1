"""Families of models of other kinds, as another distribution brings them, keep what every family promises."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from transformers import AutoProcessor

from tests.trainers.synthetic import speechlike
from trainers.config.parts.adapt_part import AdaptPart
from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.features.model_input import INT16_RANGE, LENGTHS
from trainers.errors import ConfigError
from trainers.models import families
from trainers.models.adaptation.trained_weights import trained_names
from trainers.models.labels import empty_labels
from trainers.models.recognizer import IGNORED_LABEL, Decoding, Recognizer, Target

TENANTS = Path(__file__).parent / "tenants"
TEXTS, DURATIONS_S = ["one two", "a", "three four"], [1.0, 0.7, 1.5]
HOW = Decoding(max_length=20, num_beams=1)
BEGIN = "<|startofcontext|><|startoftranscript|><|emo:undefined|><|en|><|en|><|pnc|><|noitn|><|notimestamp|>"


@dataclass(frozen=True)
class Tenant:
    """A family, and what is expected of it.

    Attributes:
        family: Its class.
        part: The class of its part of the config.
        write: Writes a tiny model of it.
        auto_class: Of transformers, opens its models.
        stock: From its processor, a waveform and a transcript, what its network is given as transformers does it.
        frozen: Modules that freeze_encoder trains.
        last: Modules that last_n_layers trains, n being 1.
    """

    family: str
    part: str
    write: str
    auto_class: str
    frozen: set[str]
    last: set[str]
    stock: Callable[[Any, Any, str], Mapping[str, Any]]


def tdt_inputs(processor: Any, wave: Any, text: str) -> Mapping[str, Any]:
    inputs: Mapping[str, Any] = processor([wave], text=[text], sampling_rate=SAMPLING_RATE_HZ)
    return inputs


def canary_inputs(processor: Any, wave: Any, text: str) -> Mapping[str, Any]:
    options = {"sampling_rate": SAMPLING_RATE_HZ, "output_labels": True, "add_special_tokens": False}
    inputs: Mapping[str, Any] = processor([wave], text=[f"{BEGIN}{text}<|endoftext|>"], **options)
    return inputs


def qwen3_inputs(processor: Any, wave: Any, text: str) -> Mapping[str, Any]:
    chat = "<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n<|im_start|>assistant\n"
    answer = f"language English<asr_text>{text}<|im_end|>"
    inputs = processor(text=[f"{chat}{answer}"], audio=[wave], sampling_rate=SAMPLING_RATE_HZ)
    size = len(processor.tokenizer(answer).input_ids)
    labels = inputs["input_ids"].clone()
    labels[:, :-size] = IGNORED_LABEL
    return {**inputs, "labels": labels}


ALL = {
    "tdt": Tenant(
        family="tdt_family.ParakeetTdtFamily",
        part="parts.ParakeetTdtPart",
        write="tiny_tdt.write_tiny_tdt",
        auto_class="AutoModelForTDT",
        frozen={"encoder_projector", "decoder", "joint"},
        last={"encoder.layers.1", "joint"},
        stock=tdt_inputs,
    ),
    "canary": Tenant(
        family="canary_family.CanaryFamily",
        part="parts.CanaryPart",
        write="tiny_canary.write_tiny_canary",
        auto_class="AutoModelForSpeechSeq2Seq",
        frozen={"model.decoder", "proj_out"},
        last={"model.encoder.layers.1", "model.decoder.layers.1"},
        stock=canary_inputs,
    ),
    "qwen3-asr": Tenant(
        family="qwen3_family.Qwen3AsrFamily",
        part="parts.Qwen3AsrPart",
        write="tiny_qwen3.write_tiny_qwen3",
        auto_class="AutoModelForMultimodalLM",
        frozen={"model.multi_modal_projector", "model.language_model"},
        last={"model.audio_tower.layers.1", "model.language_model.layers.1"},
        stock=qwen3_inputs,
    ),
}


def named(name: str) -> Any:
    """What a dotted name of the distribution means."""
    module, _, own = name.rpartition(".")
    return getattr(import_module(f"speech_tenants.{module}"), own)


@pytest.fixture(scope="module", params=ALL)
def tenant(request: pytest.FixtureRequest) -> Iterator[Tenant]:
    found = ALL[request.param]
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(TENANTS)
        family = named(found.family)()
        patch.setitem(families.FAMILIES, family.name, family)
        yield found


@pytest.fixture(scope="module")
def recognizer(tenant: Tenant, tmp_path_factory: pytest.TempPathFactory) -> Recognizer:
    folder = tmp_path_factory.mktemp("tenant")
    named(tenant.write)(folder)
    part = named(tenant.part)(name_or_path=str(folder))
    loaded: Recognizer = named(tenant.family)().load_recognizer(part, None, seed=1)
    loaded.model.eval()
    return loaded


def clips() -> list[torch.Tensor]:
    return [torch.from_numpy(speechlike(seconds)) for seconds in DURATIONS_S]


@torch.no_grad()
def loss_of(recognizer: Recognizer, rows: list[list[int]], samples: list[torch.Tensor], count: int | None) -> float:
    """By the seam, as training computes it."""
    given = recognizer.new_features().inputs(samples, None)
    lengths = given.pop(LENGTHS, None)
    collated = recognizer.collate_labels(rows, [len(clip) for clip in samples])
    labels = collated.pop("labels")
    return float(recognizer.loss(recognizer.model(**given, **collated), Target(labels, lengths), count))


def test_the_loss_is_the_one_of_transformers(tenant: Tenant, recognizer: Recognizer) -> None:
    for clip, text in zip(clips(), TEXTS, strict=True):
        wave = clip.numpy().astype(np.float32) / INT16_RANGE
        stock = recognizer.model(**tenant.stock(recognizer.processor, wave, text)).loss.item()
        ours = loss_of(recognizer, recognizer.encode_labels([text]), [clip], None)
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


@pytest.mark.parametrize("method", ["freeze_encoder", "last_n_layers"])
def test_a_method_trains_what_it_names(tenant: Tenant, recognizer: Recognizer, method: Any) -> None:
    modules, n = (tenant.frozen, None) if method == "freeze_encoder" else (tenant.last, 1)
    names = {name for name, _ in recognizer.model.named_parameters()}
    expected = {name for name in names if any(name.startswith(f"{module}.") for module in modules)}
    assert expected and trained_names(recognizer.model, AdaptPart(method=method, n=n)) == expected


def test_an_export_is_opened_by_the_auto_classes_and_gives_the_same_words(
    tenant: Tenant, recognizer: Recognizer, tmp_path: Path
) -> None:
    family = named(tenant.family)()
    recognizer.model.save_pretrained(tmp_path)
    recognizer.processor.save_pretrained(tmp_path)
    family.export_processor(tmp_path)
    assert type(AutoProcessor.from_pretrained(tmp_path)) is type(recognizer.processor)
    assert type(getattr(transformers, tenant.auto_class).from_pretrained(tmp_path)) is type(recognizer.model)
    again = family.open_exported(tmp_path)
    again.model.eval()
    rows, inputs = recognizer.encode_labels(TEXTS), recognizer.new_features().inputs(clips(), None)
    assert again.recognize(inputs, rows, HOW) == recognizer.recognize(inputs, rows, HOW)


@pytest.mark.parametrize("tenant", ["canary"], indirect=True)
def test_a_clip_s_language_stands_in_both_places_of_a_prompt(recognizer: Recognizer) -> None:
    codec, tokenizer = recognizer.codec, recognizer.processor.tokenizer
    rows = empty_labels(codec, recognizer.processor, ["German", None, "en"], "English")
    tokens = [[token for token in tokenizer.convert_ids_to_tokens(row) if len(token) == len("<|en|>")] for row in rows]
    assert tokens == [["<|de|>"] * 2, ["<|en|>"] * 2, ["<|en|>"] * 2]
    with pytest.raises(ConfigError, match=r"1 clip has the language 'Serbian' \(the model has no token <\|sr\|>\)"):
        empty_labels(codec, recognizer.processor, ["Serbian"], "English")
