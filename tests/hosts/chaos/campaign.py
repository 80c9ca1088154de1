"""A seeded campaign of failures: `python -m tests.hosts.chaos.campaign --seed 7 --failures 50 --record FILE`.

One run after another goes through the service while a random failure hits a random part of the cluster at a random
moment of the training, again and again. What happened is recorded for `check_record`.
"""

import argparse
import contextlib
import json
import math
import random
import sys
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import psutil

from jobs.model import RunState
from tests.hosts.chaos import check_record
from tests.hosts.chaos.replay import replayed, summary_of
from tests.hosts.network import why_not
from tests.hosts.ray_hosts import RayHosts, ray_hosts
from tests.hosts.runs import MAX_STEPS, HostRuns, entries_of, folder_of, journal_of, last_checkpoint, weights_of
from tests.integration.controller_driver import POLL_S
from tests.integration.training_trees import write_tones
from trainers.config.submitted import CONFIG_VARIABLE

CALM = "chaos-calm"
# Of an outage, at least and at most. Seconds.
OUTAGE_S = (2.0, 20.0)
# Of the moments of failures, the fraction at a step of the training; the others, which find attempts that are about to
# begin, too, wait so long at most. Seconds.
BY_STEP, MOMENT_S = 0.7, 25.0
# Failures have more retries than a user would give.
RETRIES = "job.max_retries=50"
END_TIMEOUT_S = 1200.0
# In command lines: of an attempt's entrypoint, and of the actors that train, to which Ray gives their title.
DRIVER, WORKER = "task.py --attempt", "ray::RayTrainWorker"


