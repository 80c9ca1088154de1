"""Generation configs as published weights have them, most of all of a model as the Hub ships it."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, WhisperProcessor

from tests.trainers.synthetic import config
from trainers.config.parts.decode_part import GenerationPart
from trainers.errors import ConfigError
from trainers.models.family import Family
from trainers.models.recognizer import Decoding
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.models.whisper.whisper_generation import allowing_text, language_of, resolve_generation

FAMILY: Family[Any] = WhisperFamily()


def part(folder: Path, **changes: Any) -> Any:
    """The model part of a config that names a folder."""
    wanted = {"init": "pretrained", "name_or_path": str(folder), "language": "Serbian", **changes}
    return config({"model": wanted}).model


def tampered(folder: Path, target: Path, **changes: Any) -> Path:
    """A copy whose generation config has other values; None removes one."""
    shutil.copytree(folder, target)
    file = target / "generation_config.json"
    content = {**json.loads(file.read_text()), **changes}
    file.write_text(json.dumps({name: value for name, value in content.items() if value is not None}))
    return target


class TestAsTheHubShipsIt:
    @pytest.mark.integration
    def test_it_needs_nothing_put_right(self, hub_whisper: Path) -> None:
        recognizer = FAMILY.load_recognizer(part(hub_whisper), None, seed=1)
        assert recognizer.notes == ()
        generation = recognizer.model.generation_config
        assert (generation.language, generation.task) == ("serbian", "transcribe")

    def test_labels_have_its_own_ids(self, hub_whisper: Path) -> None:
        (labels,) = FAMILY.encode_labels(FAMILY.open_processor(part(hub_whisper), None), ["Добар дан"])
        assert labels[:3] == [50303, 50359, 50363]
        assert labels[-1] == 50257

    @pytest.mark.integration
    def test_a_language_is_missing(self, hub_whisper: Path) -> None:
        with pytest.raises(ConfigError, match=r"is multilingual \(--set model\.language=English\)"):
            FAMILY.open_processor(part(hub_whisper, language=None), None)

    @pytest.mark.parametrize(
        ("changes", "note"),
        [
            ({"lang_to_id": None, "task_to_id": None}, "outdated: lang_to_id, task_to_id"),
            ({"no_timestamps_token_id": None}, "outdated: no_timestamps_token_id"),
            ({"is_multilingual": None, "lang_to_id": None}, "outdated: is_multilingual, lang_to_id"),
            ({"return_timestamps": True}, "requests timestamps"),
        ],
    )
    @pytest.mark.integration
    def test_what_is_outdated_is_put_right_and_said_and_it_generates(
        self, hub_whisper: Path, tmp_path: Path, changes: dict[str, Any], note: str
    ) -> None:
        sound = FAMILY.load_recognizer(part(hub_whisper), None, seed=1)
        folder = tampered(hub_whisper, tmp_path / "outdated", **changes)
        recognizer = FAMILY.load_recognizer(part(folder), None, seed=1)
        (said,) = recognizer.notes
        assert note in said
        features = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0))
        made = [
            item.model.generate(features, max_new_tokens=6, do_sample=False).tolist() for item in (sound, recognizer)
        ]
        assert made[0] == made[1]

    def test_forced_decoder_ids_do_not_rule_over_the_language(self, hub_whisper: Path, tmp_path: Path) -> None:
        folder = tampered(hub_whisper, tmp_path / "forced", forced_decoder_ids=[[1, 50259], [2, 50359]])
        recognizer = FAMILY.load_recognizer(part(folder), None, seed=1)
        assert recognizer.model.generation_config.forced_decoder_ids is None

    def test_quotes_and_brackets_are_suppressed_but_not_where_texts_are_compared_as_written(
        self, hub_whisper: Path
    ) -> None:
        generation = GenerationConfig.from_pretrained(hub_whisper)
        tokenizer = WhisperProcessor.from_pretrained(hub_whisper).tokenizer
        quotes = tokenizer('"', add_special_tokens=False)["input_ids"][0]
        before = list(generation.suppress_tokens)
        assert quotes in before
        with allowing_text(generation, tokenizer):
            kept = generation.suppress_tokens
            assert kept and quotes not in kept
            assert {tokenizer.convert_ids_to_tokens(token) for token in kept} == {
                "<|startoftranscript|>",
                "<|translate|>",
                "<|transcribe|>",
                "<|startoflm|>",
                "<|startofprev|>",
                "<|nospeech|>",
            }
        assert generation.suppress_tokens == before

    def test_a_quote_can_be_recognized_where_texts_are_compared_as_written(self, hub_whisper: Path) -> None:
        recognizer = FAMILY.load_recognizer(part(hub_whisper), None, seed=1)
        tokenizer = recognizer.processor.tokenizer
        quote = tokenizer('"', add_special_tokens=False)["input_ids"][0]
        decoder = recognizer.model.get_decoder()
        # Whatever it hears, this model says what the quote's embedding points to.
        decoder.layer_norm.weight.data.zero_()
        decoder.layer_norm.bias.data.copy_(50 * decoder.embed_tokens.weight.data[quote])
        features = torch.randn(1, 80, 3000, generator=torch.Generator().manual_seed(0))
        labels = recognizer.encode_labels(['"'])
        said = {
            as_written: recognizer.recognize(
                {"input_features": features}, labels, Decoding(GenerationPart(max_length=4), as_written=as_written)
            )
            for as_written in (False, True)
        }
        assert '"' in str(said[True]) and '"' not in str(said[False])


class TestLanguage:
    def test_the_config_s_counts_before_the_weights(self) -> None:
        generation = GenerationConfig(is_multilingual=True, language="<|th|>", task="translate")
        assert language_of(generation, part(Path("/weights"))) == ("sr", "transcribe")
        assert language_of(generation, part(Path("/weights"), language=None)) == ("th", "translate")

    @pytest.mark.parametrize("own", ["thai", "th", "<|th|>"])
    def test_the_weights_own_is_known_in_each_form(self, own: str) -> None:
        generation = GenerationConfig(is_multilingual=True, language=own)
        assert language_of(generation, part(Path("/weights"), language=None)) == ("th", "transcribe")

    def test_english_only_weights_know_english_only(self) -> None:
        generation = GenerationConfig(is_multilingual=False)
        assert language_of(generation, part(Path("/weights"), language="English")) is None
        with pytest.raises(ConfigError, match="knows only English"):
            language_of(generation, part(Path("/weights")))

    def test_settling_twice_changes_nothing_more(self, hub_whisper: Path) -> None:
        generation = GenerationConfig()
        tokenizer = WhisperProcessor.from_pretrained(hub_whisper).tokenizer
        assert resolve_generation(generation, tokenizer, ("sr", "transcribe"))
        assert resolve_generation(generation, tokenizer, ("sr", "transcribe")) == []
