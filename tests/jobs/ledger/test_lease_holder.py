"""Whether who holds the lease still lives."""

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from jobs.ledger import Ledger
from trainers.distributed.machine import process_has_ended, process_name

HOLD = """
import sys, time
from trainers.distributed.machine import process_name
from jobs.ledger import Ledger
lease = Ledger.open(sys.argv[1]).lease(process_name(), ttl_s=3600.0)
assert lease.try_hold()
print("held", flush=True)
time.sleep(3600)
"""


def test_this_process_is_there() -> None:
    assert not process_has_ended(process_name())


@pytest.mark.parametrize("holder", ["", "host-1234", "a/b/c/d", "host/other.1/1/5", "x/1/2"])
def test_what_is_not_known_counts_as_there(holder: str) -> None:
    assert not process_has_ended(holder)


def test_another_process_with_the_same_id_is_not_the_holder() -> None:
    host, machine, process_id, _ = process_name().rsplit("/", 3)
    assert process_has_ended(f"{host}/{machine}/{process_id}/1")


@pytest.mark.integration
def test_a_command_that_was_killed_is_followed_by_the_next_at_once(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'ledger.db'}"
    with subprocess.Popen([sys.executable, "-c", HOLD, url], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "held\n"
        ledger = Ledger.open(url)
        assert not ledger.lease(process_name(), ttl_s=3600.0, is_dead=process_has_ended).try_hold(), "it lives"
        process.send_signal(signal.SIGKILL)
        process.wait()
        assert ledger.lease(process_name(), ttl_s=3600.0, is_dead=process_has_ended).try_hold()
        ledger.close()
