"""A controller for a process of its own, which can be told to die at a named point."""

import argparse
import os
import signal
import socket
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from threading import Event

from jobs.clusters.registry import Clusters
from jobs.ledger import Ledger
from jobs.service.controller import Controller
from jobs.service.package_store import PackageStore
from jobs.service.queues_file import read_queues

LEASE_S = 1.0
POLL_S = 0.1


def main(arguments: Sequence[str]) -> None:
    """Drives the ledger's runs until it is killed."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--database", required=True)
    parser.add_argument("--packages", type=Path, required=True)
    parser.add_argument("--queues", type=Path, required=True)
    parser.add_argument("--die-at", help="name of a point, and how many times to pass it first: ray.submit:after/2")
    given = parser.parse_args(arguments)
    passed: Counter[str] = Counter()
    point, _, times = (given.die_at or "").rpartition("/")

    def at(name: str) -> None:
        passed[name] += 1
        if name == point and passed[name] > int(times):
            os.kill(os.getpid(), signal.SIGKILL)

    ledger = Ledger.open(given.database)
    controller = Controller(
        ledger,
        Clusters(),
        PackageStore(given.packages),
        read_queues(given.queues),
        lease=ledger.lease(f"{socket.gethostname()}-{os.getpid()}", ttl_s=LEASE_S),
        hook=at,
    )
    controller.run(Event(), poll_s=POLL_S)
