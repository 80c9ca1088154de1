"""Watches for the cloud's notice that this machine will be preempted, and drains the machine's Ray node.

Ray then starts nothing more on the node; training stores a checkpoint just in time and continues elsewhere. The agent
needs neither Ray nor a connection to the cluster before a notice arrives, and exits with the machine's raylets.
"""

import argparse
import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from cluster_configs.providers.known_providers import PROVIDERS
from cluster_configs.providers.provider import METADATA_URL, Cloud, Notice

# Clouds whose metadata services give notices.
CLOUDS = {name: one.metadata_service for name, one in PROVIDERS.items() if one.metadata_service is not None}
POLL_S = 2.0
# Timeout for the metadata service, and for the machine's raylet, to start.
START_TIMEOUT_S = 120.0
# Timeout of Ray's command, which is repeated if the cluster's head does not respond.
DRAIN_TIMEOUT_S = 30.0


class Raylet(NamedTuple):
    """A Ray node of this machine, its cluster's head (host:port), and the environment variables of its token."""

    node_id: str
    head: str
    tokens: Mapping[str, str]


def main(arguments: Sequence[str] | None = None) -> int:
    """Watches until the machine's Ray ends; returns 1 if no metadata service responds."""
    given = _parse(arguments)
    url = given.metadata_url.rstrip("/")
    named = CLOUDS[given.provider](url) if given.provider else None
    cloud = named or find_cloud(url, wait_s=START_TIMEOUT_S)
    if cloud is None:
        print(f"no cloud's metadata service responds at {url}: this machine gets no notices", file=sys.stderr)
        return 1
    print(f"waiting for a notice of {cloud.name} that this machine will be preempted", flush=True)
    Agent(cloud, given.node_id).run()
    return 0


class Agent:
    """Drains each raylet of this machine, or only that of `node_id`, once after a notice of the cloud.

    A message that repeats is logged once.
    """

    def __init__(
        self,
        cloud: Cloud,
        node_id: str | None = None,
        log: Callable[[str], None] = lambda line: print(line, flush=True),
    ):
        self._cloud, self._node_id, self._log = cloud, node_id, log
        self._drained: set[str] = set()
        self._notice: Notice | None = None
        self._last_line = ""

    def run(self) -> None:
        """Polls until the machine has no raylet any more."""
        end = time.monotonic() + START_TIMEOUT_S
        were_there = False
        while True:
            found = [raylet for raylet in raylets_here() if self._node_id in (None, raylet.node_id)]
            were_there = were_there or bool(found)
            if not found and (were_there or time.monotonic() >= end):
                return
            self._drain_after_notice(found)
            time.sleep(POLL_S)

    def _drain_after_notice(self, raylets: list[Raylet]) -> None:
        # A notice is not withdrawn, so its first deadline counts.
        if self._notice is None:
            try:
                self._notice = self._cloud.notice(time.time())
            except OSError as error:
                self._print(f"no answer from the metadata service: {error}")
        if self._notice is None:
            return
        for raylet in raylets:
            if raylet.node_id in self._drained:
                continue
            problem = drain(raylet, self._notice)
            if problem is None:
                self._drained.add(raylet.node_id)
            left_s = max(0, round(self._notice.at_s - time.time()))
            node = f"{self._notice.text} in {left_s} s: Ray node {raylet.node_id}"
            self._print(f"{node} is drained" if problem is None else f"{node} cannot be drained yet: {problem}")

    def _print(self, line: str) -> None:
        # Messages that differ only in the seconds left are equal.
        key = re.sub(r" in \d+ s", "", line)
        if key != self._last_line:
            self._last_line = key
            self._log(line)


def drain(raylet: Raylet, notice: Notice) -> str | None:
    """Requests the head to drain a node; returns why it failed, or None if the node is draining."""
    left_s = max(1, round(notice.at_s - time.time()))
    command = [sys.executable, "-P", "-m", "ray.scripts.scripts", "drain-node", "--address", raylet.head]
    command += ["--node-id", raylet.node_id, "--reason", "DRAIN_NODE_REASON_PREEMPTION"]
    command += ["--reason-message", notice.text, "--deadline-remaining-seconds", str(left_s)]
    try:
        ended = subprocess.run(
            command,
            env={**raylet.tokens, **os.environ},
            capture_output=True,
            text=True,
            timeout=DRAIN_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"{raylet.head} does not respond in {DRAIN_TIMEOUT_S:g} s"
    if ended.returncode == 0:
        return None
    lines = ended.stderr.strip().splitlines() or [f"exit code {ended.returncode}"]
    return lines[-1]


def raylets_here(processes: Path = Path("/proc")) -> Iterator[Raylet]:
    """Yields the Ray nodes of this machine that belong to this user and this network namespace.

    Ray, too, finds the cluster of a machine by the command lines of its processes (below /proc).
    """
    for folder in processes.iterdir():
        if not folder.name.isdecimal():
            continue
        try:
            program, _, line = (folder / "cmdline").read_bytes().decode("utf-8", "replace").partition("\0")
            if Path(program).name != "raylet" or _network(folder) != _network(processes / "self"):
                continue
            given = dict(re.findall(r"--(node_id|gcs-address)=([^\s\0]+)", line))
            variables = (folder / "environ").read_bytes().decode("utf-8", "replace").split("\0")
        except OSError:
            # The process has ended, or is another user's.
            continue
        if len(given) == 2:
            pairs = (item.partition("=") for item in variables if item.startswith("RAY_AUTH_"))
            tokens = {name: value for name, _, value in pairs}
            yield Raylet(given["node_id"], given["gcs-address"], tokens)


def _network(process: Path) -> Path:
    return (process / "ns" / "net").readlink()


def find_cloud(url: str, *, wait_s: float = 0.0) -> Cloud | None:
    """Returns the cloud whose metadata service responds within `wait_s`, for a network that starts late; else None."""
    end = time.monotonic() + wait_s
    while True:
        for metadata_service in CLOUDS.values():
            cloud = metadata_service(url)
            with contextlib.suppress(OSError):
                if cloud.is_here():
                    return cloud
        if time.monotonic() >= end:
            return None
        time.sleep(POLL_S)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m rayscribe.trainers.distributed.preemption_agent",
        description="Drains this machine's Ray node when its cloud announces the machine's preemption.",
    )
    parser.add_argument("--provider", choices=sorted(CLOUDS), help="the cloud; by default the one that responds")
    parser.add_argument("--node-id", help="drain only this Ray node; by default all of this machine")
    parser.add_argument("--metadata-url", default=METADATA_URL, help="the metadata service (default: %(default)s)")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
