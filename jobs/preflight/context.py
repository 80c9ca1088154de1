"""What preflight checks: a recipe, the folder that is packaged with it, and the cluster that it is for."""

from functools import cached_property
from typing import TYPE_CHECKING

from jobs.clusters.managed.cluster_endpoint import connect
from jobs.clusters.managed.cluster_record import is_local_address
from jobs.errors import ClusterError
from jobs.preflight.dashboard import DashboardResponse, get_metadata
from jobs.scheduler.feasibility import Capacity
from jobs.submission.assemble import Bundle, collect_bundle
from jobs.submission.job_spec import JobSpec

if TYPE_CHECKING:
    # It loads Ray, which is not needed where no cluster is known.
    from jobs.clusters.registry import Clusters


class Context:
    """One preflight; what several checks need is read once."""

    def __init__(
        self,
        spec: JobSpec | None,
        address: str | None,
        clusters: "Clusters | None",
        *,
        deep: bool,
        bundle: Bundle | None = None,
    ):
        """Sends no request yet.

        Without a recipe only the cluster is checked; without an address, none is known, and without `clusters`, it is
        reached from the service alone. Checks that are `deep` may take minutes, and look on the nodes too, others about
        20 seconds. A `bundle` that was collected already is taken as what is packaged.
        """
        self.spec, self.address, self.clusters, self.deep = spec, address, clusters, deep
        self._collected = bundle

    @property
    def on_this_machine(self) -> bool:
        """Whether the job would see this machine's files, as far as is known.

        Where a submission names no cluster, a service chooses one; where `rayscribe preflight` names none, this
        machine is checked.
        """
        return self.deep if self.address is None else is_local_address(self.address)

    @cached_property
    def bundle(self) -> Bundle:
        """What is packaged; raises as `collect_bundle`."""
        assert self.spec is not None
        return self._collected or collect_bundle(self.spec)

    @cached_property
    def without_token(self) -> DashboardResponse | ClusterError:
        """What the dashboard responds to an unauthenticated client."""
        return self._get_metadata(with_token=False)

    @cached_property
    def with_token(self) -> DashboardResponse | ClusterError:
        """What the dashboard responds to this user."""
        return self._get_metadata(with_token=True)

    @cached_property
    def capacity(self) -> Capacity | None:
        """What the cluster has; None where it is not known."""
        if self.address is None or self.clusters is None or isinstance(self.with_token, ClusterError):
            return None
        try:
            return self.clusters.capacity(self.address)
        except ClusterError:
            return None

    @property
    def cluster_accepts_us(self) -> bool:
        """Whether the cluster responds to this user."""
        # A token is missing (401), or is a wrong one (403).
        return isinstance(self.with_token, DashboardResponse) and self.with_token.status not in (401, 403)

    def _get_metadata(self, *, with_token: bool) -> DashboardResponse | ClusterError:
        assert self.address is not None
        try:
            reached = connect(self.address)
            return get_metadata(reached.url, with_token=with_token, headers=reached.headers)
        except ClusterError as error:
            return error
