"""Finds damaged files of a model, from truncated downloads or incomplete copies, without reading their tensors."""

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

from safetensors import SafetensorError, safe_open

from trainers.errors import ConfigError
from trainers.models.sources.model_files import CONFIG, EXTRACTOR_FILES, INDEXES, description_files, names_in

_POINTER = b"version https://git-lfs.github.com/spec/"
_POINTER_FIX = "fetch what it stands for (git lfs pull, or hf download)"
_COPY = "copy the complete file again"
# JSON files that must not be empty, since another model would be opened; and others that transformers reads.
_WITH_CONTENT = (CONFIG, "tokenizer.json", "vocab.json", *EXTRACTOR_FILES)
_OBJECTS = (
    *_WITH_CONTENT,
    *("tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "normalizer.json"),
    *("generation_config.json", *INDEXES),
)
_TEXTS = ("merges.txt", "vocab.txt")
# Files that may request custom code.
_WITH_CODE = (CONFIG, "tokenizer_config.json", *EXTRACTOR_FILES)
# Suffixes of fields in a config.json that are probabilities; only a forward pass would find an invalid number.
_PROBABILITIES = ("dropout", "pdrop", "dropout_prob", "layerdrop")
# The format's own limit is 100 MB; the first eight bytes are the header's length, in little-endian order.
_LENGTH_BYTES, _MOST_HEADER_BYTES = 8, 100_000_000


class StoredTensor(NamedTuple):
    """A tensor in a file of weights: its shape, and its type by safetensors' name, e.g. F32."""

    shape: tuple[int, ...]
    dtype: str


def refuse_damaged_description(folder: Path, origin: str) -> None:
    """Raises ConfigError if a file next to the weights is damaged, an LFS pointer, or requests custom code."""
    for name in description_files(names_in(folder)):
        if name not in (*_OBJECTS, *_TEXTS) and not name.endswith(".model"):
            continue
        start, content = f"{origin}: {name}", (folder / name).read_bytes()
        _refuse_pointer(start, content, len(content))
        if name not in _OBJECTS:
            continue
        try:
            found = json.loads(content)
        # Brackets nested thousands deep raise RecursionError.
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{start} is truncated or damaged ({error}): {_COPY}") from None
        lacks_content = not isinstance(found, dict) or (name in _WITH_CONTENT and not found)
        if lacks_content or (name == "tokenizer.json" and "model" not in found):
            raise ConfigError(f"{start} holds {json.dumps(found)[:40]}, not the content of such a file: {_COPY}")
        if name in _WITH_CODE:
            refuse_code(found, start)
        if name == CONFIG:
            _refuse_config(found, start)


def _refuse_config(content: Mapping[str, Any], start: str) -> None:
    """Raises ConfigError for a config.json with invalid architectures or dropout, or of quantized weights."""
    classes = content.get("architectures")
    if classes is not None and not (isinstance(classes, list) and all(isinstance(each, str) for each in classes)):
        raise ConfigError(
            f"{start} has architectures {json.dumps(classes)[:40]}, which is not a list of names: {_COPY}"
        )
    for name, value in content.items():
        is_known = value is None or (isinstance(value, int | float) and 0 <= value <= 1)
        if name.endswith(_PROBABILITIES) and not is_known:
            raise ConfigError(
                f"{start} has {name} {json.dumps(value)[:40]}, which is not a probability (0 to 1): {_COPY}"
            )
    if (quantized := content.get("quantization_config")) is not None:
        method = quantized.get("quant_method") if isinstance(quantized, dict) else quantized
        raise ConfigError(
            f"{start} says that the weights are quantized (quantization_config: {json.dumps(method)[:40]}), and "
            "Rayscribe opens floating-point weights of 16 bits or more: name those that they were made of"
        )


def refuse_code(content: Mapping[str, Any], start: str) -> None:
    """Raises ConfigError if a JSON file of a model requests custom code (`auto_map`)."""
    if "auto_map" in content:
        kind = f"has model_type {content['model_type']!r}, and " if "model_type" in content else ""
        raise ConfigError(
            f"{start} {kind}names code of its own (auto_map), which Rayscribe never runs, whatever trust_remote_code "
            "says: whoever can change the files there could run anything on your nodes. Name weights that transformers "
            "itself has the code for; where its own class is right for these, remove auto_map in a copy of the folder"
        )


def tensors_of_file(file: Path, origin: str) -> dict[str, StoredTensor]:
    """Returns the tensors of a safetensors file, by name; raises ConfigError if empty, damaged or an LFS pointer."""
    with file.open("rb") as opened:
        _refuse_pointer(f"{origin}: {file.name}", opened.read(len(_POINTER)), file.stat().st_size)
    try:
        # numpy's framework reads no tensor and needs no torch.
        with safe_open(file, framework="np") as content:
            slices = {name: content.get_slice(name) for name in content.keys()}  # noqa: SIM118
            return {name: StoredTensor(tuple(each.get_shape()), each.get_dtype()) for name, each in slices.items()}
    except SafetensorError as error:
        raise ConfigError(f"{origin}: {file.name} is truncated or damaged ({error}): {_COPY}") from error


def tensors_of_remote(
    name: str, size_bytes: int, read: Callable[[int, int], bytes], origin: str
) -> dict[str, StoredTensor]:
    """Returns the tensors of a remote file, reading only its header; `read` takes first byte and number of bytes."""
    start = read(0, max(_LENGTH_BYTES, len(_POINTER)))
    _refuse_pointer(f"{origin}: {name}", start, size_bytes)
    length = int.from_bytes(start[:_LENGTH_BYTES], "little")
    header = read(0, min(_LENGTH_BYTES + length, size_bytes)) if length <= _MOST_HEADER_BYTES else start
    # A sparse file of the same length, since safetensors compares the header with it.
    with NamedTemporaryFile(prefix="rayscribe-header-") as sparse:
        sparse.write(header)
        sparse.truncate(size_bytes)
        sparse.flush()
        try:
            return tensors_of_file(Path(sparse.name), origin)
        except ConfigError as error:
            raise ConfigError(str(error).replace(Path(sparse.name).name, name)) from error.__cause__


def _refuse_pointer(start: str, content: bytes, size_bytes: int) -> None:
    if not size_bytes:
        raise ConfigError(f"{start} is empty: {_COPY}")
    if content.startswith(_POINTER):
        raise ConfigError(f"{start} is a pointer of Git LFS, not the file itself: {_POINTER_FIX}")
