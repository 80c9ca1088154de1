"""A host that comes back while a worker group waits for room."""

import time
from typing import Any

import pytest
import ray
from ray.util.placement_group import PlacementGroup, placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from tests.integration.ray_cluster import ray_cluster
from tests.trainers.synthetic import config
from trainers.distributed.local_ray import free_ports
from trainers.distributed.ray_connection import free_resources, node_resources, request_resource_reports
from trainers.pipeline.on_ray.resize_policy import FIRST_RESOURCE_REPORT_S, RESOURCE_REPORT_INTERVAL_S, StaleNodes

# Ray's control store calls an address at which nobody listens less and less often.
GONE_S = 6.0


class Worker:
    """Of a group."""

    def responds(self) -> bool:
        return True


def group_with_workers() -> PlacementGroup:
    """One worker on each node."""
    group: PlacementGroup = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
    places = [PlacementGroupSchedulingStrategy(group, bundle) for bundle in range(2)]
    kind: Any = ray.remote(num_cpus=1)(Worker)
    workers = [kind.options(scheduling_strategy=place).remote() for place in places]
    assert all(ray.get([worker.responds.remote() for worker in workers]))
    return group


@pytest.mark.long
def test_a_host_that_came_back_at_its_address_has_room_for_a_group_that_waits() -> None:
    soon = {"health_check_period_ms": 1000, "health_check_timeout_ms": 1000, "health_check_failure_threshold": 3}
    (port,) = free_ports(1)
    with ray_cluster(num_cpus=1, _system_config=soon) as (cluster, head):
        node = cluster.add_node(num_cpus=1, node_manager_port=port)
        ray.init(head.address, log_to_driver=False)
        try:
            before = group_with_workers()
            cluster.remove_node(node, allow_graceful=False)
            ray.util.remove_placement_group(before)
            group = placement_group([{"CPU": 1}] * 2, strategy="STRICT_SPREAD")
            time.sleep(GONE_S)
            cluster.add_node(num_cpus=1, node_manager_port=port)
            stale = StaleNodes(config({"scaling.num_workers": 2}).scaling)
            end = time.monotonic() + FIRST_RESOURCE_REPORT_S + 2 * RESOURCE_REPORT_INTERVAL_S
            while not group.wait(timeout_seconds=1.0):
                assert time.monotonic() < end, f"no room: {free_resources()} is free of {node_resources()}"
                request_resource_reports(
                    stale.nodes_to_query(time.monotonic(), node_resources(), free_resources(), waits=True)
                )
        finally:
            ray.shutdown()
