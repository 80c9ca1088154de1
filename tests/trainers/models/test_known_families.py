import json
from pathlib import Path

import pytest

from tests.trainers.synthetic import config
from trainers.config.parts.model_part import ModelPart
from trainers.errors import ConfigError
from trainers.models.known_families import FAMILIES, family_of, family_of_folder, refuse_foreign_fields
from trainers.models.whisper.whisper_family import WhisperFamily


def pretrained(folder: Path, content: str) -> ModelPart:
    folder.mkdir()
    (folder / "config.json").write_text(content)
    return config({"model": {"init": "pretrained", "name_or_path": str(folder), "language": "English"}}).model


def test_a_family_is_known_by_its_models_type() -> None:
    assert all(name == family.name for name, family in FAMILIES.items())
    types = [each for family in FAMILIES.values() for each in family.model_types]
    assert len(types) == len(set(types))


def test_new_weights_are_a_whisper() -> None:
    assert isinstance(family_of(config().model), WhisperFamily)


def test_pretrained_weights_are_of_the_family_that_their_config_names(tmp_path: Path) -> None:
    model = pretrained(tmp_path / "model", json.dumps({"model_type": "whisper"}))
    assert isinstance(family_of(model), WhisperFamily)
    assert isinstance(family_of_folder(tmp_path / "model"), WhisperFamily)


def test_what_a_family_does_not_have_may_be_turned_off() -> None:
    refuse_foreign_fields(config({"model.freeze_feature_encoder": False}), WhisperFamily())


@pytest.mark.parametrize("content", [{"model_type": "bark"}, {"torch_dtype": "float32"}])
def test_weights_of_another_kind_are_refused_with_what_there_is(tmp_path: Path, content: dict[str, str]) -> None:
    model = pretrained(tmp_path / "model", json.dumps(content))
    wanted = rf"{tmp_path}/model: its config.json has model_type {content.get('model_type')!r}, .* whisper"
    with pytest.raises(ConfigError, match=wanted):
        family_of(model)
    with pytest.raises(ConfigError, match=wanted):
        family_of_folder(tmp_path / "model")


def test_a_model_that_cannot_be_read_is_refused_by_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=rf"model.name_or_path: {tmp_path}/model cannot be opened"):
        family_of(pretrained(tmp_path / "model", "{"))


@pytest.mark.parametrize("content", ["{", "{}"])
def test_a_copied_folder_that_holds_no_model_is_named_by_where_it_came_from(tmp_path: Path, content: str) -> None:
    pretrained(tmp_path / "model", content)
    with pytest.raises(ConfigError, match="s3://b/model: holds no model that can be opened"):
        family_of_folder(tmp_path / "model", "s3://b/model")
