"""The fake does what a real Ray does: see tests/integration/test_ray_jobs_contract.py for the same tests on one."""

from dataclasses import dataclass, field

import pytest

from jobs.submission.ray_request import SubmitRequest
from tests.jobs.clusters.cluster_contract import FAILS, RUNS, ClusterContract, contract_request
from tests.jobs.clusters.fake_cluster import FakeCluster

NEVER = 10**9


@dataclass
class FakeSubject:
    """A fake cluster."""

    cluster: FakeCluster = field(default_factory=FakeCluster)

    def request(self, name: str, script: str) -> SubmitRequest:
        """A job of which the fake is told what it does."""
        if script == FAILS:
            self.cluster.ends[name] = ("FAILED", 3, "", "")
        if script == RUNS:
            self.cluster.lasts[name] = NEVER
        return contract_request(name, script, address="http://fake")


class TestFakeCluster(ClusterContract):
    @pytest.fixture
    def subject(self) -> FakeSubject:
        return FakeSubject()
