from dataclasses import replace

from tests.trainers.synthetic import config
from trainers.models.export import model_card
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.run_folder.journal import Checkpoint

SCORED = Checkpoint(
    name="checkpoint-4",
    step=4,
    attempt=1,
    created="",
    files={},
    metrics={"eval_wer": 12.5, "eval_cer": 3.0, "eval_ser": 50.0},
)


def test_it_says_whose_token_a_language_was_given() -> None:
    base = {"run.name": "mine", "checkpoint.checkpoint_score_attribute": "eval_wer"}
    borrowing = config({**base, "model.language": "Xhosa", "model.borrowed_language": "Swahili"})
    card = model_card(borrowing, WhisperFamily(), SCORED, None)
    assert "language: xhosa" in card and "no token for Xhosa, and was given that of Swahili" in card
    own = model_card(config({**base, "model.language": "Serbian"}), WhisperFamily(), SCORED, None)
    assert "language: sr" in own and "was given" not in own


def test_it_has_both_scores_of_a_model_that_is_shortened() -> None:
    pretrained = {"model.init": "pretrained", "model.name_or_path": "openai/whisper-tiny"}
    wanted = config({"run.name": "mine", "checkpoint.checkpoint_score_attribute": "eval_wer", **pretrained})
    rates = {"wer": 1.0, "cer": 2.0, "ser": 3.0}
    full = {f"eval_full_context_{name}": 10 * rate for name, rate in rates.items()}
    scored = replace(SCORED, metrics={**SCORED.metrics, **full})
    test = {**rates, "scored": 4, "utterances": 5}
    card = model_card(wanted, WhisperFamily(), scored, {**test, "full_context": {**rates, "wer": 7.5, "context_s": 30}})
    assert "| validation | 12.50 | 3.00 | 50.00 |\n| validation, at the full context | 10.00 | 20.00 | 30.00 |" in card
    assert (
        "| test (4 of 5 utterances) | 1.00 | 2.00 | 3.00 |\n"
        "| test, at the full context (30 s) | 7.50 | 2.00 | 3.00 |" in card
    )
    # A new model's full context is the one that it is trained at.
    own = model_card(wanted, WhisperFamily(), SCORED, {**test, "full_context": {**rates, "context_s": 3}})
    assert "at the full context" not in own


def test_it_has_the_score_of_each_language() -> None:
    wanted = config({"run.name": "mine", "checkpoint.checkpoint_score_attribute": "eval_wer"})
    rates = {"wer": 1.0, "cer": 2.0, "ser": 3.0, "scored": 4, "utterances": 4}
    languages = {"en": {**rates, "scored": 3}, "sr": {**rates, "wer": None, "scored": 1}}
    card = model_card(wanted, WhisperFamily(), SCORED, {**rates, "languages": languages})
    assert "| test, en (3 utterances) | 1.00 | 2.00 | 3.00 |\n| test, sr (1 utterance) | undefined | 2.00" in card
    assert "language:\n- en\n- sr\n" in card


def test_it_says_where_the_weights_came_from_without_a_secret_link() -> None:
    def card(**model: str) -> str:
        base = {"run.name": "mine", "checkpoint.checkpoint_score_attribute": "eval_wer"}
        return model_card(config({**base, "model": model}), WhisperFamily(), SCORED, None)

    signed = card(name_or_path="https://host/a.zip?signature=secret")
    assert "base_model: https://host/a.zip\n" in signed and "secret" not in signed
    assert "base_model: a/b\n" in card(name_or_path="a/b@v1")
    assert "Trained from a/b@v1 with Rayscribe" in card(name_or_path="a/b@v1")
    assert "Trained from a/b and c with Rayscribe" in card(encoder="a/b", decoder="c", family="seq2seq")
