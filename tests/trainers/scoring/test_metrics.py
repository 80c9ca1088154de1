import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from trainers.errors import ConfigError, ScoringError
from trainers.scoring import metrics
from trainers.scoring.error_rate import score_utterance, total
from trainers.scoring.metrics import ErrorRates

PREDICTIONS = ["the hat sat", "", "uh"]
REFERENCES = ["the cat sat", "yes", ""]

COMPUTE_IN_A_LOOP = """
import json
from trainers.scoring.metrics import ErrorRates
results = set()
for _ in range(20):
    metric = ErrorRates("wer", experiment_id="same")
    metric.add_batch(predictions=["a b"], references=["a c"])
    metric.add_batch(predictions=["a"], references=["a"])
    results.add(json.dumps(metric.compute()))
print("\\n".join(results))
"""


NAMES = ("wer", "cer", "ser", None)
LOAD_BY_PATH = """
import json, socket
import evaluate

def refuse(*arguments):
    raise AssertionError(f"evaluate asked for the network: {{arguments}}")
socket.socket.connect = refuse
opened = [evaluate.load({path!r}, name) for name in ("wer", "cer", "ser", None)]
print(json.dumps([metric.compute(predictions={predictions}, references={references}) for metric in opened]))
"""


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError(f"a metric asked for the network: {arguments}")

    monkeypatch.setattr(socket.socket, "connect", refuse)


def test_word_error_rate() -> None:
    result = ErrorRates("wer").compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result == {"wer": 75.0, "insertions": 1, "deletions": 1, "substitutions": 1, "words": 4}


def test_character_error_rate() -> None:
    result = ErrorRates("cer").compute(predictions=PREDICTIONS, references=REFERENCES)
    assert result == {
        "cer": pytest.approx(100 * 6 / 14),
        "insertions": 2,
        "deletions": 3,
        "substitutions": 1,
        "characters": 14,
    }


def test_sentence_error_rate() -> None:
    result = ErrorRates("ser").compute(predictions=["a", "b"], references=["a", "c"])
    assert result == {"ser": 50.0, "sentence_errors": 1, "utterances": 2}


@pytest.mark.parametrize("name", NAMES)
def test_batches_add_up(name: str | None) -> None:
    whole = ErrorRates(name).compute(predictions=PREDICTIONS, references=REFERENCES)
    metric = ErrorRates(name)
    for prediction, reference in zip(PREDICTIONS, REFERENCES, strict=True):
        metric.add_batch(predictions=[prediction], references=[reference])
    assert metric.compute() == whole


def test_a_metric_can_be_used_again() -> None:
    metric = ErrorRates("wer")
    assert metric.compute(predictions=["a"], references=["b"])["wer"] == 100.0
    assert metric.compute(predictions=["b"], references=["b"])["wer"] == 0.0


def test_references_without_words_give_no_rate() -> None:
    result = ErrorRates("wer").compute(predictions=["uh"], references=[""])
    assert (result["wer"], result["insertions"]) == (None, 1)


@pytest.mark.parametrize("name", NAMES)
def test_no_predictions_is_an_error(name: str | None) -> None:
    with pytest.raises(ScoringError, match="no predictions"):
        ErrorRates(name).compute(predictions=[], references=[])


def test_an_unknown_name_is_an_error() -> None:
    with pytest.raises(ConfigError, match="'mer' is not known: use one of wer, cer, ser"):
        ErrorRates("mer")


def test_metrics_open_at_once_share_no_files(tmp_path: Path) -> None:
    first, second = (ErrorRates("wer", experiment_id="same", cache_dir=str(tmp_path)) for _ in range(2))
    first.add_batch(predictions=["a"], references=["a"])
    second.add_batch(predictions=["b"], references=["a"])
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]
    assert (first.compute()["wer"], second.compute()["wer"]) == (0.0, 100.0)


def test_all_of_them_are_the_score_of_the_utterances() -> None:
    def lower(text: str) -> str:
        return text.lower()

    ids, durations_s = ["a", "b", "c"], [1.0, 2.0, 3.0]
    capitals = [text.upper() for text in PREDICTIONS]
    result = ErrorRates().compute(
        predictions=capitals, references=REFERENCES, normalize=lower, ids=ids, durations_s=durations_s, utterances=4
    )
    each = [score_utterance(*row, normalize=lower) for row in zip(ids, REFERENCES, capitals, durations_s, strict=True)]
    assert result.pop("per_utterance") == each
    assert result == total(each, utterances=4).to_json_dict()
    assert (result["utterances"], result["scored"]) == (4, 3)


@pytest.mark.integration
def test_evaluate_opens_it_by_its_path_without_a_network(tmp_path: Path) -> None:
    # In a process of its own: evaluate reads where it copies scripts to, once, when it is imported.
    environment = {**os.environ, "HF_HOME": str(tmp_path), "HF_EVALUATE_OFFLINE": "1", "HF_HUB_OFFLINE": "1"}
    script = LOAD_BY_PATH.format(path=metrics.__file__, predictions=PREDICTIONS, references=REFERENCES)
    process = subprocess.run(
        [sys.executable, "-c", script], check=False, env=environment, capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    ours = [ErrorRates(name).compute(predictions=PREDICTIONS, references=REFERENCES) for name in NAMES]
    assert json.loads(process.stdout.splitlines()[-1]) == ours


@pytest.mark.long
def test_processes_computing_at_once_do_not_collide() -> None:
    processes = [
        subprocess.Popen([sys.executable, "-c", COMPUTE_IN_A_LOOP], stdout=subprocess.PIPE, text=True) for _ in range(2)
    ]
    outputs = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    assert [json.loads(output)["wer"] for output in outputs] == [pytest.approx(100 / 3)] * 2
