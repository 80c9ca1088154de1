"""The config of queues: limits of resources held at once, the starvation timeout, and storages of users."""

from pydantic import Field

from jobs.model import DEFAULT_QUEUE, Record

STARVATION_TIMEOUT_S = 6 * 3600.0


class Limits(Record):
    """Largest amounts that may be held at once. null: no limit."""

    max_gpus: float | None = Field(None, ge=0, description="GPUs held at once. 0: runs without GPUs only.")
    max_cpus: float | None = Field(None, ge=0, description="CPUs held at once.")
    max_running: int | None = Field(None, ge=0, description="Runs at a time. 0: the queue is paused.")


class QueuePart(Limits):
    """One queue: limits of the queue, and of each user in it, counted over all clusters."""

    per_user: Limits = Field(Limits(), description="Limits of each user's runs in this queue.")


class QueuesConfig(Record):
    """All queues; `default` always exists."""

    patience_s: float = Field(
        STARVATION_TIMEOUT_S,
        ge=0,
        description="Starvation timeout: a run that has waited longer goes first, whatever the priorities. Seconds.",
    )
    storages: list[str] = Field(
        [],
        description="Folders and URLs of buckets in which users may have run folders, which the service reads and "
        "writes with its own rights. The user who runs the service may use any. []: only that user may submit runs.",
    )
    s3_endpoints: list[str] = Field(
        [],
        description="Servers that those users may set as run.s3_endpoint_url, gs_endpoint_url or az_endpoint_url, or "
        "in run.s3_buckets; the service sends its own credentials to them. []: only the service's own.",
    )
    queues: dict[str, QueuePart] = Field(default_factory=dict, description="Name of each queue → its limits.")

    def model_post_init(self, _context: object) -> None:
        """Adds the default queue, without limits, if it is missing."""
        self.queues.setdefault(DEFAULT_QUEUE, QueuePart())
