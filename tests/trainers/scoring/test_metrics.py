import json
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.errors import ConfigError, ScoringError
from trainers.scoring.metrics import CharacterErrorRate, SentenceErrorRate, WordErrorRate, load_metric

PREDICTIONS = ["the hat sat", "", "uh"]
REFERENCES = ["the cat sat", "yes", ""]

COMPUTE_IN_A_LOOP = """
import json
from trainers.scoring.metrics import load_metric
results = set()
for _ in range(20):
    metric = load_metric("wer", experiment_id="same")
    metric.add_batch(predictions=["a b"], references=["a c"])
    metric.add_batch(predictions=["a"], references=["a"])
    results.add(json.dumps(metric.compute()))
print("\\n".join(results))
"""


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"a metric asked for the network: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_word_error_rate() -> None:
    result = load_metric("wer").compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result == {"wer": 75.0, "insertions": 1, "deletions": 1, "substitutions": 1, "words": 4}


def test_character_error_rate() -> None:
    result = load_metric("cer").compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result == {
        "cer": pytest.approx(100 * 6 / 14),
        "insertions": 2,
        "deletions": 3,
        "substitutions": 1,
        "characters": 14,
    }


def test_sentence_error_rate() -> None:
    result = load_metric("ser").compute(predictions=["a", "b"], references=["a", "c"])
    assert result == {"ser": 50.0, "sentence_errors": 1, "utterances": 2}


@pytest.mark.parametrize("metric_class", [WordErrorRate, CharacterErrorRate, SentenceErrorRate])
def test_batches_add_up(metric_class: type[WordErrorRate]) -> None:
    whole = metric_class().compute(predictions=PREDICTIONS, references=REFERENCES)
    metric = metric_class()
    for prediction, reference in zip(PREDICTIONS, REFERENCES, strict=True):
        metric.add_batch(predictions=[prediction], references=[reference])
    assert metric.compute() == whole


def test_a_metric_can_be_used_again() -> None:
    metric = load_metric("wer")
    assert metric.compute(predictions=["a"], references=["b"])["wer"] == 100.0
    assert metric.compute(predictions=["b"], references=["b"])["wer"] == 0.0


def test_references_without_words_give_no_rate() -> None:
    result = load_metric("wer").compute(predictions=["uh"], references=[""])
    assert (result["wer"], result["insertions"]) == (None, 1)


@pytest.mark.parametrize("name", ["wer", "cer", "ser"])
def test_no_predictions_is_an_error(name: str) -> None:
    with pytest.raises(ScoringError, match="no predictions"):
        load_metric(name).compute(predictions=[], references=[])


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'mer' is not known: use one of wer, cer, ser"):
        load_metric("mer")


def test_metrics_open_at_once_share_no_files(tmp_path: Path) -> None:
    first, second = (WordErrorRate(experiment_id="same", cache_dir=str(tmp_path)) for _ in range(2))
    first.add_batch(predictions=["a"], references=["a"])
    second.add_batch(predictions=["b"], references=["a"])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert (first.compute()["wer"], second.compute()["wer"]) == (0.0, 100.0)


@pytest.mark.slow
def test_processes_computing_at_once_do_not_collide() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", COMPUTE_IN_A_LOOP], stdout=subprocess.PIPE, text=True) for _ in range(3)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    assert [json.loads(output)["wer"] for output in outputs] == [pytest.approx(100 / 3)] * 3
