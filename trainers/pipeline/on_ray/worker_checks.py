"""What each worker checks of its node before the workers form a group, as preflight does: torch's build, and the data.

Ray Train's controller sends it to the workers and imports this module: what training imports is imported on a worker.
"""

import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

import ray

from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS, is_url
from trainers.errors import DataError, ResourceError

# A network file system may show a new file this much later.
LATER_S, POLL_S = 5.0, 0.25
# Of each prepared set.
FILE = "summary.json"


@dataclass(frozen=True)
class WorkerCheck:
    """The check; calling it checks the node of the calling process."""

    use_gpu: bool
    files: tuple[str, ...]

    @classmethod
    def of(cls, prepared: Iterable[str], *, use_gpu: bool) -> "WorkerCheck":
        return cls(use_gpu, tuple(f"{url}/{FILE}" for url in prepared if not is_url(url)))

    def __call__(self) -> None:
        """Checks this node.

        Raises:
            ResourceError: torch is not built for its GPUs, or it has none.
            DataError: it does not have the data.
        """
        node = ray.util.get_node_ip_address()
        if self.use_gpu:
            _check_torch(node)
        _check_files(node, self.files)


def _check_torch(node: str) -> None:
    from trainers.findings import Level  # noqa: PLC0415
    from trainers.inspection.hardware_checks import build_here, devices_here, judge  # noqa: PLC0415

    build = build_here(use_gpu=True)
    # What its GPUs are, a process is started to tell.
    if build.sees_gpus:
        return
    finding = judge(build, devices_here(), use_gpu=True, machine=node)
    if finding.level == Level.ERROR:
        raise ResourceError(finding.text)


def _check_files(node: str, files: tuple[str, ...]) -> None:
    from trainers.findings import Level  # noqa: PLC0415
    from trainers.inspection.node_checks import judge_files  # noqa: PLC0415

    see_files(files)
    finding = judge_files(files, DEFAULT_STORAGE_OPTIONS)
    if finding.level == Level.ERROR:
        raise DataError(f"on {node}: {finding.text}")


def see_files(files: Sequence[str]) -> list[bool]:
    """Which files this node sees, all of them or after LATER_S."""
    end = time.monotonic() + LATER_S
    while not all(found := [Path(file).exists() for file in files]) and time.monotonic() < end:
        time.sleep(POLL_S)
    return found
