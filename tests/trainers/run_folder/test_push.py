"""The push of a run's model to a Hub that breaks off, refuses and forgets to answer."""

import hashlib
from pathlib import Path

import pytest

from tests.hub import TOKEN, Fault, Hub, Repository
from tests.trainers.run_folder.finished_runs import CARD, MODEL, finish
from tests.trainers.run_folder.writers import begin
from trainers.config.parts.run_part import HubPart
from trainers.errors import ConfigError, StorageError
from trainers.run_folder.hub_push import PLACE, is_pushed, push_run
from trainers.run_folder.journal import Journal, Push
from trainers.run_folder.layout import RunFolder
from trainers.storage import Storage, open_storage

PART = HubPart(push=True)
LARGE = {name: hashlib.sha256(content).hexdigest() for name, content in MODEL.items() if name.endswith("safetensors")}
PUSHED = {**MODEL, "README.md": CARD.replace(PLACE, "ana/sr").encode()}


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """The run `sr`, which has finished."""
    return finish(RunFolder(open_storage(str(tmp_path / "sr"))))


def test_the_hub_gets_the_model_in_one_commit_and_the_journal_says_where(taking_hub: Hub, run: RunFolder) -> None:
    push = push_run(run, HubPart(private=True))
    repository = taking_hub.repositories["ana/sr"]
    assert (repository.files, repository.private) == (PUSHED, True)
    assert push == Push("attempts/1/outputs-g1", "sr", f"{taking_hub.url}/ana/sr", repository.commits[-1])
    state = Journal(run).read()
    assert state.pushes == (push,) and is_pushed(state, PART, "sr")
    assert not is_pushed(state, HubPart(model_id="lab/sr"), "sr"), "it is asked to be elsewhere"
    finish(run)
    assert not is_pushed(Journal(run).read(), PART, "sr"), "it was trained further"


def test_a_model_that_the_hub_has_is_no_new_commit(taking_hub: Hub, run: RunFolder) -> None:
    first, sent = push_run(run, PART), sorted(taking_hub.sent())
    assert push_run(run, PART) == first
    assert sorted(taking_hub.sent()) == sent == sorted(LARGE.values())
    assert len(taking_hub.repositories["ana/sr"].commits) == 2
    assert Journal(run).read().pushes == (first,)


def test_one_in_a_bucket_is_the_same(taking_hub: Hub, storage: Storage) -> None:
    push_run(finish(RunFolder(storage)), HubPart(model_id="lab/any"))
    assert taking_hub.repositories["lab/any"].files.keys() == MODEL.keys()


def test_a_push_that_broke_off_goes_on_with_what_is_missing(taking_hub: Hub, run: RunFolder) -> None:
    weights, adapter = LARGE["model.safetensors"], LARGE["adapter/adapter_model.safetensors"]
    # For good: the machine died, or its network.
    taking_hub.faults.append(Fault(f"PUT .*{weights}", times=1000))
    with pytest.raises(StorageError, match=r"cannot reach the Hub for pushing to .*/ana/sr: no connection .*try again"):
        push_run(run, PART)
    assert taking_hub.repositories["ana/sr"].files == {}, "nobody sees a part of a model"
    assert Journal(run).read().pushes == ()
    taking_hub.faults.clear()
    before = len(taking_hub.requests)
    push_run(run, PART)
    sent = [request.rpartition("/")[2] for request in taking_hub.requests[before:] if request.startswith("PUT ")]
    assert sent == [weights] and taking_hub.sent().count(adapter) == 1
    assert taking_hub.repositories["ana/sr"].files == PUSHED


def test_a_commit_whose_answer_was_lost_is_not_made_twice(taking_hub: Hub, run: RunFolder) -> None:
    taking_hub.faults.append(Fault("commit/main", lost=True))
    push = push_run(run, PART)
    repository = taking_hub.repositories["ana/sr"]
    assert (repository.files, repository.commits[1:]) == (PUSHED, [push.commit])


@pytest.mark.parametrize(
    "path",
    ["whoami", "repos/create", "auth-check", "tree/main", "validate-yaml", "preupload", "lfs/objects", "PUT", "commit"],
)
@pytest.mark.parametrize("status", [503, None], ids=["503", "cut"])
def test_an_error_that_passes_is_waited_for(taking_hub: Hub, run: RunFolder, path: str, status: int | None) -> None:
    taking_hub.faults.append(Fault(path, status))
    push_run(run, PART)
    assert taking_hub.repositories["ana/sr"].files == PUSHED
    assert taking_hub.faults[0].times == 0


def test_files_of_another_model_are_removed_and_those_of_people_stay(taking_hub: Hub, run: RunFolder) -> None:
    of_people = {"LICENSE": b"free", "sample.wav": b"RIFF", ".gitattributes": b"*"}
    of_another = dict.fromkeys(
        ("model.safetensors.index.json", "model-1-of-2.safetensors", "adapter_config.json"), b"{"
    )
    taking_hub.repositories["ana/sr"] = Repository({**of_people, **of_another, "config.json": b"another"})
    push_run(run, PART)
    assert taking_hub.repositories["ana/sr"].files == {**PUSHED, **of_people}


def test_a_card_that_the_hub_refuses_is_said_before_anything_is_sent(taking_hub: Hub, tmp_path: Path) -> None:
    card = CARD.replace("language: sr", "language: xhosa").encode()
    run = finish(RunFolder(open_storage(str(tmp_path / "sr"))), {**MODEL, "README.md": card})
    with pytest.raises(ConfigError, match=r'refuses it .*"language" with value "xhosa" is not valid'):
        push_run(run, PART)
    assert taking_hub.sent() == []


@pytest.mark.parametrize(("status", "message"), [(401, "does not accept the token"), (403, "refuses it")])
def test_a_right_that_was_taken_away_meanwhile_is_said_without_the_token(
    taking_hub: Hub, run: RunFolder, status: int, message: str
) -> None:
    taking_hub.faults.append(Fault("preupload", status))
    with pytest.raises(ConfigError, match=message) as caught:
        push_run(run, PART)
    assert TOKEN not in str(caught.value) and caught.value.__cause__ is None
    written = [path for path in Path(run.url).rglob("*") if path.is_file()]
    assert not [path for path in written if TOKEN.encode() in path.read_bytes()]


def test_a_run_without_a_model_is_refused(taking_hub: Hub, tmp_path: Path) -> None:
    folder = RunFolder(open_storage(str(tmp_path / "sr")))
    begin(folder)
    with pytest.raises(ConfigError, match="has not finished, and has no model to push yet"):
        push_run(folder, PART)
    with pytest.raises(ConfigError, match="has no model to push: name a training"):
        push_run(finish(folder, {}), PART)
    assert taking_hub.requests == []


@pytest.mark.parametrize("name", ["model/config.json", "model"])
def test_a_link_that_leads_out_of_the_model_is_not_followed(
    taking_hub: Hub, run: RunFolder, tmp_path: Path, name: str
) -> None:
    link = Path(run.url) / "attempts/1/outputs-g1" / name
    link.rename(tmp_path / "elsewhere")
    link.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(ConfigError, match="leads out of the model's folder"):
        push_run(run, PART)
    assert taking_hub.sent() == []
