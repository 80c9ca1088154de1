import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import pytest
from transformers import GenerationConfig, WhisperConfig, WhisperForConditionalGeneration

from tests.trainers.inspection.checking import levels, said, sound_corpus, subject_of, the_one
from tests.trainers.synthetic import add_languages, config, write_rows
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError
from trainers.findings import Finding, run_check
from trainers.inspection import model_checks
from trainers.inspection.model_checks import (
    CHECKS,
    check_adaptation,
    check_arguments,
    check_labels,
    check_languages,
    check_metrics,
    check_model,
)
from trainers.inspection.subject import Subject
from trainers.models.family import Family
from trainers.models.sources.opened_model import OpenedModel
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder

CTC = {"init": "scratch", "family": "ctc", "d_model": 16, "encoder_layers": 1, "attention_heads": 2}
Tampered = Callable[..., Subject]


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a tiny multilingual Whisper, as `save_pretrained` leaves it."""
    folder = tmp_path_factory.mktemp("whisper")
    model: Any = config({"model.max_context_s": None}).model
    WhisperFamily().write_description(folder, ["one two three", "four five"], model)
    network = WhisperForConditionalGeneration(WhisperConfig.from_pretrained(folder))
    network.generation_config = GenerationConfig.from_pretrained(folder)
    network.save_pretrained(folder)
    return folder


@pytest.fixture
def tampered(whisper: Path, tmp_path: Path) -> Tampered:
    """Subjects whose model is a copy of the sound one with keys of its files set, or taken out where None."""

    def make(changes: dict[str, dict[str, Any]] | None = None, **fields: Any) -> Subject:
        folder = tmp_path / "model"
        shutil.copytree(whisper, folder)
        for name, keys in (changes or {}).items():
            content = json.loads((folder / name).read_text())
            content.update(keys)
            kept = {key: value for key, value in content.items() if value is not None}
            (folder / name).write_text(json.dumps(kept))
        weights = {"init": "pretrained", "name_or_path": str(folder), "language": "English"}
        return subject_of(tmp_path, {"model": weights, **fields})

    return make


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_sound_model_is_found_sound(check: Any, tampered: Tampered) -> None:
    assert levels(check, tampered()) == {"ok"}


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.name)
def test_a_new_model_is_found_sound(check: Any, tmp_path: Path) -> None:
    assert levels(check, subject_of(tmp_path)) == {"ok"}


class TestAdaptation:
    @pytest.mark.parametrize(
        ("fields", "words"),
        [
            ({"adapt.method": "freeze_encoder"}, "freeze_encoder; [0-9,]+ of [0-9,]+ weights are trained"),
            ({"adapt.method": "last_n_layers", "adapt.n": 1}, "last_n_layers; [0-9,]+ of [0-9,]+ weights are trained"),
            ({"adapt.method": "lora"}, "lora; adapters next to q_proj, k_proj, v_proj, out_proj are trained"),
            ({"adapt.method": "lora", "adapt.target_modules": ["fc1"]}, "lora; adapters next to fc1"),
            ({"adapt.method": "lora", "model": CTC}, "lora; adapters next to linear_q, .* and lm_head are trained"),
        ],
    )
    def test_what_is_trained_is_said(self, tmp_path: Path, fields: dict[str, Any], words: str) -> None:
        assert re.search(words, the_one(check_adaptation, subject_of(tmp_path, fields), "ok"))

    def test_more_layers_than_the_model_has(self, tampered: Tampered) -> None:
        subject = tampered(**{"adapt.method": "last_n_layers", "adapt.n": 40})
        assert "adapt.n is 40, but model.encoder.layers has 1" in the_one(check_adaptation, subject, "error")
        assert subject.needs_torch

    def test_a_layer_that_is_not_there(self, tampered: Tampered) -> None:
        subject = tampered(**{"adapt.method": "lora", "adapt.target_modules": ["q_prj"]})
        assert "no linear layer of whisper has a name that ends with q_prj" in the_one(
            check_adaptation, subject, "error"
        )


class TestModel:
    def test_a_field_that_nothing_reads(self, tampered: Tampered) -> None:
        subject = tampered(**{"model.d_model": 256})
        assert "model.d_model is 256, but model.init is pretrained" in the_one(check_model, subject, "error")

    @pytest.mark.parametrize(("checkpoint", "level"), [(None, "error"), ("checkpoint-1-a1-x", "warning")])
    def test_a_field_that_nothing_reads_stops_no_run_that_has_begun_with_it(
        self, tampered: Tampered, checkpoint: str | None, level: str
    ) -> None:
        subject = tampered(**{"model.d_model": 256})
        if checkpoint is not None:
            Journal(RunFolder.of(subject.config)).append(lambda _: {"kind": "quarantined", "name": checkpoint})
        assert "model.d_model is 256" in the_one(check_model, subject, level)
        assert levels(check_model, subject) == {level, "ok"}

    def test_where_the_run_folder_is_not_here_a_field_that_nothing_reads_may_be_the_run_s(
        self, tampered: Tampered
    ) -> None:
        subject = tampered(**{"model.d_model": 256, "run.storage_path": "/nowhere/runs"})
        subject.elsewhere = True
        assert "/nowhere/runs is a folder that this machine does not have" in the_one(check_model, subject, "warning")

    def test_a_folder_without_a_model(self, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        changes = {"model.init": "pretrained", "model.name_or_path": str(tmp_path / "empty")}
        subject = subject_of(tmp_path, changes, elsewhere=True)
        assert f"{tmp_path / 'empty'} cannot be opened" in the_one(check_model, subject, "error")
        assert said(check_adaptation, subject) == [("skipped", "the model could not be opened")]

    def test_a_folder_that_only_the_nodes_have(self, tmp_path: Path) -> None:
        changes = {"model": {"init": "pretrained", "name_or_path": "/nowhere/model", "language": "English"}}
        assert "/nowhere/model cannot be opened" in the_one(
            check_model, subject_of(tmp_path, changes, elsewhere=True), "skipped"
        )
        assert "/nowhere/model cannot be opened" in the_one(check_model, subject_of(tmp_path, changes), "error")

    def test_a_model_that_is_one_file_is_not_downloaded_where_the_job_does_not_run(self, tmp_path: Path) -> None:
        changes = {"model": {"name_or_path": "https://localhost:1/a.zip?key=secret", "language": "English"}}
        text = the_one(check_model, subject_of(tmp_path, changes, elsewhere=True), "skipped")
        assert "https://localhost:1/a.zip: a file is only opened where the job runs" in text

    def test_weights_that_are_only_pickled(self, tampered: Tampered) -> None:
        subject = tampered()
        folder = Path(str(subject.config.model.name_or_path))
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        assert "set model.allow_pickle: true" in the_one(check_model, subject, "error")

    @pytest.mark.parametrize(("cause", "level"), [(OSError("no network"), "skipped"), (None, "error")])
    def test_a_hub_model_that_cannot_be_read_here_may_be_there_but_one_that_does_not_fit_is_wrong_everywhere(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cause: Exception | None, level: str
    ) -> None:
        def resolve_model(config: TrainConfig, opened: OpenedModel) -> tuple[TrainConfig, Family[Any]]:
            raise ConfigError("this model") from cause

        monkeypatch.setattr(Subject, "model", OpenedModel())
        monkeypatch.setattr(model_checks, "resolve_model", resolve_model)
        changes = {"model.init": "pretrained", "model.name_or_path": "hub/model"}
        assert "this model" in the_one(check_model, subject_of(tmp_path, changes, elsewhere=True), level)

    def test_a_context_that_is_not_shorter_cannot_be_matched_with_the_whole_one(self, tampered: Tampered) -> None:
        matched = {"model.full_context_matching": 1, "model.max_context_s": 30}
        subject = tampered(**matched)
        assert "is not shorter than the model's own context of 30 s" in the_one(check_model, subject, "error")

    def test_a_folder_without_weights(self, tampered: Tampered) -> None:
        subject = tampered()
        (Path(str(subject.config.model.name_or_path)) / "model.safetensors").unlink()
        assert "holds no weights (model.safetensors)" in the_one(check_model, subject, "error")

    def test_a_language_that_whisper_does_not_know(self, tmp_path: Path, tampered: Tampered) -> None:
        assert "no token for 'Klingon'" in the_one(check_model, tampered(**{"model.language": "Klingon"}), "error")
        scratch = Subject(config({**sound_corpus(tmp_path), "model.language": "Klingon"}))
        assert "no token for 'Klingon'" in the_one(check_model, scratch, "error")

    def test_languages_of_clips(self, tampered: Tampered) -> None:
        subject = tampered()
        add_languages(Path(str(subject.config.data.train)), ["sr", "Klingon", "", "sr"])
        text = the_one(check_languages, subject, "error")
        assert text.startswith("train: column language: 1 clip has the language 'Klingon'")
        without = subject.config.data.model_copy(update={"use_language_column": False})
        assert levels(check_languages, Subject(subject.config.model_copy(update={"data": without}))) == {"ok"}
        add_languages(Path(str(subject.config.data.test)), ["sr", "th-TH"])
        assert ("ok", "test: the model knows the languages of all clips") in said(
            check_languages, Subject(subject.config)
        )

    def test_a_multilingual_model_without_a_language(self, tampered: Tampered) -> None:
        silent = tampered({"generation_config.json": {"language": None}}, **{"model.language": None})
        assert "is multilingual (--set model.language=English)" in the_one(check_model, silent, "error")

    def test_weights_that_say_their_language(self, tampered: Tampered) -> None:
        assert levels(check_model, tampered(**{"model.language": None})) == {"ok"}

    def test_a_vocabulary_needs_the_training_text(self, tmp_path: Path) -> None:
        subject = subject_of(tmp_path, {"data.train": "/nowhere.csv"}, elsewhere=True)
        assert "learned from data.train, which could not be opened here" in the_one(check_model, subject, "skipped")


class TestTokens:
    @pytest.mark.parametrize(
        ("token", "problem"),
        [
            ("<|en|>", "has no token <|en|>"),
            ("<|notimestamps|>", "its tokenizer has no <|notimestamps|>"),
            ("<|transcribe|>", "its tokenizer has no <|transcribe|>"),
        ],
    )
    def test_a_token_without_which_the_model_is_not_opened(self, tampered: Tampered, token: str, problem: str) -> None:
        subject = tampered()
        _rename_token(Path(str(subject.config.model.name_or_path)), token)
        assert problem in the_one(check_model, subject, "error")


class TestStartToken:
    @pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
    @pytest.mark.parametrize("found", [5, None])
    def test_another_start_than_the_tokenizer_s(self, tampered: Tampered, file: str, found: int | None) -> None:
        subject = tampered({file: {"decoder_start_token_id": found}})
        text = the_one(check_model, subject, "error")
        assert f" in {file}, but the tokenizer's <|startoftranscript|> is" in text


class TestGeneration:
    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ({"lang_to_id": None}, "outdated: lang_to_id"),
            ({"lang_to_id": {"<|en|>": 3}}, "outdated: lang_to_id"),
            ({"lang_to_id": {}, "task_to_id": {"translate": 1}}, "outdated: lang_to_id, task_to_id"),
            ({"task_to_id": None}, "outdated: task_to_id"),
            ({"no_timestamps_token_id": None}, "outdated: no_timestamps_token_id"),
            ({"return_timestamps": True}, "requests timestamps, which transcripts do not have: they are turned off"),
        ],
    )
    def test_what_is_put_right_is_said(self, tampered: Tampered, keys: dict[str, Any], words: str) -> None:
        assert words in the_one(check_model, tampered({"generation_config.json": keys}), "warning")

    @pytest.mark.parametrize("file", ["config.json", "generation_config.json"])
    def test_forced_decoder_ids_of_the_released_models_are_no_error(self, tampered: Tampered, file: str) -> None:
        subject = tampered({file: {"forced_decoder_ids": [[1, 50259], [2, 50359]]}})
        assert levels(check_model, subject) == {"ok"}

    def test_suppress_tokens_of_none_in_the_model_config_are_a_warning(self, tampered: Tampered) -> None:
        subject = tampered({"config.json": {"suppress_tokens": []}})
        assert "config.json has suppress_tokens [], which is ignored" in the_one(check_model, subject, "warning")

    def test_an_english_only_model_needs_no_table_of_languages(self, tampered: Tampered) -> None:
        keys = {"is_multilingual": False, "lang_to_id": None, "task_to_id": None, "language": None, "task": None}
        subject = tampered({"generation_config.json": keys}, **{"model.language": None})
        assert levels(check_model, subject) == {"ok"}


class TestAugmentation:
    CTC: ClassVar[dict[str, Any]] = {
        "model": {"init": "scratch", "family": "ctc", "d_model": 16, "attention_heads": 2, "architecture": "wav2vec2"},
        "augment.frequency_masks": 2,
    }

    def test_bands_of_a_model_that_is_given_samples_cannot_be_masked(self, tmp_path: Path) -> None:
        text = the_one(check_model, subject_of(tmp_path, self.CTC), "error")
        assert text.startswith("augment.frequency_masks is 2, but this model is given samples")
        spectral = {**self.CTC, "model": {**self.CTC["model"], "architecture": "wav2vec2-bert"}}
        assert levels(check_model, subject_of(tmp_path, spectral)) == {"ok"}

    @pytest.mark.parametrize("field", [("data.empty_text", "train"), ("augment.no_speech_fraction", 0.1)])
    def test_a_ctc_model_cannot_learn_to_write_nothing(self, tmp_path: Path, field: tuple[str, Any]) -> None:
        changes = {**self.CTC, "augment.frequency_masks": 0, field[0]: field[1]}
        text = the_one(check_model, subject_of(tmp_path, changes), "error")
        assert text.startswith(f"{field[0]} is {field[1]}, but CTC models learn nothing from clips with an empty text")

    def test_labels_of_a_ctc_model_must_fit_at_the_fastest_speed(self, tmp_path: Path) -> None:
        # 0.5 s are 24 outputs; at double speed 12, for thirteen letters.
        changes = {**self.CTC, "augment.frequency_masks": 0, "augment.speed_range": [1.0, 2.0]}
        text = the_one(check_labels, subject_of(tmp_path, changes), "warning")
        assert "than the model gives outputs at speed 2 (augment) (the model) (train/000.wav)" in text


class TestLabels:
    def test_a_transcript_longer_than_the_decoder(self, tmp_path: Path) -> None:
        subject = subject_of(tmp_path, {"model.max_label_tokens": 6, "model.vocab_size": 300})
        found = said(check_labels, subject)
        assert [(level, text.partition(":")[0]) for level, text in found] == [
            ("warning", "train"),
            ("error", "validation"),
            ("error", "test"),
        ]
        assert "2 transcripts have more label tokens than the model's 6: train/000.wav (" in found[0][1]
        assert "left out, and counted" in found[0][1]
        assert "data.too_long_eval: skip" in found[1][1]
        skipping = subject_of(tmp_path, {"model.max_label_tokens": 6, "data.too_long_eval": "skip"})
        assert levels(check_labels, skipping) == {"warning"}

    def test_a_clip_that_is_left_out_anyway_does_not_count(self, tmp_path: Path) -> None:
        changes = sound_corpus(tmp_path)
        path = tmp_path / "long.jsonl"
        rows = [
            {"path": "train/000.wav", "text": "one two", "duration": 0.5},
            {"path": "train/001.wav", "text": "one " * 100, "duration": 29.0},
        ]
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert levels(check_labels, Subject(config({**changes, "data.train": str(path)}))) == {"ok"}

    def test_a_reference_longer_than_a_hypothesis_may_be(self, tampered: Tampered) -> None:
        subject = tampered(**{"decode.max_length": 2})
        texts = [text for level, text in said(check_labels, subject) if level == "warning"]
        assert [text.partition(":")[0] for text in texts] == ["validation", "test"]
        assert "raise decode.max_length 2 to " in texts[0]

    @pytest.mark.parametrize(
        "text", ["žžžžžžžžžž" * 5, "a b c d e f " * 9, "one two three " * 20, "\N{GRINNING FACE}" * 14]
    )
    @pytest.mark.parametrize("most", [20, 40, 64])
    def test_all_and_only_the_long_ones_are_found(self, tmp_path: Path, text: str, most: int) -> None:
        changes = {**sound_corpus(tmp_path), "model.max_label_tokens": most, "decode.max_length": most}
        texts = [text[:length] for length in range(1, len(text))]
        path = write_rows(tmp_path / "growing.csv", [("train/000.wav", text) for text in texts])
        subject = Subject(config({**changes, "data.train": str(path)}))
        opened = model_checks.open_model(subject)
        assert not isinstance(opened, Finding)
        (train,) = (split for split in subject.splits if split.name == "train")
        lengths = [len(labels) for labels in opened.family.encode_labels(opened.processor, train.texts)]
        errors = [
            text for level, text in said(check_labels, subject) if level == "warning" and text.startswith("train")
        ]
        long = sum(length > most for length in lengths)
        assert [text.split()[1] for text in errors] == ([str(long)] if long else [])

    def test_punctuation_that_is_removed_does_not_count(self, tmp_path: Path) -> None:
        changes = sound_corpus(tmp_path)
        path = write_rows(tmp_path / "dots.csv", [("test/000.wav", "a" + "!" * 200)])
        subject = Subject(config({**changes, "data.test": str(path), "data.do_remove_punctuation": True}))
        assert levels(check_labels, subject) == {"ok"}
        kept = Subject(config({**changes, "data.test": str(path)}))
        assert "test: 1 transcript has more label tokens than the model's 64" in the_one(check_labels, kept, "error")


class TestArguments:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"training.training_args": {"metric_for_best_model": "eval_loss"}}, "use checkpoint.checkpoint_score_"),
            ({"training.training_args": {"learning_rat": 1}}, "did you mean learning_rate?"),
            ({"training.lr_scheduler_type": "linaer"}, "linaer"),
        ],
    )
    def test_what_the_trainer_would_refuse(self, tmp_path: Path, changes: dict[str, Any], words: str) -> None:
        assert words in the_one(check_arguments, subject_of(tmp_path, changes), "error")

    @pytest.mark.parametrize(
        ("changes", "level"),
        [
            ({"training.max_steps": 20, "training.warmup_steps": 20}, "warning"),
            ({"training.max_steps": 20, "training.warmup_steps": 19}, "ok"),
            ({"training.max_steps": None, "training.num_train_epochs": 1, "training.warmup_steps": 20}, "ok"),
        ],
    )
    def test_a_learning_rate_that_never_comes_to_its_peak(
        self, tmp_path: Path, changes: dict[str, Any], level: str
    ) -> None:
        found = list(run_check(check_arguments, subject_of(tmp_path, changes)))
        assert [item.level for item in found] == (["warning", "ok"] if level == "warning" else ["ok"])
        assert ("training.warmup_steps 20 is not below the run's 20 steps" in found[0].text) == (level == "warning")

    def test_a_recipe_for_gpus_is_taken_on_a_machine_without(self, tmp_path: Path) -> None:
        subject = subject_of(tmp_path, {"training.fp16": True, "scaling.use_gpu": True})
        assert levels(check_arguments, subject) == {"ok"}


def _rename_token(folder: Path, token: str) -> None:
    """Takes a token out of a saved tokenizer, its number kept for another."""
    for name in ("tokenizer.json", "tokenizer_config.json"):
        path = folder / name
        path.write_text(path.read_text().replace(json.dumps(token), json.dumps("<|gone|>")))


def test_a_client_runs_no_metric_of_the_recipe(tmp_path: Path) -> None:
    metrics = {"scoring.metrics": {"mine": "a_package_of_the_job:Mine"}}
    assert "a_package_of_the_job" in the_one(check_metrics, subject_of(tmp_path, metrics), "error")
    assert levels(check_metrics, subject_of(tmp_path / "client", metrics, light=True)) == {"skipped"}
