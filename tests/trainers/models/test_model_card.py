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
