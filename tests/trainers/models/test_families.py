import json
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import Field

from tests.trainers.synthetic import config
from trainers import plugins
from trainers.config.family_table import family_parts
from trainers.config.parts.decode_part import DecodePart, GenerationPart
from trainers.config.parts.model_part import ModelPart
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_decode_part import CtcDecodePart
from trainers.models.ctc.ctc_part import CtcPart
from trainers.models.families import FAMILIES, decoded_by, family_of, family_of_folder, resolve_model
from trainers.models.seq2seq.seq2seq_part import Seq2SeqPart
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.models.whisper.whisper_part import WhisperPart


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
    assert "freeze_feature_encoder" not in config({"model.freeze_feature_encoder": False}).model.model_dump()


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


class OwnPart(ModelPart):
    """The config's part of a family that another distribution adds."""

    implementation: ClassVar[str] = "trainers.models.seq2seq.seq2seq_family:Seq2SeqFamily"
    hops: int = Field(3, description="Own.")


class TestThePartOfAFamily:
    @pytest.mark.parametrize(
        ("model", "part"),
        [
            ({"name_or_path": "hub/model"}, WhisperPart),
            ({"name_or_path": "hub/model", "layerdrop": 0.1}, CtcPart),
            ({"name_or_path": "hub/model", "freeze_feature_encoder": False}, CtcPart),
            ({"name_or_path": "hub/model", "freeze_feature_encoder": False, "task": "translate"}, WhisperPart),
            ({"name_or_path": "hub/model", "family": "seq2seq"}, Seq2SeqPart),
            ({"init": "scratch", "language": "English"}, WhisperPart),
        ],
    )
    def test_is_that_of_the_name_or_the_first_that_knows_all_keys(self, model: dict[str, Any], part: type) -> None:
        read = config({"model": model}).model
        assert type(read) is part and read.family == model.get("family")
        assert config({"model": read.model_dump()}).model == read, "as a run folder has it"

    def test_a_recipe_of_before_has_the_fields_of_all_families(self) -> None:
        every = {name: field.default for part in family_parts().values() for name, field in part.model_fields.items()}
        read = config({"model": {**every, "init": "scratch", "family": "ctc", "d_model": 16}}).model
        assert type(read) is CtcPart and read.d_model == 16

    def test_of_no_family_is_refused_with_those_that_there_are(self) -> None:
        with pytest.raises(ConfigError, match=rf"model\.family: must be one of {', '.join(FAMILIES)} \(got 'wisper'\)"):
            config({"model.family": "wisper"})

    def test_is_read_again_by_the_family_of_the_weights(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "wav2vec2"}))
        named = {"name_or_path": str(tmp_path)}
        read = config({"model": {**named, "mask_time_prob": 0.2}})
        assert type(read.model) is WhisperPart
        resolved = resolve_model(read)[0].model
        assert type(resolved) is CtcPart and resolved.mask_time_prob == 0.2 and resolved.family is None
        with pytest.raises(
            ConfigError, match=r"family ctc.*\n.*model\.task: unknown key: a field of the family whisper"
        ):
            resolve_model(config({"model": {**named, "task": "translate"}}))

    def test_may_come_from_another_distribution(self, monkeypatch: pytest.MonkeyPatch) -> None:
        point = EntryPoint("own", f"{__name__}:OwnPart", "rayscribe.families")
        monkeypatch.setattr(plugins, "entry_points", lambda group: [point] if group == point.group else [])
        family_parts.cache_clear()
        try:
            recipe = config({"model": {"name_or_path": "hub/model", "family": "own", "hops": 4}})
            assert isinstance(recipe.model, OwnPart) and recipe.model.hops == 4
            assert type(recipe.decode) is DecodePart, "a family needs none of its own"
            with pytest.raises(ConfigError, match=r"model\.hops: unknown key: a field of the family own"):
                config({"model.hops": 4})
        finally:
            family_parts.cache_clear()


class TestTheDecodePartOfAFamily:
    @pytest.mark.parametrize(
        ("model", "decode", "part"),
        [
            ({"name_or_path": "hub/model"}, {}, GenerationPart),
            ({"name_or_path": "hub/model"}, {"beam_size": 50, "method": "beam"}, CtcDecodePart),
            ({"name_or_path": "hub/model", "layerdrop": 0.1}, {}, CtcDecodePart),
            ({"name_or_path": "hub/model", "layerdrop": 0.1}, {"num_beams": 4}, GenerationPart),
            ({"name_or_path": "hub/model", "family": "ctc"}, {"num_beams": 1}, CtcDecodePart),
            ({"init": "scratch", "language": "English"}, {"num_beams": 4}, GenerationPart),
        ],
    )
    def test_is_that_of_the_name_or_the_first_that_knows_all_keys(
        self, model: dict[str, Any], decode: dict[str, Any], part: type
    ) -> None:
        read = config({"model": model, "decode": decode})
        assert type(read.decode) is part
        assert config(read.model_dump()).decode == read.decode, "as a run folder has it"

    @pytest.mark.parametrize(
        ("family", "field", "value", "of"),
        [
            ("ctc", "num_beams", 4, ".*seq2seq.*"),
            ("whisper", "method", "beam", "ctc"),
            ("seq2seq", "beam_size", 9, "ctc"),
        ],
    )
    def test_has_no_fields_of_another_family(self, family: str, field: str, value: Any, of: str) -> None:
        wanted = rf"decode\.{field}: unknown key: a field of the family {of}, not of {family} \(got"
        with pytest.raises(ConfigError, match=wanted):
            config({"model": {"name_or_path": "hub/model", "family": family}, f"decode.{field}": value})

    def test_is_read_again_by_the_family_of_the_weights(self, tmp_path: Path) -> None:
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "wav2vec2"}))
        named = {"name_or_path": str(tmp_path)}
        assert resolve_model(config({"model": named}))[0].decode == CtcDecodePart()
        dumped = config({"model": named}).model_dump()
        assert resolve_model(config(dumped))[0].decode == CtcDecodePart(), "defaults of another family say nothing"
        with pytest.raises(ConfigError, match=r"family ctc.*\n.*decode\.max_length: unknown key: .*, not of ctc"):
            resolve_model(config({"model": named, "decode.max_length": 9}))

    def test_of_weights_that_are_only_scored_is_that_of_their_family(self) -> None:
        assert decoded_by(config(), FAMILIES["ctc"]).decode == CtcDecodePart()
        searching = config({"model": {"init": "scratch", "family": "ctc"}, "decode.method": "beam"})
        with pytest.raises(ConfigError, match=r"--set decode=\{\} has its defaults(.|\n)*decode\.method: unknown key"):
            decoded_by(searching, FAMILIES["whisper"])
