"""Families of models, those of other distributions among them, and what the contract expects of each.

What is expected is written by transformers' own classes and by names of its modules, not by those of the family.
"""

import json
import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import (
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    PreTrainedTokenizerFast,
    Wav2Vec2FeatureExtractor,
    set_seed,
)

from tests.trainers.synthetic import config
from trainers.config.family_table import family_parts
from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.models import families
from trainers.models.recognizer import IGNORED_LABEL

TENANTS = Path(__file__).parents[1] / "plugins" / "tenants"
# Parts of the config of families that are in no table of the product.
PARTS = ("ParakeetTdtPart", "CanaryPart", "Qwen3AsrPart")
LETTERS = ["abcdefghijklmnopqrstuvwxyz '"]
MAX_TOKENS = 8
RATE: dict[str, Any] = {"sampling_rate": SAMPLING_RATE_HZ, "return_tensors": "pt"}
CANARY_BEGIN = "<|startofcontext|><|startoftranscript|><|emo:undefined|><|en|><|en|><|pnc|><|noitn|><|notimestamp|>"
QWEN3_CHAT = "<|im_start|>user\n<|audio_start|><|audio_pad|><|audio_end|><|im_end|>\n<|im_start|>assistant\n"
QWEN3_ANSWER = "language English<asr_text>"
ATTENTION = r".*\.[qkv]_proj\.weight|.*\.(o|out)_proj\.weight"


@dataclass(frozen=True)
class FamilyCase:
    """A family, and what is expected of it.

    Attributes:
        write: Writes a tiny model of random weights, as `save_pretrained` does.
        stock_inputs: From processor, waveform and transcript, what the network is given as transformers does it, labels
            among them.
        stock_words: From processor, network and waveform, the words that transformers' own generation gives.
        trained: By `adapt.method`, which weights it trains, as a regular expression of their names; None: it is
            refused. Of lora, those that the merged adapter changes.
        model: What a recipe says of the model besides its weights.
        decode: What a recipe says of how hypotheses are generated.
        loudness: By how much matrices of random weights, which are near 0, are enlarged.
    """

    write: Callable[[Path], None]
    stock_inputs: Callable[[Any, Any, str], Mapping[str, Any]]
    stock_words: Callable[[Any, Any, Any], str]
    trained: Mapping[str, str | None]
    model: Mapping[str, Any] = field(default_factory=dict)
    decode: Mapping[str, Any] = field(default_factory=lambda: {"max_length": MAX_TOKENS})
    loudness: float = 25.0


def plug_in(patch: pytest.MonkeyPatch) -> None:
    """Has this process know the families of the other distribution, as if that was installed."""
    patch.syspath_prepend(TENANTS)
    for name in PARTS:
        part = getattr(import_module("speech_tenants.parts"), name)
        module, _, kind = part.implementation.partition(":")
        family = getattr(import_module(module), kind)()
        patch.setitem(families.FAMILIES, family.name, family)
        patch.setitem(family_parts(), family.name, part)


def write_tiny(case: FamilyCase, folder: Path) -> None:
    """Writes a case's model with so large weights that each clip has a hypothesis of its own."""
    case.write(folder)
    network = class_of(folder).from_pretrained(folder)
    outputs = network.get_output_embeddings()
    with torch.no_grad():
        for weight in network.parameters():
            if weight.dim() > 1 and (outputs is None or weight is not outputs.weight):
                weight.mul_(case.loudness)
    network.save_pretrained(folder)


def class_of(folder: Path) -> Any:
    """The class of transformers that a config.json names."""
    (name,) = json.loads((folder / "config.json").read_text())["architectures"]
    return getattr(transformers, name)


def tenant(name: str) -> Callable[[Path], None]:
    """What writes a model of the other distribution."""

    def write(folder: Path) -> None:
        getattr(import_module(f"speech_tenants.tiny_{name}"), f"write_tiny_{name}")(folder)

    return write


