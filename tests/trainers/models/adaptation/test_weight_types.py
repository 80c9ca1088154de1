"""A base of bfloat16 under an adapter of float32: what transformers and peft compute, in half the memory."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from transformers import AutoConfig

from tests.trainers.models.adaptation.networks import CONFIGS, CTC, SEQ2SEQ
from tests.trainers.models.adaptation.test_lora import INPUTS, PART, network
from trainers.config.parts.model_part import ModelPart
from trainers.models.adaptation.base_weights import BaseWeightsReference
from trainers.models.adaptation.lora import ADAPTER, ADAPTER_WEIGHTS, Adapter, merge_folder
from trainers.models.families import family_of_type
from trainers.models.pretrained import from_pretrained, network_options


def opened(kind: str, folder: Path, dtype: Any = "bfloat16") -> tuple[Any, BaseWeightsReference]:
    """Weights of a folder, and their reference."""
    part = ModelPart(name_or_path=str(folder), dtype=dtype)
    model = from_pretrained(part, family_of_type(kind).auto_class(CONFIGS[kind]), **network_options(part))
    return model, BaseWeightsReference.pretrained(model, part, 0)


def moved(model: Any) -> None:
    """Moves every weight that is trained."""
    torch.manual_seed(5)
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data.add_(torch.randn_like(weight), alpha=0.05)


def logits(kind: str, model: Any) -> torch.Tensor:
    torch.manual_seed(3)
    name, shape = INPUTS[kind]
    inputs = {name: torch.randn(shape).to(model.dtype)}
    if kind in SEQ2SEQ:
        inputs["decoder_input_ids"] = torch.tensor([[2, 5, 7]])
    found: torch.Tensor = model.eval()(**inputs).logits
    return found


def weight_bytes(model: Any) -> int:
    return sum(weight.numel() * weight.element_size() for weight in model.parameters())


@pytest.fixture
def folder(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    network(request.getfixturevalue("kind")).save_pretrained(tmp_path / "base")
    return tmp_path / "base"


@pytest.mark.parametrize("kind", CONFIGS)
def test_it_takes_half_the_memory_and_computes_what_transformers_and_peft_do(
    kind: str, folder: Path, tmp_path: Path
) -> None:
    whole, _ = opened(kind, folder, "float32")
    model, base = opened(kind, folder)
    assert 2 * weight_bytes(model) == weight_bytes(whole)
    adapter = Adapter.added(model, PART, 0, base)
    moved(model)
    adapter.save(tmp_path)
    trained = {name for name, weight in model.named_parameters() if weight.requires_grad}
    types = {name: weight.dtype for name, weight in model.named_parameters()}
    assert trained and {types[name] for name in trained} == {torch.float32}
    assert {types[name] for name in types if name not in trained and "original_module" not in name} == {torch.bfloat16}

    stock = family_of_type(kind).auto_class(CONFIGS[kind]).from_pretrained(folder, dtype=torch.bfloat16)
    PeftModel.from_pretrained(stock, str(tmp_path), is_trainable=True)
    if kind in CTC:
        # peft's own copy of a head is bfloat16.
        trained_head = load_file(tmp_path / ADAPTER_WEIGHTS)
        weight, bias = (trained_head[f"base_model.model.lm_head.{name}"] for name in ("weight", "bias"))
        stock.lm_head = HeadOfFloat32(weight, bias)
    assert torch.equal(logits(kind, model), logits(kind, stock))


class HeadOfFloat32(torch.nn.Module):
    """An output layer."""

    def __init__(self, weight: torch.Tensor, bias: torch.Tensor):
        super().__init__()
        self._given = weight, bias

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(hidden.float(), *self._given)


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_weight_of_its_adapter_learns(kind: str, folder: Path) -> None:
    model, base = opened(kind, folder)
    Adapter.added(model, PART, 0, base)
    logits(kind, model).float().square().sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if weight.requires_grad}
    assert {gradient.dtype for gradient in gradients.values() if gradient is not None} == {torch.float32}
    idle = [name for name, each in gradients.items() if "lora_A" not in name and (each is None or not each.any())]
    assert idle == []


@pytest.mark.parametrize("kind", CONFIGS)
def test_it_is_merged_in_float32_and_written_in_its_own_type(kind: str, folder: Path, tmp_path: Path) -> None:
    model, base = opened(kind, folder)
    adapter = Adapter.added(model, PART, 0, base)
    moved(model)
    checkpoint = tmp_path / "checkpoint"
    checkpoint.mkdir()
    adapter.save(checkpoint)
    assert json.loads((checkpoint / "base.json").read_text())["dtype"] == "bfloat16"
    kept = load_file(checkpoint / ADAPTER_WEIGHTS)
    assert {weight.dtype for weight in kept.values()} == {torch.float32}

    merged = merge_folder(checkpoint)
    found, before = load_file(merged / "model.safetensors"), load_file(folder / "model.safetensors")
    assert AutoConfig.from_pretrained(merged).dtype == torch.bfloat16
    assert {weight.dtype for weight in found.values()} == {torch.bfloat16} and found.keys() == before.keys()
    assert (merged / ADAPTER / ADAPTER_WEIGHTS).read_bytes() == (checkpoint / ADAPTER_WEIGHTS).read_bytes()
    for name, weight in before.items():
        wanted = kept.get(f"base_model.model.{name}", weight.bfloat16().float())
        module = f"base_model.model.{name.removesuffix('.weight')}"
        if f"{module}.lora_A.weight" in kept:
            low, high = (kept[f"{module}.lora_{side}.weight"] for side in "AB")
            wanted = wanted + high @ low * (PART.alpha / PART.r)
        assert torch.equal(found[name], wanted.bfloat16()), name


def test_an_adapter_goes_on_bit_for_bit_on_a_base_that_is_opened_again(tmp_path: Path) -> None:
    network("wav2vec2").save_pretrained(tmp_path / "base")
    first, base = opened("wav2vec2", tmp_path / "base")
    adapter = Adapter.added(first, PART, 0, base)
    moved(first)
    adapter.save(tmp_path)
    again, found = opened("wav2vec2", tmp_path / "base")
    BaseWeightsReference.of_checkpoint(tmp_path).check(again)
    Adapter.added(again, PART, 1, found).load(tmp_path)
    assert torch.equal(logits("wav2vec2", first), logits("wav2vec2", again))
    other, _ = opened("wav2vec2", tmp_path / "base", "float32")
    assert BaseWeightsReference.pretrained(other, ModelPart(name_or_path="x"), 0).sha256 != base.sha256
