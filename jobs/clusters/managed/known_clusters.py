"""The cluster of a record."""

from jobs.clusters.managed.cluster_record import LocalRecord, Record
from jobs.clusters.managed.local_cluster import LocalCluster
from jobs.clusters.managed.managed_cluster import ManagedCluster
from jobs.clusters.managed.ray_up_cluster import RayUpCluster


def managed(record: Record) -> ManagedCluster:
    """What can be done with the cluster that a record is of."""
    return LocalCluster(record) if isinstance(record, LocalRecord) else RayUpCluster(record)
