"""A family of another distribution, whose prompt names the language twice, writes each clip's own in both places."""

from pathlib import Path

import pytest

from tests.contract.family_cases import CASES, plug_in
from tests.trainers.synthetic import config
from trainers.errors import ConfigError
from trainers.models.families import resolve_model
from trainers.models.labels import empty_labels


def test_a_clip_s_language_stands_in_both_places_of_a_prompt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plug_in(monkeypatch)
    CASES["canary"].write(tmp_path)
    resolved, family = resolve_model(config({"model": {"name_or_path": str(tmp_path)}}))
    processor = family.open_processor(resolved.model, None)
    rows = empty_labels(family, processor, ["German", None, "en"], "English")
    names = map(processor.tokenizer.convert_ids_to_tokens, rows)
    tokens = [[token for token in row if len(token) == len("<|en|>")] for row in names]
    assert tokens == [["<|de|>"] * 2, ["<|en|>"] * 2, ["<|en|>"] * 2]
    with pytest.raises(ConfigError, match=r"1 clip has the language 'Serbian' \(the model has no token <\|sr\|>\)"):
        empty_labels(family, processor, ["Serbian"], "English")
