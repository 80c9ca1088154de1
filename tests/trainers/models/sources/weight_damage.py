"""Weights damaged in every way that a download, a copy or a stranger leaves them, and what the message names."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import WhisperForConditionalGeneration

from trainers.models.whisper.whisper_family import WhisperFamily

SAFE, PICKLED, INDEX = "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
NORM = "model.encoder.layer_norm.weight"
ADAPTER = "adapter_config.json"
Damage = Callable[[Path], object]


def tensors(change: Callable[[dict[str, torch.Tensor]], object], file: str = SAFE) -> Damage:
    def damage(folder: Path) -> None:
        content = load_file(folder / file)
        change(content)
        save_file(content, folder / file, metadata={"format": "pt"})

    return damage


def cut(file: str, share: float = 0.5) -> Damage:
    return lambda folder: os.truncate(folder / file, int((folder / file).stat().st_size * share))


def content(file: str, data: bytes) -> Damage:
    return lambda folder: (folder / file).write_bytes(data)


def without(*patterns: str) -> Damage:
    def damage(folder: Path) -> None:
        for path in [path for pattern in patterns for path in folder.glob(pattern)]:
            path.unlink()

    return damage


def configured(file: str = "config.json", **keys: Any) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).write_text(json.dumps({**json.loads((folder / file).read_bytes()), **keys}))

    return damage


def sharded(damage: Damage) -> Damage:
    def make(folder: Path) -> None:
        network = WhisperForConditionalGeneration.from_pretrained(folder)
        (folder / SAFE).unlink()
        network.save_pretrained(folder, max_shard_size="30KB")
        damage(folder)

    return make


def pickled(damage: Damage) -> Damage:
    def make(folder: Path) -> None:
        torch.save(load_file(folder / SAFE), folder / PICKLED)
        (folder / SAFE).unlink()
        damage(folder)

    return make


def sharded_pickles(folder: Path) -> None:
    """Has pickled weights in two files with their index."""
    held = torch.load(folder / PICKLED)
    (folder / PICKLED).unlink()
    names = sorted(held)
    places: dict[str, str] = {}
    for number, chosen in enumerate((names[:9], names[9:]), start=1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({name: held[name] for name in chosen}, folder / file)
        places |= dict.fromkeys(chosen, file)
    (folder / f"{PICKLED}.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))


class Harmful:
    """Its pickle makes a folder when it is opened."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder / "it_was_run"),)


def adapter(folder: Path) -> None:
    """Puts an adapter next to the weights, as peft saves it."""
    network: Any = WhisperForConditionalGeneration.from_pretrained(folder)
    made = get_peft_model(network, LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False))
    made.save_pretrained(str(folder))


def reindexed(**keys: Any) -> Damage:
    return configured(INDEX, **keys)


def legacy_tokenizer(folder: Path) -> None:
    """Has the tokenizer in several files, as older versions of transformers saved it."""
    WhisperFamily().export_processor(folder)
    (folder / "tokenizer.json").unlink()


