"""A new run from a checkpoint of another, or of a program."""

import pytest

from jobs.model import Run
from jobs.submission.run_request import RunRequest, branch, run_of
from tests.jobs.sample import CONTENT, sample_run
from trainers.errors import ConfigError


def test_a_branch_has_a_name_and_a_folder_of_its_own_and_begins_from_the_checkpoint() -> None:
    run_request = branch(sample_run(), "checkpoint-40-a1-abc", lambda name: name == "sr-from-1")
    assert run_request.config["run"]["name"] == "sr-from-2"
    assert run_request.config["run"]["resume"] == "from:/mnt/runs/sr/checkpoints/checkpoint-40-a1-abc"
    assert run_request.config["job"]["depends_on"] == []


def test_a_checkpoint_of_elsewhere_is_named_by_its_whole_address() -> None:
    run_request = branch(sample_run(), "s3://bucket/other/checkpoints/checkpoint-8-a1-x", lambda _: False)
    assert run_request.config["run"]["resume"] == "from:s3://bucket/other/checkpoints/checkpoint-8-a1-x"


def test_a_branch_of_a_branch_counts_on_instead_of_growing() -> None:
    assert (
        branch(sample_run(id="sr-from-1"), "/x/c", lambda name: name == "sr-from-1").config["run"]["name"]
        == "sr-from-2"
    )


def test_a_checkpoint_where_no_storage_reaches_is_not_taken_for_a_name() -> None:
    with pytest.raises(ConfigError, match="--from hdfs://b/c: hdfs:// is not supported: give a folder, or an s3://"):
        branch(sample_run(), "hdfs://b/c", lambda _: False)


def test_a_line_that_is_sent_as_people_have_it_is_resolved_and_its_placeholders_are_checked() -> None:
    def run_with(*command: str) -> Run:
        content = {"trainer": "script", "run": CONTENT["run"], "script": {"command": [*command]}}
        request = RunRequest(config=content, package="ab" * 32)
        return run_of(request, uid="0" * 32, user="ana", address_of=lambda job: "http://head:8265", now_s=0.0)

    run = run_with("torchrun", "--nproc_per_node", "4", "train.py", "--lr", "1")
    assert (run.config["script"]["command"], run.gang.num_workers) == (["train.py", "--lr", "1"], 4)
    with pytest.raises(ConfigError, match=r"script\.prepare"):
        run_with("train.py", "{data}")
