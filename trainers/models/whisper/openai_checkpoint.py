"""Converts OpenAI's own checkpoints of Whisper (`tiny.pt`, …) to model folders of transformers.

Such a file has `dims`, the sizes (whisper/model.py:ModelDimensions), and `model_state_dict`, the weights by the names
of OpenAI's modules. It is read with `torch.load(weights_only=True)`, which builds tensors and plain containers only.
"""

import re
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from transformers import GenerationConfig, WhisperConfig, WhisperFeatureExtractor, WhisperForConditionalGeneration
from transformers.models.whisper.configuration_whisper import NON_SPEECH_TOKENS, NON_SPEECH_TOKENS_MULTI

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.errors import ConfigError, StorageError
from trainers.models.language_names import LANGUAGES
from trainers.models.sources.model_files import ALLOW
from trainers.models.whisper.whisper_part import CONTEXT_S
from trainers.models.whisper.whisper_scratch import NO_TIMESTAMPS, START, TASKS

DIMS, WEIGHTS = "dims", "model_state_dict"
SIZES = (
    *("n_mels", "n_audio_ctx", "n_audio_state", "n_audio_head", "n_audio_layer"),
    *("n_vocab", "n_text_ctx", "n_text_state", "n_text_head", "n_text_layer"),
)
# Numbers of outputs of the released models; below, a model with the tokenizer of each, and its non-speech tokens.
ENGLISH, MULTILINGUAL, LARGE_V3 = 51_864, 51_865, 51_866
TOKENIZERS = {
    ENGLISH: "openai/whisper-tiny.en",
    MULTILINGUAL: "openai/whisper-tiny",
    LARGE_V3: "openai/whisper-large-v3",
}
NO_SPEECH = {
    ENGLISH: NON_SPEECH_TOKENS,
    MULTILINGUAL: NON_SPEECH_TOKENS_MULTI,
    LARGE_V3: NON_SPEECH_TOKENS_MULTI,
}
CONTROLS = (START, *(f"<|{task}|>" for task in TASKS), "<|startoflm|>", "<|startofprev|>", "<|nospeech|>")
# Names of OpenAI's modules and of transformers' modules, part by part.
_RENAMED = (
    (r"^", "model."),
    (r"\.blocks\.", ".layers."),
    (r"\.cross_attn\.", ".encoder_attn."),
    (r"\.cross_attn_ln\.", ".encoder_attn_layer_norm."),
    (r"\.attn\.", ".self_attn."),
    (r"\.attn_ln\.", ".self_attn_layer_norm."),
    (r"\.query\.", ".q_proj."),
    (r"\.key\.", ".k_proj."),
    (r"\.value\.", ".v_proj."),
    (r"\.out\.", ".out_proj."),
    (r"\.mlp\.0\.", ".fc1."),
    (r"\.mlp\.2\.", ".fc2."),
    (r"\.mlp_ln\.", ".final_layer_norm."),
    (r"encoder\.ln_post\.", "encoder.layer_norm."),
    (r"decoder\.ln\.", "decoder.layer_norm."),
    (r"decoder\.token_embedding\.", "decoder.embed_tokens."),
    (r"\.positional_embedding$", ".embed_positions.weight"),
)
_OUTPUTS = "proj_out.weight"


def convert(file: Path, folder: Path, origin: str, *, allow_pickle: bool) -> None:
    """Writes config, weights and feature extractor of a checkpoint to a folder; a checkpoint has no tokenizer.

    Raises:
        ConfigError: Pickles are not allowed, or the file is not a checkpoint of OpenAI's Whisper.
        StorageError: The file is truncated or damaged.
    """
    if not allow_pickle:
        raise ConfigError(
            f"{origin}: is a pickled checkpoint, and opening a pickle can run code: name weights in safetensors, or, "
            f"if you trust who made it, {ALLOW}"
        )
    dims, weights = _read(file, origin)
    config = config_of(dims)
    with torch.device("meta"):
        network = WhisperForConditionalGeneration(config)
    renamed = {_renamed(name): weight.float() for name, weight in weights.items()}
    # Whisper's output layer shares the token embeddings.
    expected = {name: weight.shape for name, weight in network.state_dict().items() if name != _OUTPUTS}
    found = {name: weight.shape for name, weight in renamed.items()}
    if wrong := sorted(name for name in expected | found if expected.get(name) != found.get(name)):
        raise ConfigError(f"{origin}: {wrong[0]} is missing or of another size than its {DIMS} say: use another file")
    network.load_state_dict(renamed, strict=False, assign=True)
    network.tie_weights()
    network.save_pretrained(folder)
    # The tokens of its generation config are not known without a tokenizer.
    (folder / "generation_config.json").unlink(missing_ok=True)
    WhisperFeatureExtractor(
        feature_size=dims["n_mels"], sampling_rate=SAMPLING_RATE_HZ, chunk_length=CONTEXT_S
    ).save_pretrained(folder)


