"""queues.yaml: what is taken, and what is said of faults."""

from pathlib import Path

import pytest

from jobs.scheduler.limits import STARVATION_TIMEOUT_S, Limits, QueuePart, QueuesConfig
from jobs.service.queues_file import find_queues, read_queues
from jobs.service.standalone import open_local
from trainers.errors import ConfigError


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """Where the file is."""
    return tmp_path / "queues.yaml"


def fault_of(file: Path, text: str) -> str:
    """What is said of a file with this text."""
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_queues(file)
    return str(caught.value)


def test_limits_of_a_queue_and_of_each_user_are_read(file: Path) -> None:
    file.write_text(
        """
        patience_s: 3600
        queues:
          default: {max_gpus: 8}
          research: {max_gpus: 16, max_cpus: 64, max_running: 8, per_user: {max_gpus: 4, max_running: 2}}
        """
    )
    config = read_queues(file)
    assert config.patience_s == 3600
    assert config.queues["default"] == QueuePart(max_gpus=8)
    assert config.queues["research"] == QueuePart(
        max_gpus=16, max_cpus=64, max_running=8, per_user=Limits(max_gpus=4, max_running=2)
    )


@pytest.mark.parametrize("text", ["", "{}", "queues: {}", "queues: {night: }"])
def test_there_is_always_a_default_queue_without_limits(file: Path, text: str) -> None:
    file.write_text(text)
    config = read_queues(file)
    assert config.queues["default"] == QueuePart()
    assert config.patience_s == STARVATION_TIMEOUT_S


def test_a_queue_with_nothing_under_it_has_no_limits(file: Path) -> None:
    file.write_text("queues: {night: }")
    assert read_queues(file).queues["night"] == QueuePart()


def test_what_is_written_can_be_read_again(file: Path) -> None:
    config = QueuesConfig(patience_s=60, queues={"night": QueuePart(max_gpus=2.5, per_user=Limits(max_running=1))})
    file.write_text(config.model_dump_json())
    assert read_queues(file) == config


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("patience: 5", "patience: unknown key; did you mean patience_s?"),
        ("limits: 5", "limits: unknown key; the keys here are patience_s, storages, s3_endpoints, queues"),
        ("queues: {night: {max_gpu: 2}}", "queues.night.max_gpu: unknown key; did you mean queues.night.max_gpus?"),
        (
            "queues: {night: {per_user: {max_run: 2}}}",
            "queues.night.per_user.max_run: unknown key; did you mean queues.night.per_user.max_running?",
        ),
        (
            "queues: {night: {color: 2}}",
            "queues.night.color: unknown key; the keys here are max_gpus, max_cpus, max_running, per_user",
        ),
        (
            "queues: {night: {max_gpus: -1}}",
            "queues.night.max_gpus: Input should be greater than or equal to 0 (got -1)",
        ),
        ("queues: {night: {max_running: 1.5}}", "queues.night.max_running: "),
        ("queues: {night: {max_gpus: many}}", "(got 'many')"),
        ("queues: {night: 8}", "queues.night: must be a mapping of keys to values"),
        ("queues: [night]", "queues: must be a mapping of keys to values (got ['night'])"),
        ("patience_s: -1", "patience_s: Input should be greater than or equal to 0 (got -1)"),
        ('queues: {"late night": {}}', "queues.late night: a queue's name is letters, digits and . _ -"),
        ("queues: {1: {}}", "queues.1: a queue's name is"),
        ("[1, 2]", "has a list, not the keys patience_s, storages, s3_endpoints, queues"),
        ("queues: {", "cannot be read as YAML"),
        ("patience_s: 5\nqueues: {}\npatience_s: 6", "line 3: duplicate key patience_s"),
    ],
)
def test_a_fault_is_named_with_its_key_value_and_fix(file: Path, text: str, said: str) -> None:
    message = fault_of(file, text)
    assert message.startswith(str(file))
    assert said in message


def test_every_fault_is_told_at_once(file: Path) -> None:
    message = fault_of(file, "patience: 5\nqueues: {night: {max_gpu: 2, max_cpus: -1}, 'late night': {}}")
    assert "4 problems" in message
    for said in ("patience_s?", "max_gpus?", "max_cpus", "late night"):
        assert said in message


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"none\.yaml: no such file; write one"):
        read_queues(tmp_path / "none.yaml")


def test_a_file_that_a_variable_names_must_be_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("RAYSCRIBE_QUEUES", "")
    assert find_queues() == QueuesConfig(), "queues.yaml in the home folder may be missing"
    monkeypatch.setenv("RAYSCRIBE_QUEUES", str(tmp_path / "caps.yaml"))
    with pytest.raises(ConfigError, match=r"caps\.yaml: no such file"):
        find_queues()
    monkeypatch.setenv("RAYSCRIBE_DATABASE", f"sqlite:///{tmp_path / 'ledger.db'}")
    with pytest.raises(ConfigError, match=r"caps\.yaml: no such file"), open_local():
        pass
    (tmp_path / "caps.yaml").write_text("queues: {night: {max_gpus: 2}}")
    assert find_queues().queues["night"].max_gpus == 2
