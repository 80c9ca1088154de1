"""The contract of clusters on a real Ray; tests/jobs/clusters has the same tests on the fake."""

from dataclasses import dataclass

import pytest

from jobs.clusters.cluster import Cluster
from jobs.clusters.ray_jobs import RayJobs
from jobs.submission.ray_request import SubmitRequest
from tests.integration.driver_process import RayHead
from tests.jobs.clusters.cluster_contract import ClusterContract, contract_request


@dataclass(frozen=True)
class RaySubject:
    """The session's Ray."""

    cluster: Cluster

    def request(self, name: str, script: str) -> SubmitRequest:
        """A job whose entrypoint is the script."""
        return contract_request(name, script, address="")


class TestRayJobs(ClusterContract):
    @pytest.fixture
    def subject(self, ray_head: RayHead) -> RaySubject:
        return RaySubject(RayJobs.when_ready(ray_head.dashboard))
