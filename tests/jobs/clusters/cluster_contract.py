"""What every Cluster promises: the same tests for the fake and, in tests/integration, for a real Ray."""

import time
from typing import Protocol
from uuid import uuid4

import pytest

from jobs.clusters.cluster import Cluster, JobInfo
from jobs.errors import ClusterError, ConflictError, JobLostError
from jobs.model import Gang
from jobs.submission.ray_request import METADATA_UID, SubmitRequest

TIMEOUT_S = 120.0
# What a job of the contract does: prints a line, then ends with exit code 0, with 3, or not at all.
SUCCEEDS, FAILS, RUNS = "exit 0", "exit 3", "sleep 3600"


class Subject(Protocol):
    """A cluster, and jobs for it."""

    @property
    def cluster(self) -> Cluster: ...

    def request(self, name: str, script: str) -> SubmitRequest:
        """A job that does what the script says."""


def contract_request(name: str, script: str, *, address: str) -> SubmitRequest:
    """A job without a package."""
    return SubmitRequest(
        submission_id=name,
        address=address,
        entrypoint=f"echo {name} prints; {script}",
        runtime_env={},
        metadata={METADATA_UID: f"uid of {name}"},
        gang=Gang(num_workers=1, resources_per_worker={"CPU": 1.0}),
        run_folder="",
        resume="",
    )


class ClusterContract:
    """Inherit it with a fixture `subject`."""

    def test_a_submission_starts_once_and_is_known_by_its_run(self, subject: Subject) -> None:
        request = subject.request(new_name(), SUCCEEDS)
        assert subject.cluster.submit(request)
        assert not subject.cluster.submit(request)
        found = subject.cluster.job_infos()[request.submission_id]
        assert (found.known, found.uid) == (True, request.metadata[METADATA_UID])

    def test_a_submission_id_of_another_run_is_a_conflict(self, subject: Subject) -> None:
        name = new_name()
        subject.cluster.submit(subject.request(name, SUCCEEDS))
        other = contract_request(name, SUCCEEDS, address="")
        other = SubmitRequest(**{**vars(other), "metadata": {METADATA_UID: "another"}})
        with pytest.raises(ConflictError, match=name):
            subject.cluster.submit(other)

    def test_a_job_that_nobody_submitted_is_not_known(self, subject: Subject) -> None:
        name = new_name()
        assert subject.cluster.job_info(name) == JobInfo(known=False)
        assert name not in subject.cluster.job_infos()
        with pytest.raises(JobLostError):
            subject.cluster.log(name, 0, 1000)
        assert subject.cluster.setup_log_end(name, 10, 1000) == b""
        with pytest.raises(ClusterError):
            subject.cluster.stop(name)

    @pytest.mark.parametrize(("script", "status", "exit_code"), [(SUCCEEDS, "SUCCEEDED", 0), (FAILS, "FAILED", 3)])
    def test_an_ended_job_has_its_exit_code_and_its_log(
        self, subject: Subject, script: str, status: str, exit_code: int
    ) -> None:
        request = subject.request(new_name(), script)
        subject.cluster.submit(request)
        found = info_at_end(subject.cluster, request.submission_id)
        assert (found.status, found.exit_code) == (status, exit_code)
        text = subject.cluster.log(request.submission_id, 0, 100_000)
        assert f"{request.submission_id} prints\n" in text.decode()
        assert subject.cluster.log(request.submission_id, 3, 10) == text[3:13]
        assert subject.cluster.log(request.submission_id, len(text), 10) == b""
        assert (
            subject.cluster.log(request.submission_id, 0, 100_000, last_lines=1) == text.splitlines(keepends=True)[-1]
        )
        assert subject.cluster.job_infos()[request.submission_id] == found

    def test_a_stopped_job_is_stopped_once(self, subject: Subject) -> None:
        request = subject.request(new_name(), RUNS)
        subject.cluster.submit(request)
        for _ in range(2):
            subject.cluster.stop(request.submission_id)
        found = info_at_end(subject.cluster, request.submission_id)
        assert (found.status, found.exit_code) == ("STOPPED", None)

    def test_a_stop_leaves_a_job_that_has_ended_as_it_ended(self, subject: Subject) -> None:
        request = subject.request(new_name(), SUCCEEDS)
        subject.cluster.submit(request)
        found = info_at_end(subject.cluster, request.submission_id)
        subject.cluster.stop(request.submission_id)
        assert subject.cluster.job_info(request.submission_id).status == found.status == "SUCCEEDED"

    def test_the_capacity_is_the_sum_of_the_nodes_and_what_they_may_grow_to(self, subject: Subject) -> None:
        found = subject.cluster.capacity({})
        assert found.total["CPU"] == sum(node["CPU"] for node in found.nodes) > 0
        assert found.size == found.total
        larger = subject.cluster.capacity({"CPU": found.total["CPU"] + 8.0, "GPU": 4.0})
        assert larger.total == found.total
        assert (larger.size["CPU"], larger.size["GPU"]) == (found.total["CPU"] + 8.0, 4.0)

    def test_a_job_without_placement_groups_waits_for_nothing(self, subject: Subject) -> None:
        request = subject.request(new_name(), SUCCEEDS)
        subject.cluster.submit(request)
        found = info_at_end(subject.cluster, request.submission_id)
        assert subject.cluster.pending_bundles(found.ray_job_id) == []


def new_name() -> str:
    """A submission id that no cluster has had."""
    return f"contract-{uuid4().hex[:12]}"


def info_at_end(cluster: Cluster, submission_id: str) -> JobInfo:
    """Reads a job until it has ended."""
    end = time.monotonic() + TIMEOUT_S
    while not (found := cluster.job_info(submission_id)).ended:
        assert time.monotonic() < end, f"{submission_id} has not ended: {found}"
        time.sleep(0.1)
    return found
