import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCTC, AutoModelForSpeechSeq2Seq

from tests.trainers.models.adaptation.networks import CONFIGS, CTC, SEQ2SEQ
from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.training_part import AdaptPart
from trainers.errors import DamagedError
from trainers.models.adaptation.base_weights import BaseWeightsReference, fingerprint
from trainers.models.adaptation.lora import ADAPTER_WEIGHTS, Adapter, merge_folder
from trainers.models.adaptation.trained_weights import count
from trainers.models.families import family_of_type

PART = AdaptPart(method="lora", r=2, alpha=4)


def network(kind: str, seed: int = 0) -> Any:
    """A network with weights."""
    torch.manual_seed(seed)
    return family_of_type(kind).auto_class(CONFIGS[kind]).from_config(CONFIGS[kind])


def trained(model: Any) -> Adapter:
    """An adapter whose every weight, and the head's, has moved."""
    adapter = Adapter.added(model, PART, 0, BaseWeightsReference.of_run(model))
    for weight in model.parameters():
        if weight.requires_grad:
            weight.data.add_(0.1)
    return adapter


@pytest.mark.parametrize("kind", CONFIGS)
def test_a_checkpoint_opens_on_its_base_and_merges(kind: str, tmp_path: Path) -> None:
    model = network(kind)
    adapter, base = trained(model), network(kind)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    adapter.save(folder)
    name = json.loads((folder / "base.json").read_text())["folder"]
    base.save_pretrained(tmp_path / name)
    target = merge_folder(folder)
    opened = (AutoModelForCTC if kind in CTC else AutoModelForSpeechSeq2Seq).from_pretrained(target)
    merged, found = adapter.merged().state_dict(), opened.state_dict()
    assert all(torch.equal(merged[name], found[name]) for name in merged)
    assert any(not torch.equal(found[name], weight) for name, weight in base.state_dict().items())


@pytest.mark.parametrize("kind", SEQ2SEQ)
def test_a_new_adapter_changes_nothing_and_is_the_same_on_every_rank(kind: str) -> None:
    first, second, plain = network(kind), network(kind), network(kind)
    bases = [BaseWeightsReference.of_run(model) for model in (first, second)]
    one, _ = (Adapter.added(model, PART, 7, base) for model, base in zip((first, second), bases, strict=True))
    drawn, again = (dict(model.named_parameters()) for model in (first, second))
    assert all(torch.equal(drawn[name], again[name]) for name in drawn)
    merged = one.merged().state_dict()
    assert all(torch.equal(merged[name], weight) for name, weight in plain.state_dict().items())
    assert count(second)[0] == sum(weight.numel() for name, weight in again.items() if "lora_" in name)
    assert all(base.is_own for base in bases)


@pytest.mark.parametrize("kind", CTC)
def test_the_head_of_a_ctc_model_is_trained_with_its_adapter(kind: str, tmp_path: Path) -> None:
    model = network(kind)
    trained(model).save(tmp_path)
    weights = load_file(tmp_path / ADAPTER_WEIGHTS)
    assert {name for name in weights if "lora_" not in name} == {
        f"base_model.model.lm_head.{name}" for name in ("weight", "bias")
    }
    assert fingerprint(network(kind)) == fingerprint(_with_another_head(kind)), "a head is not what it is trained on"


INPUTS: dict[str, tuple[str, tuple[int, ...]]] = {
    "whisper": ("input_features", (1, 80, 3000)),
    "speech_to_text": ("input_features", (1, 40, 80)),
    "moonshine": ("input_values", (1, 8000)),
    "wav2vec2": ("input_values", (1, 8000)),
    "wavlm": ("input_values", (1, 8000)),
    "wav2vec2-bert": ("input_features", (1, 40, 160)),
}


@pytest.mark.parametrize("kind", CONFIGS)
def test_every_adapter_of_the_default_learns(kind: str) -> None:
    model = network(kind)
    Adapter.added(model, PART, 0, BaseWeightsReference.of_run(model))
    name, shape = INPUTS[kind]
    inputs = {name: torch.randn(shape)}
    if kind in SEQ2SEQ:
        inputs["decoder_input_ids"] = torch.tensor([[2, 5, 7]])
    model.eval()(**inputs).logits.square().sum().backward()
    gradients = {name: weight.grad for name, weight in model.named_parameters() if "lora_B" in name}
    assert gradients
    assert [name for name, gradient in gradients.items() if gradient is None or not gradient.any()] == []


def _with_another_head(kind: str) -> Any:
    model = network(kind)
    torch.nn.init.normal_(model.lm_head.weight)
    return model


def test_another_base_is_refused(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    trained(network("whisper")).save(folder)
    name = json.loads((folder / "base.json").read_text())["folder"]
    network("whisper", seed=1).save_pretrained(tmp_path / name)
    with pytest.raises(DamagedError, match=f"{name}: has other weights than the run began with"):
        Adapter.opened(folder)


def test_an_adapter_with_weights_left_out_is_refused(tmp_path: Path) -> None:
    adapter = trained(network("whisper"))
    adapter.save(tmp_path)
    weights = load_file(tmp_path / ADAPTER_WEIGHTS)
    weights.popitem()
    save_file(weights, tmp_path / ADAPTER_WEIGHTS)
    with pytest.raises(DamagedError, match=f"{ADAPTER_WEIGHTS}: has other weights than its config says"):
        adapter.load(tmp_path)


def test_an_adapter_that_names_no_base_is_refused(tmp_path: Path) -> None:
    trained(network("whisper")).save(tmp_path)
    (tmp_path / "base.json").unlink()
    with pytest.raises(DamagedError, match=r"has no base\.json, which says which weights the run began with"):
        merge_folder(tmp_path)


def test_a_folder_without_an_adapter_is_left_as_it_is(tmp_path: Path) -> None:
    network("whisper").save_pretrained(tmp_path)
    assert merge_folder(tmp_path) == tmp_path


def test_weights_that_the_base_lacks_are_those_that_the_adapter_was_trained_beside(tmp_path: Path) -> None:
    lacked, pretrained, folder = "wav2vec2.masked_spec_embed", tmp_path / "pretrained", tmp_path / "checkpoint"
    network("wav2vec2").save_pretrained(pretrained)
    weights = load_file(pretrained / "model.safetensors")
    del weights[lacked]
    save_file(weights, pretrained / "model.safetensors", metadata={"format": "pt"})
    torch.manual_seed(7)
    model = AutoModelForCTC.from_pretrained(pretrained)
    drawn = model.state_dict()[lacked].clone()
    base = BaseWeightsReference.pretrained(model, ModelPart(name_or_path=str(pretrained)), 7)
    folder.mkdir()
    Adapter.added(model, PART, 0, base).save(folder)
    merged = load_file(merge_folder(folder) / "model.safetensors")
    assert torch.equal(merged[lacked], drawn)


def test_a_base_of_a_version_that_wrote_no_seed_opens(tmp_path: Path) -> None:
    network("wav2vec2").save_pretrained(tmp_path / "pretrained")
    model = AutoModelForCTC.from_pretrained(tmp_path / "pretrained")
    base = BaseWeightsReference.pretrained(model, ModelPart(name_or_path=str(tmp_path / "pretrained")), 7)
    folder = tmp_path / "checkpoint"
    folder.mkdir()
    Adapter.added(model, PART, 0, base).save(folder)
    written = json.loads((folder / "base.json").read_text())
    del written["seed"]
    (folder / "base.json").write_text(json.dumps(written))
    assert fingerprint(AutoModelForCTC.from_pretrained(merge_folder(folder))) == base.sha256
