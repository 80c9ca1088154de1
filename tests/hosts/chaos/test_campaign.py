"""A short campaign; `make chaos` runs a long one."""

import json
from pathlib import Path

from tests.hosts.chaos.campaign import Campaign
from tests.hosts.chaos.check_record import problems
from tests.hosts.ray_hosts import RayHosts
from tests.hosts.runs import HostRuns

# Five kinds of failures, which hit one run.
SEED, FAILURES = 29, 5


def test_five_random_failures_lose_nothing(hosts: RayHosts, tmp_path: Path) -> None:
    runs = HostRuns(hosts, tmp_path)
    record = tmp_path / "record.jsonl"
    Campaign(hosts, runs, SEED, record, in_a_run=FAILURES).run(SEED, FAILURES)
    runs.close()
    assert problems([json.loads(line) for line in record.read_bytes().splitlines()]) == []