def write_new(folder: Path, model: dict[str, Any], outputs: str) -> None:
    """Writes a new model of the product that gives letters alone: `outputs` names the weights of its outputs."""
    sizes = {"init": "scratch", "d_model": 16, "encoder_layers": 2, "attention_heads": 2}
    part = config({"model": {**sizes, **model}}).model
    family = families.family_of(part)
    family.write_description(folder, LETTERS, part)
    recognizer = family.load_recognizer(part, folder, seed=1)
    tokens = recognizer.processor.tokenizer.get_vocab()
    silent = [number for token, number in tokens.items() if not (token.strip("Ġ|").isalpha() and token.isascii())]
    with torch.no_grad():
        recognizer.model.get_parameter(outputs)[silent] = 0.0
    recognizer.model.save_pretrained(folder)
    family.export_processor(folder)


def write_whisper(folder: Path) -> None:
    sizes = {"decoder_layers": 2, "max_context_s": 2, "vocab_size": 300, "max_label_tokens": 64, "language": "English"}
    write_new(folder, sizes, "model.decoder.embed_tokens.weight")


def write_ctc(folder: Path) -> None:
    write_new(folder, {"family": "ctc", "architecture": "wav2vec2", "feature_encoder_dim": 8}, "lm_head.weight")


def write_seq2seq(folder: Path) -> None:
    letter_tokenizer = import_module("speech_tenants.tiny_tdt").letter_tokenizer
    backend, vocabulary = letter_tokenizer(["<pad>", "<s>", "</s>", "<unk>"])
    names = {"pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>"}
    set_seed(1)
    layers: Any = {"encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2}
    heads: Any = {"encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2}
    tokens: Any = {"pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1}
    sizes: Any = {"hidden_size": 16, "intermediate_size": 32, "vocab_size": len(vocabulary)}
    network = MoonshineForConditionalGeneration(MoonshineConfig(**sizes, **layers, **heads, **tokens))
    with torch.no_grad():
        # It writes letters: of other tokens each output is 0.
        network.get_output_embeddings().weight.mul_(5)[:4] = 0.0
    network.save_pretrained(folder)
    PreTrainedTokenizerFast(tokenizer_object=backend, **names).save_pretrained(folder)
    Wav2Vec2FeatureExtractor(do_normalize=False, return_attention_mask=True).save_pretrained(folder)


def whisper_inputs(processor: Any, wave: Any, text: str) -> Mapping[str, Any]:
    # The start token is the decoder's to add.
    labels = processor.tokenizer(text, return_tensors="pt").input_ids[:, 1:]
    return {**processor(wave, **RATE), "labels": labels}


def ctc_inputs(processor: Any, wave: Any, text: str) -> Mapping[str, Any]:
    return {**processor(wave, **RATE), "labels": processor.tokenizer(text, return_tensors="pt").input_ids}


def seq2seq_inputs(processor: Any, wave: Any, text: str) -> Mapping[str, Any]:
    return {**processor(wave, **RATE), "labels": processor.tokenizer(f"{text}</s>", return_tensors="pt").input_ids}


def tdt_inputs(processor: Any, wave: Any, text: str) -> Mapping[str, Any]:
    inputs: Mapping[str, Any] = processor([wave], text=[text], **RATE)
    return inputs


def canary_inputs(processor: Any, wave: Any, text: str) -> Mapping[str, Any]:
    options = {"sampling_rate": SAMPLING_RATE_HZ, "output_labels": True, "add_special_tokens": False}
    inputs: Mapping[str, Any] = processor([wave], text=[f"{CANARY_BEGIN}{text}<|endoftext|>"], **options)
    return inputs


def qwen3_inputs(processor: Any, wave: Any, text: str) -> Mapping[str, Any]:
    answer = f"{QWEN3_ANSWER}{text}<|im_end|>"
    inputs = processor(text=[f"{QWEN3_CHAT}{answer}"], audio=[wave], sampling_rate=SAMPLING_RATE_HZ)
    size = len(processor.tokenizer(answer).input_ids)
    labels = inputs["input_ids"].clone()
    labels[:, :-size] = IGNORED_LABEL
    return {**inputs, "labels": labels}


def generated_words(processor: Any, network: Any, wave: Any) -> str:
    tokens = network.generate(**processor(wave, **RATE), max_new_tokens=MAX_TOKENS)
    return str(processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)[0])


def ctc_words(processor: Any, network: Any, wave: Any) -> str:
    return str(processor.batch_decode(network(**processor(wave, **RATE)).logits.argmax(dim=-1))[0])


def tdt_words(processor: Any, network: Any, wave: Any) -> str:
    outputs = network.config.vocab_size
    # transformers takes the likeliest of all outputs for a token, also where that is one of the durations behind them.
    durations = [*range(outputs, outputs + len(network.config.durations))]
    inputs = processor([wave], **RATE)
    found = network.generate(**inputs, max_new_tokens=MAX_TOKENS, suppress_tokens=durations)
    return str(processor.batch_decode(found.sequences, skip_special_tokens=True)[0])


def canary_words(processor: Any, network: Any, wave: Any) -> str:
    begin = processor.tokenizer(CANARY_BEGIN, add_special_tokens=False, return_tensors="pt").input_ids
    inputs = processor([wave], **RATE)
    tokens = network.generate(**inputs, decoder_input_ids=begin, max_new_tokens=MAX_TOKENS)
    return str(processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)[0])


def qwen3_words(processor: Any, network: Any, wave: Any) -> str:
    inputs = processor(text=[f"{QWEN3_CHAT}{QWEN3_ANSWER}"], audio=[wave], sampling_rate=SAMPLING_RATE_HZ)
    tokens = network.generate(**inputs, max_new_tokens=MAX_TOKENS)[:, inputs["input_ids"].shape[1] :]
    return str(processor.tokenizer.batch_decode(tokens, skip_special_tokens=True)[0])


CASES = {
    "whisper": FamilyCase(
        write=write_whisper,
        stock_inputs=whisper_inputs,
        stock_words=generated_words,
        trained={
            "full": "",
            "freeze_encoder": r"model\.decoder\.",
            "decoder_only": r"model\.decoder\.(?!.*encoder_attn)",
            "last_n_layers": r"model\.(encoder|decoder)\.layers\.1\.",
            "lora": ATTENTION,
        },
        model={"language": "English"},
    ),
    "ctc": FamilyCase(
        write=write_ctc,
        stock_inputs=ctc_inputs,
        stock_words=ctc_words,
        trained={
            # Nothing is masked.
            "full": r"(?!wav2vec2\.(feature_extractor\.|masked_spec_embed))",
            "freeze_encoder": r"lm_head\.",
            "decoder_only": None,
            "last_n_layers": r"wav2vec2\.encoder\.layers\.1\.|lm_head\.",
            "lora": rf"{ATTENTION}|lm_head\.",
        },
        decode={},
    ),
    "seq2seq": FamilyCase(
        write=write_seq2seq,
        stock_inputs=seq2seq_inputs,
        stock_words=generated_words,
        trained={
            "full": "",
            "freeze_encoder": r"model\.decoder\.|proj_out\.",
            "decoder_only": r"(model\.decoder\.|proj_out\.)(?!.*encoder_attn)",
            "last_n_layers": r"model\.(encoder|decoder)\.layers\.1\.",
            "lora": ATTENTION,
        },
    ),
    "parakeet-tdt": FamilyCase(
        write=tenant("tdt"),
        stock_inputs=tdt_inputs,
        stock_words=tdt_words,
        trained={
            "full": "",
            "freeze_encoder": r"(encoder_projector|decoder|joint)\.",
            "decoder_only": None,
            "last_n_layers": r"(encoder\.layers\.1|joint)\.",
            "lora": ATTENTION,
        },
        # Far above it, rounding alone grows by a factor of a thousand in each step.
        loudness=8.0,
    ),
    "canary": FamilyCase(
        write=tenant("canary"),
        stock_inputs=canary_inputs,
        stock_words=canary_words,
        trained={
            "full": "",
            "freeze_encoder": r"(model\.decoder|proj_out)\.",
            "decoder_only": r"(model\.decoder|proj_out)\.(?!.*encoder_attn)",
            "last_n_layers": r"model\.(encoder|decoder)\.layers\.1\.",
            "lora": ATTENTION,
        },
    ),
    "qwen3-asr": FamilyCase(
        write=tenant("qwen3"),
        stock_inputs=qwen3_inputs,
        stock_words=qwen3_words,
        trained={
            "full": "",
            "freeze_encoder": r"model\.(multi_modal_projector|language_model)\.",
            "decoder_only": None,
            "last_n_layers": r"model\.(audio_tower|language_model)\.layers\.1\.",
            "lora": ATTENTION,
        },
    ),
}


def chosen(names: Iterable[str], pattern: str) -> set[str]:
    """Those of the names that begin as a regular expression says."""
    return {name for name in names if re.match(pattern, name)}
