"""A Whisper processor as older readers open it."""

import json
from pathlib import Path
from typing import Any

from transformers import AutoFeatureExtractor, AutoTokenizer


def write_processor(folder: Path) -> set[str]:
    """Writes a processor as transformers before version 5, and converters made for it, read it; newer ones do, too.

    Those know neither processor_config.json with an extractor in it, nor merges as pairs, nor special tokens that only
    tokenizer.json marks as such (tried with transformers 4.44). Gives the names of the files.
    """
    AutoFeatureExtractor.from_pretrained(folder).save_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    written = {Path(name).name for name in tokenizer.backend_tokenizer.model.save(str(folder))}
    _write(folder / "added_tokens.json", tokenizer.get_added_vocab())
    whole, config = (json.loads((folder / name).read_bytes()) for name in ("tokenizer.json", "tokenizer_config.json"))
    whole["model"]["merges"] = [" ".join(pair) for pair in whole["model"]["merges"]]
    _write(folder / "tokenizer.json", whole)
    special = [token["content"] for token in whole["added_tokens"] if token["special"]]
    _write(folder / "tokenizer_config.json", {**config, "additional_special_tokens": special})
    return {*written, "added_tokens.json", "preprocessor_config.json"}


def _write(file: Path, content: Any) -> None:
    file.write_text(json.dumps(content, ensure_ascii=False, indent=2), encoding="utf-8")
