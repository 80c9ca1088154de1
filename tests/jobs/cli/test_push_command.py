"""`rayscribe push`: a finished run's model, to where its recipe or the command says."""

from pathlib import Path
from typing import Any

import pytest
import yaml

from jobs.cli.app import main
from tests.hub import Fault, Hub
from tests.trainers.run_folder.finished_runs import MODEL, finish
from tests.trainers.synthetic import content
from trainers.errors import RefusedError
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """The folder of a run, by nobody's list."""
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    folder = finish(RunFolder(open_storage(str(tmp_path / "sr"))))
    recipe = content({"run.name": "sr", "hub.model_id": "lab/sr"})
    folder.storage.write_bytes("config.yaml", yaml.safe_dump(recipe).encode())
    return folder.url


def test_the_model_goes_where_the_recipe_says_or_the_command(
    taking_hub: Hub, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", run]) == 0
    pushed = taking_hub.repositories["lab/sr"]
    assert pushed.files.keys() == MODEL.keys() and not pushed.private
    assert capsys.readouterr().out == f"pushed: {taking_hub.url}/lab/sr, commit {pushed.commits[-1]}\n"
    assert main(["push", run, "--model-id", "mine", "--private"]) == 0
    assert taking_hub.repositories["ana/mine"].private


WORSE = {"judgment": "worse", "metric": "wer", "base": 11.3, "tuned": 15.7}


@pytest.mark.parametrize(
    ("verdict", "requires", "why"),
    [
        (WORSE, False, "the training made the model worse (WER 11.30% → 15.70%)"),
        (
            {**WORSE, "judgment": "not told apart"},
            True,
            "the training did not make the model better (WER 11.30% → 15.70%), which evaluate.require_better requires",
        ),
        (None, True, "the training did not make the model better, which evaluate.require_better requires"),
        ({**WORSE, "judgment": "not told apart"}, False, None),
        ({**WORSE, "judgment": "better"}, True, None),
    ],
)
def test_a_model_that_is_not_accepted_is_pushed_only_on_request(
    taking_hub: Hub,
    run: str,
    capsys: pytest.CaptureFixture[str],
    verdict: dict[str, Any] | None,
    requires: bool,
    why: str | None,
) -> None:
    folder = finish(RunFolder(open_storage(run)), verdict=verdict)
    recipe = content({"run.name": "sr", "hub.model_id": "lab/sr", "evaluate.require_better": requires})
    folder.storage.write_bytes("config.yaml", yaml.safe_dump(recipe).encode())
    assert main(["push", run]) == (0 if why is None else RefusedError.exit_code)
    assert why is None or f"{run}: {why}" in capsys.readouterr().err
    assert main(["push", run, "--allow-worse"]) == 0


def test_what_keeps_it_from_being_pushed_is_an_exit_code(
    taking_hub: Hub, run: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["push", run, "--model-id", "other/sr"]) == 2
    assert "hub.model_id: other/sr: the token of ana may not write there" in capsys.readouterr().err
    assert main(["push", run, "--model-id", "a--b"]) == 2
    assert "model_id: is not a valid name on the Hub" in capsys.readouterr().err
    taking_hub.faults.append(Fault("whoami", 503, times=1000))
    assert main(["push", run]) == 4
    assert "the Hub responds with status 503" in capsys.readouterr().err
