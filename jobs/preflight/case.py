"""What preflight looks at: a recipe, the repository that goes along, and the cluster that it is for."""

from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from jobs.clusters.registry import Clusters
from jobs.errors import ClusterError
from jobs.preflight.dashboard import Answer, ask, is_loopback
from jobs.scheduler.policy import Capacity
from jobs.submission.assemble import Bundle, gather
from jobs.submission.job_spec import JobSpec


@dataclass(frozen=True)
class Target:
    """The cluster.

    Attributes:
        address: URL of its dashboard.
        clusters: Asks it.
    """

    address: str
    clusters: Clusters


class Case:
    """One preflight; what several checks look at is looked at once."""

    def __init__(
        self, spec: JobSpec | None, root: Path | None, address: str | None, clusters: Clusters | None, *, deep: bool
    ):
        """Asks nobody yet.

        Args:
            spec: The recipe. None: only the cluster is looked at.
            root: The repository's root.
            address: URL of the cluster's dashboard. None: not known.
            clusters: Asks clusters. None: they are not ours to ask.
            deep: Whether time does not matter.
        """
        self.spec, self.root, self.address, self.deep = spec, root, address, deep
        self.target = Target(address, clusters) if address is not None and clusters is not None else None

    @property
    def on_this_machine(self) -> bool:
        """Whether the job would see this machine's files, as far as can be told.

        Where a submission names no cluster, a service chooses one; where a question names none, it is about here.
        """
        return self.deep if self.address is None else is_loopback(self.address)

    @cached_property
    def bundle(self) -> Bundle:
        """What goes along.

        Raises:
            ConfigError: there is no task.py, or it is too large; with the largest files.
        """
        assert self.spec is not None and self.root is not None
        return gather(self.spec, self.root)

    @cached_property
    def unsigned(self) -> Answer | ClusterError:
        """What the dashboard says to anybody."""
        return self._ask(with_token=False)

    @cached_property
    def signed(self) -> Answer | ClusterError:
        """What the dashboard says to us."""
        return self._ask(with_token=True)

    @cached_property
    def capacity(self) -> Capacity | None:
        """What the cluster has; None where it is not known."""
        if self.target is None or isinstance(self.signed, ClusterError):
            return None
        try:
            return self.target.clusters.capacity(self.target.address)
        except ClusterError:
            return None

    @property
    def answers(self) -> bool:
        """Whether the cluster answers us."""
        return isinstance(self.signed, Answer) and not self.signed.refused

    def _ask(self, *, with_token: bool) -> Answer | ClusterError:
        assert self.target is not None
        try:
            return ask(self.target.address, with_token=with_token)
        except ClusterError as error:
            return error
