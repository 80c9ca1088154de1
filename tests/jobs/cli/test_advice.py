"""What commands say may be done next: every command in it is one of `rayscribe`, with options that it takes."""

import shlex
from collections.abc import Iterable

import pytest
from typer.main import get_command

from jobs.cli.app import app
from jobs.cli.output import next_steps as next_of_run
from jobs.model import RunState
from tests.jobs.sample import sample_run
from tests.trainers.synthetic import config
from trainers.pipeline.next_steps import OF_TRAINING, next_steps

TYPED = ["my recipe.yaml", "--set", "data.train=a b.csv", "--no-ray"]
GROUP = get_command(app)


def commands_in(lines: Iterable[str]) -> list[list[str]]:
    """The words of each command after a colon; it has been parsed as the shell and typer do."""
    found = [shlex.split(line.partition(": ")[2]) for line in lines]
    commands = [words[1:] for words in found if words[:1] == ["rayscribe"]]
    for name, *arguments in commands:
        command = GROUP.commands[name]  # type: ignore[attr-defined]
        command.make_context(name, list(arguments))
    return commands


def test_a_training_can_be_scored_and_trained_on() -> None:
    lines = list(next_steps("train", TYPED, config({"training.max_steps": 40, "run.name": "sr"}), "/runs/sr", "test"))
    scored, longer, transcribed = commands_in(lines)
    assert scored == ["evaluate", *TYPED, "--model", "/runs/sr", "--split", "validation"]
    changes = ["run.name=sr", "training.max_steps=80", "training.extend=rescale"]
    assert transcribed == ["transcribe", "/runs/sr", "recording.wav"]
    assert longer == ["train", *TYPED, *(word for change in changes for word in ("--set", change))]


def test_a_training_whose_error_rate_has_risen_is_not_trained_on() -> None:
    trained = config({"training.max_steps": 40, "run.name": "sr"})
    lines = list(next_steps("train", TYPED, trained, "/runs/sr", "test", best_step=20))
    assert [command[0] for command in commands_in(lines)] == ["evaluate", "transcribe"]
    assert any("worse on the validation set than the best one, of step 20" in line for line in lines)


def test_an_override_is_named_once_and_only_where_it_is_read() -> None:
    typed = ["a.yaml", *_sets("run.name=ctrlc", "training.max_steps=300", "data.train=a.csv", "training.max_steps=20")]
    trained = config({"training.max_steps": 20, "run.name": "ctrlc"})
    scored, longer, _ = commands_in(next_steps("train", typed, trained, "/runs/ctrlc", "test"))
    assert scored[1:4] == ["a.yaml", "--set", "data.train=a.csv"]
    assert longer[2:] == _sets("data.train=a.csv", "run.name=ctrlc", "training.max_steps=40", "training.extend=rescale")


def test_what_a_score_leaves_out_are_fields() -> None:
    content = config({}).model_dump()
    assert all(field.split(".")[1] in content[field.split(".")[0]] for field in OF_TRAINING)


def _sets(*overrides: str) -> list[str]:
    return [word for override in overrides for word in ("--set", override)]


def test_one_of_epochs_is_trained_on_for_as_many_more() -> None:
    epochs = {"training.max_steps": None, "training.num_train_epochs": 1.5}
    lines = next_steps("train", [], config(epochs), "/runs/sr", "test")
    assert any("--set training.num_train_epochs=3 " in line for line in lines)


def test_what_is_prepared_can_be_trained_on_and_a_score_has_its_utterances() -> None:
    assert commands_in(next_steps("prepare", TYPED, config({}), "", "")) == [["train", *TYPED]]
    (line,) = next_steps("evaluate", TYPED, config({}), "s3://bucket/scored", "validation")
    assert line.endswith(": s3://bucket/scored/evaluation/validation.jsonl")


@pytest.mark.parametrize("state", RunState)
def test_a_run_can_be_followed_stopped_or_continued(state: RunState) -> None:
    names = [command[0] for command in commands_in(next_of_run(sample_run(state=state), None))]
    expected = ["logs", "events", "resume"] if state.ended else ["logs", "stop"]
    assert names == (expected[:2] if state == RunState.SUCCEEDED else expected)


def test_of_a_program_no_model_is_spoken_of() -> None:
    run = sample_run(state=RunState.SUCCEEDED)
    program = run.model_copy(update={"config": {**run.config, "trainer": "script"}})
    assert next_of_run(run, None)[-1] == f"its model and scores: {run.run_folder}"
    assert next_of_run(program, None)[-1] == f"what is kept of its output: {run.run_folder}"


def test_commands_name_the_service_that_was_named() -> None:
    commands = commands_in(next_of_run(sample_run(), "http://h:1"))
    assert [command[-2:] for command in commands] == [["--service", "http://h:1"]] * 2