def _read(file: Path, origin: str) -> tuple[dict[str, int], Mapping[str, torch.Tensor]]:
    try:
        content = torch.load(file, map_location="cpu", weights_only=True, mmap=True)
    except (OSError, EOFError, zipfile.BadZipFile) as error:
        raise StorageError(f"{origin}: is truncated or damaged ({error}): copy it again") from error
    # The exception that torch raises depends on where a file is truncated; content other than tensors is refused, too.
    except Exception as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise ConfigError(f"{origin}: holds more than weights, or is damaged: {reason}") from error
    dims, weights = (content.get(name) if isinstance(content, dict) else None for name in (DIMS, WEIGHTS))
    is_whisper = (
        isinstance(dims, dict)
        and all(isinstance(dims.get(name), int) and dims[name] > 0 for name in SIZES)
        and isinstance(weights, dict)
        and all(isinstance(name, str) and isinstance(weight, torch.Tensor) for name, weight in weights.items())
    )
    if not is_whisper:
        raise ConfigError(
            f"{origin}: has no {DIMS} and {WEIGHTS} as OpenAI's checkpoints of Whisper: name a model folder"
        )
    assert isinstance(dims, dict)
    assert isinstance(weights, dict)
    return dims, weights


def _renamed(name: str) -> str:
    for pattern, replacement in _RENAMED:
        name = re.sub(pattern, replacement, name)
    return name


def config_of(dims: Mapping[str, int]) -> WhisperConfig:
    """Returns transformers' config for OpenAI's sizes; feed-forward layers are four times as wide (whisper/model.py).

    A checkpoint does not have the special tokens, see `add_tokens`.
    """
    return WhisperConfig(
        vocab_size=dims["n_vocab"],
        num_mel_bins=dims["n_mels"],
        d_model=dims["n_audio_state"],
        encoder_layers=dims["n_audio_layer"],
        encoder_attention_heads=dims["n_audio_head"],
        encoder_ffn_dim=4 * dims["n_audio_state"],
        decoder_layers=dims["n_text_layer"],
        decoder_attention_heads=dims["n_text_head"],
        decoder_ffn_dim=4 * dims["n_text_state"],
        max_source_positions=dims["n_audio_ctx"],
        max_target_positions=dims["n_text_ctx"],
        architectures=[WhisperForConditionalGeneration.__name__],
    )


def tokenizer_for(folder: Path) -> str:
    """Returns the name of a model with the tokenizer of a converted checkpoint."""
    return TOKENIZERS.get(WhisperConfig.from_pretrained(folder).vocab_size, "<the one that it was trained with>")


def add_tokens(folder: Path, tokenizer: Any) -> None:
    """Adds the special tokens of a tokenizer, and a generation config with them, to a converted checkpoint."""
    token_id, known = tokenizer.convert_tokens_to_ids, tokenizer.get_vocab()
    config = WhisperConfig.from_pretrained(folder)
    end, start = tokenizer.eos_token_id, token_id(START)
    languages = {token: known[token] for code in LANGUAGES if (token := f"<|{code}|>") in known}
    is_multilingual = config.vocab_size != ENGLISH and bool(languages)
    ids = {"bos_token_id": end, "eos_token_id": end, "pad_token_id": end, "decoder_start_token_id": start}
    silent = [token for token in NO_SPEECH.get(config.vocab_size, ()) if token < end]
    silent += sorted(known[token] for token in CONTROLS if token in known)
    begin = [*tokenizer(" ", add_special_tokens=False).input_ids, end]
    config.update({**ids, "begin_suppress_tokens": begin})
    config.save_pretrained(folder)
    tasks = {task: token_id(f"<|{task}|>") for task in TASKS}
    GenerationConfig(
        **ids,
        max_length=config.max_target_positions,
        no_timestamps_token_id=token_id(NO_TIMESTAMPS),
        prev_sot_token_id=token_id("<|startofprev|>"),
        begin_suppress_tokens=begin,
        suppress_tokens=silent if config.vocab_size in NO_SPEECH else None,
        is_multilingual=is_multilingual,
        return_timestamps=False,
        **({"lang_to_id": languages, "task_to_id": tasks} if is_multilingual else {}),
    ).save_pretrained(folder)
