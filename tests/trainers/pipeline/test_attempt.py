"""What stops an attempt before anything is prepared, and an attempt whose journal moves before it is committed."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tests.trainers.run_folder.writers import begin as other_driver
from tests.trainers.run_folder.writers import first_group, staged
from tests.trainers.synthetic import config, speechlike, write_recording
from trainers.config.schema import TrainConfig
from trainers.distributed.session import LocalSession
from trainers.errors import ConfigError, LostNodeError, ResourceError, ResumeError, StorageError
from trainers.models.families import family_of
from trainers.models.sources.opened_model import OpenedModel
from trainers.pipeline import attempt
from trainers.pipeline.attempt import AttemptPlan, PlannedModel
from trainers.pipeline.continuation import Continuation
from trainers.pipeline.engine import Engine, LocalEngine
from trainers.pipeline.splits import OpenedData
from trainers.run_folder import staging as staging_module
from trainers.run_folder.attempt_request import AttemptRequest
from trainers.run_folder.attempt_status import StatusWriter
from trainers.run_folder.checkpoints import RetentionPolicy, upload_staged
from trainers.run_folder.journal import Journal, State
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.staging import Staging


class TooSmall(LocalEngine):
    """A cluster that does not hold the workers."""

    def check(self, config: TrainConfig, *, trains: bool) -> None:
        """Refuses."""
        raise ResourceError("2 × 2 CPU = 4 CPU, but the cluster has 3")


@pytest.mark.parametrize(
    ("number", "error"),
    [pytest.param(None, ResourceError, id="started by hand"), pytest.param(2, LostNodeError, id="started by a queue")],
)
def test_a_cluster_that_is_too_small_has_lost_a_node_where_a_queue_found_it_large_enough(
    tmp_path: Path, number: int | None, error: type[Exception]
) -> None:
    wanted = config({"run.name": "mine", "run.storage_path": str(tmp_path)})
    folder = RunFolder.of(wanted)
    with pytest.raises(error, match="4 CPU, but the cluster has 3") as caught:
        attempt.begin(wanted, TooSmall(), AttemptRequest(folder, number=number), StatusWriter(folder, None))
    assert type(caught.value) is error


class Reached(Exception):
    """The attempt was not refused before the cluster was looked at."""


class Stops(LocalEngine):
    """Stops there."""

    def check(self, config: TrainConfig, *, trains: bool) -> None:
        """Refuses."""
        raise Reached


def begin_mine(storage_path: Path, number: int | None, expected: str | None = None) -> None:
    """Begins an attempt of the run `mine`."""
    wanted = config({"run.name": "mine", "run.storage_path": str(storage_path)})
    folder = RunFolder.of(wanted)
    request = AttemptRequest(folder, number=number, expected=expected)
    attempt.begin(wanted, Stops(), request, StatusWriter(folder, None))


def test_a_retry_that_finds_nothing_of_its_run_says_what_was_there_and_trains_nothing(tmp_path: Path) -> None:
    message = r"mine: this run has checkpoint-8, but no checkpoint was found there from .*: mount .*run\.name"
    with pytest.raises(StorageError, match=message):
        begin_mine(tmp_path, 2, "checkpoint-8")
    group = first_group(RunFolder.of(config({"run.name": "mine", "run.storage_path": str(tmp_path)})))
    with pytest.raises(StorageError, match="checkpoint-8"):
        begin_mine(tmp_path, 2, "checkpoint-8")
    upload_staged(staged(tmp_path / "staged", 20), group, RetentionPolicy(None, "eval_wer"))
    with pytest.raises(Reached):
        begin_mine(tmp_path, 2, "checkpoint-8")


def test_a_start_by_hand_that_finds_nothing_of_a_run_with_a_staged_checkpoint_trains_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    group = Staging.open("run", LocalSession(0, 1, 0))
    group.name_run(f"{tmp_path}/runs/mine")
    left = staged(group.folder, 20)
    with pytest.raises(StorageError, match=f"this run has {left.name}, .*delete {left}"):
        begin_mine(tmp_path / "runs", None)
    with pytest.raises(Reached):
        begin_mine(tmp_path / "others", None)
    group.remove()
    with pytest.raises(Reached):
        begin_mine(tmp_path / "runs", None)


def test_a_second_start_on_a_node_that_trains_the_run_is_refused_before_it_is_an_attempt(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "disk"))
    monkeypatch.setattr(staging_module, "KILLED_GROUP_TIMEOUT_S", 0.0)
    folder = RunFolder.of(config({"run.name": "mine", "run.storage_path": str(tmp_path)}))
    state = other_driver(folder).check()
    assert state.experiment is not None
    group = Staging.open(state.experiment["id"], LocalSession(0, 1, 0))
    with pytest.raises(ResumeError, match="another attempt of this run trains on this node"):
        begin_mine(tmp_path, None)
    assert Journal(folder).read() == state
    with pytest.raises(Reached):
        begin_mine(tmp_path, 2)
    group.release()
    with pytest.raises(Reached):
        begin_mine(tmp_path, None)


class Data:
    """Opened data; while it is prepared, something happens."""

    def __init__(self, happens: Callable[[], object]):
        self._happens = happens

    def prepare(self, *_: Any) -> dict[str, Any]:
        """Prepares nothing."""
        self._happens()
        return {}


def test_where_the_journal_moves_while_data_is_prepared_the_plan_is_resolved_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    wanted = config({"run.name": "mine", "run.storage_path": str(tmp_path)})
    folder = RunFolder.of(wanted)
    request = AttemptRequest(folder)
    waiting: list[Callable[[], object]] = [lambda: other_driver(folder), lambda: None]
    plans: list[AttemptPlan] = []

    def resolve(
        config: TrainConfig, engine: Engine, request: AttemptRequest, state: State, status: StatusWriter
    ) -> AttemptPlan:
        continuation = Continuation(wanted, {"id": f"plan {len(plans) + 1}", "experiment": {}})
        opened = PlannedModel(wanted, family_of(wanted.model), OpenedModel(), None)
        data = cast(Any, Data(waiting.pop(0)))
        plans.append(AttemptPlan(request, state, continuation, opened, data, has_finished=False))
        return plans[-1]

    monkeypatch.setattr(attempt, "resolve", resolve)
    monkeypatch.setattr(attempt, "_write_attempt", lambda plan, driver, sets: (plan, driver))
    begun: Any = attempt.begin(wanted, LocalEngine(), request, StatusWriter(folder, None))
    plan, driver = begun
    assert plans == [plans[0], plan]
    state = Journal(folder).read()
    assert (state.number, state.attempt, state.driver) == (2, 2, driver.id), "the first plan has entered nothing"
    assert state.experiment is not None
    assert state.experiment["id"] == "plan 2"


def test_what_stops_an_attempt_is_told_together(tmp_path: Path) -> None:
    wrong = {
        "model": {"name_or_path": str(tmp_path / "no-model"), "language": "English"},
        "data.train": str(tmp_path / "gone.csv"),
        "scoring.metrics": {"mine": str(tmp_path / "no-metric")},
    }
    wanted = config({"run.name": "mine", "run.storage_path": str(tmp_path / "runs"), **wrong})
    folder = RunFolder.of(wanted)
    with pytest.raises(ConfigError) as caught:
        attempt.begin(wanted, TooSmall(), AttemptRequest(folder), StatusWriter(folder, None))
    head, *problems = str(caught.value).splitlines()
    assert head == f"{folder.url}: 4 problems"
    for words, problem in zip(("3", "no-model", "gone.csv", "scoring.metrics.mine"), problems, strict=True):
        assert problem.startswith("  - ") and words in problem


def test_where_the_storage_cannot_be_written_the_rest_that_can_be_known_is_told_too(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    wrong = {"scoring.metrics": {"mine": str(tmp_path / "no-metric")}}
    wanted = config({"run.name": "mine", "run.storage_path": str(tmp_path / "file/runs"), **wrong})
    folder = RunFolder.of(wanted)
    # A retry may find it again.
    with pytest.raises(StorageError, match=r"2 problems\n  - cannot create [^\n]*\n  - scoring\.metrics\.mine"):
        attempt.begin(wanted, LocalEngine(), AttemptRequest(folder), StatusWriter(folder, None))


@pytest.mark.parametrize(
    ("rows", "refused"),
    [
        (["talk.wav,one,0,1", "talk.wav,two,1,1"], None),
        (["talk.wav,one,0,1", "talk.wav,to the end,1,"], "new weights, .* 1 training row is not"),
    ],
)
def test_new_weights_give_times_only_to_packed_segments(tmp_path: Path, rows: list[str], refused: str | None) -> None:
    write_recording(tmp_path / "talk.wav", speechlike(2.0))
    (tmp_path / "train.csv").write_text("\n".join(["path,text,offset,duration", *rows]))
    (tmp_path / "valid.csv").write_text("path,text\ntalk.wav,one two\n")
    wanted = config(
        {
            "run.storage_path": str(tmp_path / "runs"),
            "data": {"train": str(tmp_path / "train.csv"), "validation": str(tmp_path / "valid.csv")},
            "data.pack_segments_s": 2,
            "training.keep_timestamps": 0.2,
        }
    )
    opened: Any = SimpleNamespace(config=wanted, family=family_of(wanted.model), part=wanted.model, processor=None)
    continuation: Any = SimpleNamespace(began_from=None)
    with pytest.raises(ConfigError, match=refused) if refused is not None else nullcontext():
        attempt._check_comparison(opened, OpenedData.of(wanted), continuation)
