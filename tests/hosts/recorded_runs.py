"""Trainings on the hosts' cluster whose workers write down what they read, each on its own host."""

import shutil
from pathlib import Path

from tests.hosts.ray_hosts import RayHosts
from tests.hosts.runs import HostRuns
from tests.integration import recording_task

# On each host.
LINES = "/tmp/lines"
TASK = f"""import sys
from recording_task import main

if __name__ == "__main__":
    sys.exit(main(["{LINES}", *sys.argv[1:]]))
"""


class RecordedRuns(HostRuns):
    """Runs, one at a time, that do not come to their end before they are told to hurry."""

    def __init__(self, hosts: RayHosts, folder: Path):
        """See HostRuns."""
        super().__init__(hosts, folder)
        self._folder = folder
        shutil.copy(recording_task.__file__, self.tree)
        (self.tree / "task.py").write_text(TASK)

    def submit(self, name: str, *sets: str) -> None:
        """Queues a training; clears what earlier ones have written."""
        for host in self.hosts.workers:
            host.run("rm", "-rf", LINES)
            host.run("mkdir", LINES)
        super().submit(name, *sets)

    def hurry(self) -> None:
        """From now on steps take no longer than they need."""
        for host in self.hosts.workers:
            host.run("touch", f"{LINES}/{recording_task.HURRY}")

    def recorded(self) -> dict[int, tuple[int, list[int]]]:
        """See `recording_task.recorded`."""
        return recording_task.recorded(self._lines())

    def trained_twice(self) -> list[int]:
        """See `recording_task.trained_twice`."""
        return recording_task.trained_twice(self._lines())

    def _lines(self) -> Path:
        gathered = self._folder / "lines"
        for host in self.hosts.workers:
            shutil.copytree(f"/proc/{host.init_pid}/root{LINES}", gathered, dirs_exist_ok=True)
        return gathered