class Campaign:
    """Failures, and the runs that they hit."""

    def __init__(self, hosts: RayHosts, runs: HostRuns, seed: int, record: Path, *, in_a_run: int = 3):
        """Starts the record; does nothing yet.

        Args:
            hosts: Whose cluster is up.
            runs: What submits there.
            seed: Of all that is chosen.
            record: File of JSON lines, written anew.
            in_a_run: How many failures a run meets at most.
        """
        self._hosts, self._runs, self._chance, self._record = hosts, runs, random.Random(seed), record
        self._in_a_run = in_a_run
        self._started = time.monotonic()
        self._seen: set[tuple[str, str, tuple[int, ...]]] = set()
        record.parent.mkdir(parents=True, exist_ok=True)
        record.write_text("")

    def run(self, seed: int, failures: int) -> None:
        """Runs a calm run, then others until there were so many failures; records the ends."""
        self._runs.submit(CALM)
        self._end(CALM)
        scored = scores_of(self._hosts, CALM)
        self.write("campaign", seed=seed, failures=failures, scored=scored)
        done = 0
        names: list[str] = []
        while done < failures:
            name = f"chaos-{len(names):02}"
            names.append(name)
            self._runs.submit(name, RETRIES)
            for _ in range(self._chance.randint(1, self._in_a_run)):
                if done < failures and self._wait_for_a_moment(name):
                    done += self._fail(name, done + 1)
            self._end(name)
        for name in (CALM, *names):
            self.write("run", **self._describe(name))
        folder = f"/{self._hosts.runs.removeprefix('s3://')}/"
        self.write("storage", requests=replayed(self._hosts.storage_requests(), folder))

    def write(self, kind: str, **content: Any) -> None:
        """Adds a line to the record."""
        with self._record.open("a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, **content}) + "\n")

    def _wait_for_a_moment(self, name: str) -> bool:
        """Waits into the run's training; False where the run ended before."""
        by_step = self._chance.random() < BY_STEP
        step = self._chance.randint(1, MAX_STEPS - 1) if by_step else MAX_STEPS
        end = math.inf if by_step else time.monotonic() + self._chance.uniform(0.0, MOMENT_S)

        def reached() -> bool:
            self._look()
            self._runs.drive.skip_backoff(name)
            run = self._runs.workspace.ledger.run(name)
            at = run.progress.step or 0 if run.progress is not None else 0
            return run.state.ended or (run.state.holding and (at >= step or time.monotonic() > end))

        self._runs.drive.until(reached, f"moment for a failure of {name}", timeout_s=END_TIMEOUT_S)
        return not self._runs.workspace.ledger.run(name).state.ended

    def _fail(self, name: str, number: int) -> bool:
        """Makes a failure; False where there was nothing that it could hit, such as a worker before there are any."""
        kind = self._chance.choice(sorted(FAILURES))
        at_s = round(time.monotonic() - self._started, 1)
        if not FAILURES[kind](self, self._chance.uniform(*OUTAGE_S)):
            return False
        self.write("failure", number=number, name=kind, run=name, at_s=at_s)
        print(f"{at_s:7.1f} s  {number:2}  {name}: {kind}", flush=True)
        return True

    def kill_a_host(self, _: float) -> bool:
        """All processes of a worker host; the head starts Ray there again."""
        return self._chance.choice(self._hosts.workers).kill() > 0

    def kill_a_worker(self, _: float) -> bool:
        """A training worker."""
        return self._chance.choice(self._hosts.workers).kill("TrainWorker") > 0

    def kill_the_driver(self, _: float) -> bool:
        """The entrypoint."""
        return self._hosts.head.kill("task.py") > 0

    def kill_the_head(self, _: float) -> bool:
        """All processes of the head, which is then started again by hand."""
        killed = self._hosts.kill_head() > 0
        self._hosts.up()
        return killed

    def cut_a_host_off(self, outage_s: float) -> bool:
        """A worker host is without network for a while."""
        with self._chance.choice(self._hosts.workers).unplugged():
            self._pass(outage_s)
        return True

    def cut_the_storage_off(self, outage_s: float) -> bool:
        """The storage is without network for a while."""
        end = time.monotonic() + outage_s
        # No rounds of the controller, which would wait for it, too.
        with self._hosts.storage.unplugged():
            while time.monotonic() < end:
                self._look()
                time.sleep(POLL_S)
        return True

    def _pass(self, seconds: float) -> None:
        end = time.monotonic() + seconds

        def passed() -> bool:
            self._look()
            return time.monotonic() > end

        self._runs.drive.until(passed, "end of an outage")

    def _end(self, name: str) -> None:
        def ended() -> bool:
            self._look()
            self._runs.drive.skip_backoff(name)
            return self._runs.workspace.ledger.run(name).state.ended

        self._runs.drive.until(ended, f"end of {name}", timeout_s=END_TIMEOUT_S)

    def _look(self) -> None:
        """Records which attempts' drivers and training workers are alive now, where that has changed."""
        self._note("drivers", (item for item in self._hosts.head.named(DRIVER) if is_python(item)))
        self._note("workers", (item for host in self._hosts.nodes for item in host.named(WORKER)))

    def _note(self, kind: str, processes: Iterable[psutil.Process]) -> None:
        alive: dict[str, set[int]] = {}
        for process in processes:
            # It may end meanwhile.
            with contextlib.suppress(psutil.Error, KeyError, ValueError):
                name, attempt = run_and_attempt(process)
                alive.setdefault(name, set()).add(attempt)
        for name, attempts in alive.items():
            seen = (kind, name, tuple(sorted(attempts)))
            if seen not in self._seen:
                self._seen.add(seen)
                self.write(kind, run=name, attempts=seen[2])

    def _describe(self, name: str) -> dict[str, Any]:
        run, ledger = self._runs.workspace.ledger.run(name), self._runs.workspace.ledger
        state = journal_of(self._hosts, name).read()
        succeeded = run.state == RunState.SUCCEEDED
        return {
            "run": name,
            "state": str(run.state),
            "reason": run.reason,
            "causes": [str(item.cause) for item in ledger.attempts(name)],
            "weights": weights_of(last_checkpoint(self._hosts, name)) if state.checkpoints else None,
            "undisturbed": weights_of(last_checkpoint(self._hosts, CALM)),
            "journal": [summary_of(entry) for entry in entries_of(self._hosts, name)],
            "scores": scores_of(self._hosts, name) if succeeded else [],
        }


def is_python(process: psutil.Process) -> bool:
    """Whether it is the entrypoint itself, not the shell that has started it."""
    with contextlib.suppress(psutil.Error):
        return any(word.endswith("python") for word in process.cmdline()[:1])
    return False


def run_and_attempt(process: psutil.Process) -> tuple[str, int]:
    """What a process works for: Ray starts all workers of a job with the variables of the job's environment.

    Raises:
        psutil.Error: it has ended.
        KeyError: it belongs to no attempt.
        ValueError: its variables cannot be read any more.
    """
    variables = process.environ()
    return str(json.loads(variables[CONFIG_VARIABLE])["run"]["name"]), int(variables["RAYSCRIBE_ATTEMPT"])


def scores_of(hosts: RayHosts, name: str) -> list[str]:
    """The ids of the rows of the test set that a run has scored, in the order of its file."""
    content = folder_of(hosts, name).storage.read_bytes("evaluation/test.jsonl")
    return [json.loads(line)["id"] for line in content.splitlines()]


FAILURES: dict[str, Callable[[Campaign, float], bool]] = {
    "kill a host": Campaign.kill_a_host,
    "kill a worker": Campaign.kill_a_worker,
    "kill the driver": Campaign.kill_the_driver,
    "kill the head": Campaign.kill_the_head,
    "cut a host off": Campaign.cut_a_host_off,
    "cut the storage off": Campaign.cut_the_storage_off,
}


def main() -> int:
    """Runs a campaign on hosts of its own, and checks its record."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000))
    parser.add_argument("--failures", type=int, default=50)
    parser.add_argument("--record", type=Path, default=Path("build/chaos.jsonl"))
    given = parser.parse_args()
    if (reason := why_not()) is not None:
        print(reason, file=sys.stderr)
        return 2
    print(f"seed {given.seed} · {given.failures} failures · record {given.record}", flush=True)
    with TemporaryDirectory(prefix="rs-chaos-", dir="/tmp") as name:
        folder = Path(name)
        with ray_hosts(folder, write_tones(folder / "tones")) as hosts:
            hosts.up()
            runs = HostRuns(hosts, folder / "service")
            Campaign(hosts, runs, given.seed, given.record).run(given.seed, given.failures)
            runs.close()
            hosts.down()
    return check_record.main(str(given.record))


if __name__ == "__main__":
    sys.exit(main())