def both(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


FIRST, SECOND = "model-00001-of-*.safetensors", "model-00002-of-*.safetensors"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "a tensor is missing": (tensors(lambda held: held.pop(NORM)), rf"they lack {NORM}: copy"),
    "a layer is missing": (
        tensors(lambda held: [held.pop(name) for name in [*held] if name.startswith("model.decoder.layers.0.")]),
        r"they lack model\.decoder\.layers\.0\..*, …",
    ),
    "the decoder's embeddings are missing": (
        tensors(lambda held: held.pop("model.decoder.embed_tokens.weight")),
        r"they lack .*(embed_tokens|proj_out)\.weight",
    ),
    "no tensor is in it": (tensors(lambda held: held.clear()), r"they lack model\."),
    "an unexpected tensor": (
        tensors(lambda held: held.update({"model.more.weight": torch.ones(2)})),
        r"they have, in addition, model\.more\.weight",
    ),
    "a tensor has another name": (
        tensors(lambda held: held.update({"model.encoder.norm.weight": held.pop(NORM)})),
        rf"they lack {NORM}; they have, in addition, model\.encoder\.norm\.weight",
    ),
    "a tensor has another shape": (
        tensors(lambda held: held.update({NORM: torch.ones(5)})),
        rf"they have, in another shape, {NORM} \[5\], not \[\d+\]",
    ),
    "a tensor is transposed": (
        tensors(lambda held: held.update({"model.encoder.layers.0.fc1.weight": torch.ones(3, 7)})),
        r"in another shape, model\.encoder\.layers\.0\.fc1\.weight \[3, 7\]",
    ),
    "weights are quantized": (
        tensors(lambda held: held.update({NORM: held[NORM].to(torch.int8)})),
        rf"{NORM} \(I8\) has integers",
    ),
    "weights have 8 bits": (
        tensors(lambda held: held.update({NORM: held[NORM].to(torch.float8_e4m3fn)})),
        rf"{NORM} \(F8_E4M3\) has integers, or floating-point numbers of fewer than 16 bits",
    ),
    "config.json says that they are quantized": (
        configured(quantization_config={"quant_method": "gptq", "bits": 4}),
        r'config\.json says that the weights are quantized \(quantization_config: "gptq"\)',
    ),
    "config.json names no classes": (
        configured(architectures=5),
        r"config\.json has architectures 5, which is not a list",
    ),
    "config.json has more layers": (configured(encoder_layers=2), r"they lack model\.encoder\.layers\.1\."),
    "config.json has other sizes": (
        configured(encoder_ffn_dim=24),
        r"in another shape, model\.encoder\.layers\.0\.fc1",
    ),
    "config.json is of no network": (configured(encoder_attention_heads=3), r"cannot be opened: embed_dim must be"),
    "config.json has a token that is none": (
        configured(decoder_start_token_id=None),
        r"Validation error for field 'decoder_start_token_id': TypeError: Field .* expected int",
    ),
    "config.json asks for code": (
        configured(auto_map={"AutoModel": "mine.Mine"}),
        r"config\.json has model_type 'whisper', and names code of its own \(auto_map\)",
    ),
    "the tokenizer asks for code": (
        configured("tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", None]}),
        r"tokenizer_config\.json names code of its own \(auto_map\)",
    ),
    "it is cut": (cut(SAFE), rf"{SAFE} is truncated or damaged"),
    "its last byte is missing": (cut(SAFE, 0.9999), rf"{SAFE} is truncated or damaged"),
    "it is cut in its header": (
        content(SAFE, b"\x00\x10\x00\x00\x00\x00\x00\x00{"),
        rf"{SAFE} is truncated or damaged",
    ),
    "its header claims too much": (content(SAFE, b"\xff" * 64), rf"{SAFE} is truncated or damaged"),
    "it has more than its header says": (
        lambda folder: (folder / SAFE).write_bytes((folder / SAFE).read_bytes() + b"more"),
        rf"{SAFE} is truncated or damaged",
    ),
    "it is empty": (content(SAFE, b""), rf"{SAFE} is empty"),
    "it is a page of a server": (
        content(SAFE, b"<!DOCTYPE html><title>404</title>"),
        rf"{SAFE} is truncated or damaged",
    ),
    "it is a pointer": (content(SAFE, POINTER), rf"{SAFE} is a pointer of Git LFS.*git lfs pull"),
    "there is none": (without(SAFE), r"holds no weights \(model\.safetensors\)"),
    "a shard is missing": (sharded(without(SECOND)), r"model-00002-of-.*\.safetensors, which .* names, is missing"),
    "a shard is empty": (
        sharded(lambda folder: next(folder.glob(SECOND)).write_bytes(b"")),
        r"model-00002-of-\d+\.safetensors is empty",
    ),
    "a shard is cut": (
        sharded(lambda folder: os.truncate(path := next(folder.glob(FIRST)), path.stat().st_size - 4)),
        r"model-00001-of-\d+\.safetensors is truncated or damaged",
    ),
    "a shard is another one": (
        sharded(lambda folder: shutil.copy(next(folder.glob(FIRST)), next(folder.glob(SECOND)))),
        r"they lack model\.",
    ),
    "shards have no index": (sharded(without(INDEX)), rf"model-00001-of-.*, and no {INDEX}"),
    "the index is cut": (sharded(cut(INDEX)), rf"{re.escape(INDEX)} is truncated or damaged"),
    "the index is another file": (
        sharded(content(INDEX, b'{"a": 1}')),
        rf"{re.escape(INDEX)} is not an index of weights",
    ),
    "the index has no metadata": (
        sharded(reindexed(metadata=None)),
        rf"{re.escape(INDEX)} is not an index of weights \(weight_map",
    ),
    "the index names no files": (sharded(reindexed(weight_map={})), rf"{re.escape(INDEX)} is not an index of weights"),
    "the index lacks a file": (
        sharded(reindexed(weight_map={"a": "model-00001-of-00005.safetensors"})),
        r"they lack model\.",
    ),
    "the tokenizer is cut": (cut("tokenizer.json"), r"tokenizer\.json is truncated or damaged"),
    "the tokenizer is empty": (content("tokenizer.json", b""), r"tokenizer\.json is empty"),
    "the tokenizer has no content": (content("tokenizer.json", b"{}"), r"tokenizer\.json holds \{\}"),
    "the tokenizer is a number": (content("tokenizer.json", b"5"), r"tokenizer\.json holds 5"),
    "the tokenizer is deep": (content("tokenizer.json", b"[" * 100_000), r"tokenizer\.json is truncated or damaged"),
    "the tokenizer is another file": (content("tokenizer.json", b'{"a": 1}'), r"tokenizer\.json holds "),
    "the tokenizer is a pointer": (content("tokenizer.json", POINTER), r"tokenizer\.json is a pointer of Git LFS"),
    "there is no tokenizer": (
        without("tokenizer*"),
        r"holds no tokenizer \(tokenizer\.json or .*\(model\.tokenizer_name",
    ),
    "there are no tokens around a text": (
        both(legacy_tokenizer, without("added_tokens.json", "tokenizer_config.json")),
        r"its tokenizer has no <\|startoftranscript\|> and no <\|notimestamps\|>.*: copy .*added_tokens\.json",
    ),
    "there is no generation config": (
        without("generation_config.json"),
        r"holds no generation_config\.json, which says what a Whisper generates: copy the complete folder",
    ),
    "there is no feature extractor": (
        without("*processor*"),
        r"holds no feature extractor \(preprocessor_config\.json",
    ),
    "the feature extractor is cut": (cut("processor_config.json"), r"processor_config\.json is truncated or damaged"),
    "config.json is cut": (cut("config.json"), r"config\.json is truncated or damaged"),
    "config.json is a list": (content("config.json", b"[]"), r"config\.json holds \[\]"),
    "a dropout is no probability": (
        configured("config.json", dropout=5),
        r"config\.json has dropout 5, which is not a probability \(0 to 1\)",
    ),
    "generation_config.json is a list": (
        content("generation_config.json", b"[]"),
        r"generation_config\.json holds \[\]",
    ),
    "an adapter is next to it": (adapter, rf"LoRA adapter \({ADAPTER}, adapter_model\.safetensors\).*merge it"),
    "it is an adapter alone": (
        both(adapter, without(SAFE, "config.json")),
        rf"LoRA adapter \({ADAPTER}, .*\).*merge it",
    ),
}
PICKLES: dict[str, tuple[Damage, str]] = {
    "it is cut": (cut(PICKLED), rf"{PICKLED}: RuntimeError: PytorchStreamReader failed"),
    "it is empty": (content(PICKLED, b""), rf"{PICKLED}.* EOFError"),
    "it is a pointer": (content(PICKLED, POINTER), rf"{PICKLED}: its pickle .*is damaged"),
    "it runs code": (
        lambda folder: torch.save({NORM: Harmful(folder)}, folder / PICKLED),
        rf"{PICKLED}: its pickle is damaged, or has more than tensors, which is never run",
    ),
    "it is a bare pickle that runs code": (
        lambda folder: (folder / PICKLED).write_bytes(pickle.dumps(Harmful(folder))),
        rf"{PICKLED}: its pickle is damaged, or has more than tensors",
    ),
    "weights are quantized": (
        lambda folder: torch.save(
            {**(held := torch.load(folder / PICKLED)), NORM: held[NORM].to(torch.int8)}, folder / PICKLED
        ),
        rf"{NORM} \(torch\.int8\) has integers",
    ),
    "it holds a checkpoint": (
        lambda folder: torch.save({"model": torch.load(folder / PICKLED), "step": 3}, folder / PICKLED),
        rf"{PICKLED} holds no tensors by name",
    ),
    "a tensor is missing": (
        lambda folder: torch.save(
            {name: held for name, held in torch.load(folder / PICKLED).items() if name != NORM}, folder / PICKLED
        ),
        rf"they lack {NORM}",
    ),
}
