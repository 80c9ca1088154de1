"""The model card: what was measured, and what the Hub reads of it."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.hub import problems_of
from tests.trainers.prepared import prepared_train
from tests.trainers.synthetic import config, write_corpus
from trainers.config.parts.model_source import ModelSource
from trainers.config.schema import TrainConfig
from trainers.metrics.metric import EditCounts, Metric
from trainers.models.sources.model_files import WITH_WEIGHTS, SourcePin
from trainers.models.sources.origins import origin_of
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.run_folder.journal import Checkpoint
from trainers.run_folder.layout import RunFolder
from trainers.scoring.error_rate import score_texts
from trainers.scoring.normalizers import normalizer_named
from trainers.scoring.report.base_section import BaseSection, CandidateRow, Change
from trainers.scoring.report.model_card import Measured, model_card
from trainers.storage import open_storage

SCORED = Checkpoint(
    name="checkpoint-4",
    step=4,
    attempt=1,
    created="",
    files={},
    metrics={"eval_wer": 12.5, "eval_cer": 3.0, "eval_ser": 50.0},
)
TEXTS = ["one two three", "four five six seven", "eight nine", "ten"]
HYPOTHESES = ["one too three", "four five six seven", "eight nine", ""]
RATES = {"wer": 1.0, "cer": 2.0, "ser": 3.0}


def wanted(**changes: Any) -> TrainConfig:
    """The config of a run that has begun."""
    resolved = {"checkpoint.checkpoint_score_attribute": "eval_wer", "data.normalizer": "basic"}
    return config({"run.name": "mine", **resolved, **changes})


def card_of(config: TrainConfig, checkpoint: Checkpoint = SCORED, **measured: Any) -> str:
    fields = {name: getattr(config.model, name, None) for name in WITH_WEIGHTS}
    sources = {name: ModelSource.parse(text) for name, text in fields.items() if text is not None}
    pins = [SourcePin(name, source.text, source.kind, source.address) for name, source in sources.items()]
    origins = [origin_of(pin, config.run.storage_options) for pin in pins]
    card = model_card(config, WhisperFamily(), checkpoint, Measured(**measured), origins)
    assert problems_of(card) == [], "the Hub would refuse it"
    return card


def metadata_of(card: str) -> Mapping[str, Any]:
    content: Mapping[str, Any] = yaml.safe_load(card.split("---")[1])
    return content


def test_it_says_whose_token_a_language_was_given() -> None:
    card = card_of(wanted(**{"model.language": "Xhosa", "model.borrowed_language": "Swahili"}))
    assert "no token for Xhosa, and was given that of Swahili" in card
    assert metadata_of(card)["language"] == "xh", "the speech's, not the token's"
    own = card_of(wanted(**{"model.language": "Serbian"}))
    assert metadata_of(own)["language"] == "sr" and "was given" not in own


def test_it_has_both_scores_of_a_model_that_is_shortened() -> None:
    pretrained = wanted(**{"model.init": "pretrained", "model.name_or_path": "openai/whisper-tiny"})
    full = {f"eval_full_context_{name}": 10 * rate for name, rate in RATES.items()}
    scored = replace(SCORED, metrics={**SCORED.metrics, **full})
    test = {**RATES, "scored": 4, "utterances": 5}
    beyond = {"test": {**test, "full_context": {**RATES, "wer": 7.5, "context_s": 30}}}
    card = card_of(pretrained, scored, totals=beyond)
    assert "| validation | 12.50 | 3.00 | 50.00 |\n| validation, at the full context | 10.00 | 20.00 | 30.00 |" in card
    assert (
        "| test (4 of 5 utterances) | 1.00 | 2.00 | 3.00 |\n"
        "| test, at the full context (30 s) | 7.50 | 2.00 | 3.00 |" in card
    )
    (result,) = metadata_of(card)["model-index"][0]["results"]
    assert [metric["value"] for metric in result["metrics"]] == [7.5, 2.0, 3.0], "what `pipeline` comes to"
    # A new model's full context is the one that it is trained at.
    own = card_of(pretrained, totals={"test": {**test, "full_context": {**RATES, "context_s": 3}}})
    assert "at the full context" not in own


def test_it_has_what_changed_and_from_what_weights_it_was_chosen() -> None:
    changes = [Change("silence", "words per minute", "0.0", "1.5", "")]
    candidates = [CandidateRow("half", {"wer": "8.00"}, "chosen"), CandidateRow("all", {"wer": "9.00"}, "refused")]
    compared = BaseSection(changes, candidates, {})
    card = model_card(wanted(), WhisperFamily(), SCORED, Measured(), compared=compared)
    assert "| silence | words per minute | 0.0 | 1.5 |  |" in card
    assert "| weights | wer |  |\n| --- | --- | --- |\n| half | 8.00 | chosen |\n| all | 9.00 | refused |" in card


def test_it_has_the_score_of_each_language() -> None:
    rates = {**RATES, "scored": 4, "utterances": 4}
    languages = {"en": {**rates, "scored": 3}, "sr": {**rates, "wer": None, "scored": 1}}
    card = card_of(wanted(), totals={"test": {**rates, "languages": languages}})
    assert "| test, en (3 utterances) | 1.00 | 2.00 | 3.00 |\n| test, sr (1 utterance) | undefined | 2.00" in card
    assert metadata_of(card)["language"] == ["en", "sr"]


def test_it_says_where_the_weights_came_from_without_a_secret_link() -> None:
    def card(**model: str) -> str:
        return card_of(wanted(model=model))

    signed = card(name_or_path="https://host/a.zip?signature=secret")
    assert "Trained from https://host/a.zip with Rayscribe" in signed and "secret" not in signed
    assert "base_model" not in metadata_of(signed), "the Hub takes ids alone"
    assert metadata_of(card(name_or_path="a/b@v1"))["base_model"] == "a/b"
    assert "Trained from a/b@v1 with Rayscribe" in card(name_or_path="a/b@v1")
    assert "Trained from a/b and c with Rayscribe" in card(encoder="a/b", decoder="c", family="seq2seq")


def test_it_has_what_was_measured(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path / "corpus", TEXTS, durations_s=[0.5, 3.0, 7.5, 0.6])
    prepared = prepared_train(manifest, str(tmp_path / "prepared"))
    outputs, normalize = RunFolder(open_storage(str(tmp_path / "outputs"))), normalizer_named("basic")
    total, scores = score_texts(HYPOTHESES, TEXTS, normalize, ids=prepared.index["id"].to_pylist())
    totals = {**total.to_json_dict(), **normalize.to_json_dict()}
    for split in ("validation", "test"):
        outputs.write_evaluation(split, totals, (score.to_json_dict() for score in scores))
    left_out = [{"split": "train", "id": prepared.index["id"][2].as_py(), "reason": "longer than 5 s (the model)"}]
    measured = Measured.of(outputs, {"train": prepared, "test": prepared}, left_out)
    card = model_card(wanted(), WhisperFamily(), SCORED, measured)
    # 11.6 s of clips; two errors in ten words, of which a draw of four clips has between none and four of five.
    assert f"| train | 3 | 4 | 0.00 | `{prepared.key}` |" in card
    assert f"| test | 4 | 4 | 0.00 | `{prepared.key}` |" in card
    assert "| test (4 of 4 utterances) | 20.00 (0.00 to " in card
    assert "after normalization by basic 1; 95% bootstrap intervals over utterances are in parentheses" in card
    assert "Test: 10 words, 0 insertions, 1 deletion, 1 substitution." in card
    assert "which needs no ffmpeg" in card
    assert 'pipeline("automatic-speech-recognition", model="<this folder>")' in card
    assert problems_of(card) == []
    (result,) = metadata_of(card)["model-index"][0]["results"]
    assert result["dataset"] == {
        "type": "rayscribe",
        "name": f"the test set {prepared.key}",
        "split": "test",
        "args": {"prepared_set": prepared.key},
    }
    wer = result["metrics"][0]
    assert wer == {"type": "wer", "name": "WER %", "value": 20.0, "args": {"normalizer": "basic 1"}}


class TestWeightsOfAFolder:
    """Others have no use for its path, and are told what its own files say."""

    @staticmethod
    def card(folder: Path, **changes: Any) -> tuple[str, Mapping[str, Any]]:
        folder.mkdir(exist_ok=True)
        card = card_of(wanted(model={"name_or_path": str(folder)}, **changes))
        assert str(folder) not in card
        return card.split("---")[2], metadata_of(card)

    def test_its_card_names_license_and_base_model(self, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "README.md").write_text("---\nlicense: mit\nbase_model: a/b\n---\n# Mine\n")
        text, metadata = self.card(tmp_path / "mine")
        assert (metadata["license"], metadata["base_model"]) == ("mit", "a/b")
        assert "Trained from a model trained from a/b with Rayscribe" in text
        assert self.card(tmp_path / "mine", **{"hub.license": "apache-2.0"})[1]["license"] == "apache-2.0"

    @pytest.mark.parametrize(
        ("name", "base"), [("a/b", "a/b"), ("/data/b", None), ("./b", None), ("runs/checkpoint-3", None), (3, None)]
    )
    def test_its_config_names_the_base_model_and_never_a_path(
        self, tmp_path: Path, name: object, base: str | None
    ) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "config.json").write_text(json.dumps({"_name_or_path": name}))
        text, metadata = self.card(tmp_path / "mine")
        assert metadata.get("base_model") == base
        assert "license" not in metadata
        assert base is not None or "Trained from pretrained weights with Rayscribe" in text

    def test_what_cannot_be_read_is_left_out(self, tmp_path: Path) -> None:
        (tmp_path / "mine").mkdir()
        (tmp_path / "mine" / "README.md").write_text("---\nlicense: [\n---\n")
        (tmp_path / "mine" / "config.json").write_text("[")
        assert not {"license", "base_model"} & {*self.card(tmp_path / "mine")[1]}


def test_a_data_set_of_the_hub_is_named_with_its_split() -> None:
    data = {"name": "google/fleurs", "config_name": "sr_rs", "test_split": "test[:50]"}
    of_hub = wanted(**{"data.train": None, "data.validation": None, "data.dataset": data})
    card = metadata_of(card_of(of_hub, totals={"test": {**RATES, "scored": 4, "utterances": 4}}))
    assert card["datasets"] == ["google/fleurs"]
    found = card["model-index"][0]["results"][0]["dataset"]
    assert (found["type"], found["config"], found["split"]) == ("google/fleurs", "sr_rs", "test[:50]")
    data["name"] = "/data/fleurs"
    of_disk = wanted(**{"data.train": None, "data.validation": None, "data.dataset": data})
    assert "datasets" not in metadata_of(card_of(of_disk, totals={"validation": {**RATES, "scored": 4}}))


class Accuracy(Metric):
    """A rate that is not of edits per unit."""

    name, units, prefix, order = "accuracy", "words", "accuracy_", "max"

    def cut(self, text: str) -> Sequence[str]:
        return text.split()

    def rate(self, counts: EditCounts) -> float | None:
        return None if counts.rate is None else 100 - counts.rate


class Plain(Metric):
    """A rate of edits per unit, whose edits are not in the rows."""

    name, units = "plain", "words"

    def cut(self, text: str) -> Sequence[str]:
        return text.split()


@pytest.mark.parametrize("metric", [Accuracy(), Plain()])
def test_a_rate_without_an_interval_of_its_own_has_none(metric: Metric, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainers.scoring.report.model_card.known_metrics", lambda: {metric.name: metric})
    row = {"words": 8, "insertions": 0, "deletions": 0, "substitutions": 1}
    row |= {f"{metric.prefix}{name}": value for name, value in row.items() if name != "words"}
    test = {"scored": 2, "utterances": 2, metric.name: 87.5}
    checkpoint = replace(SCORED, metrics={f"eval_{metric.name}": 80.0})
    card = card_of(wanted(), checkpoint, totals={"test": test}, rows={"test": [row, row]})
    assert "| test (2 of 2 utterances) | 87.50 |\n" in card
