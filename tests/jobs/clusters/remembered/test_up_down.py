"""What is read of a file of `ray up`."""

from typing import Any

import pytest

from jobs.clusters.remembered.up_down import min_workers

OWN_HOSTS = {"type": "local", "head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2", "10.0.0.3"]}
POOLS = {"head": {"min_workers": 0}, "data": {"min_workers": 1}, "gpu": {"min_workers": 2}}


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        ({"provider": OWN_HOSTS}, 2),
        ({"provider": OWN_HOSTS, "min_workers": 0}, 0),
        ({"provider": {"type": "local", "head_ip": "10.0.0.1", "worker_ips": []}}, 0),
        ({"provider": {"type": "aws"}, "head_node_type": "head", "available_node_types": POOLS}, 3),
    ],
)
def test_the_start_waits_for_the_workers_that_are_always_there(content: dict[str, Any], expected: int) -> None:
    assert min_workers(content) == expected
