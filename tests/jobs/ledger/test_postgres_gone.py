"""PostgreSQL goes away and comes back."""

import pytest

from jobs.errors import ServiceError
from jobs.ledger import Ledger
from jobs.model import RunState
from tests.jobs.ledger.builders import add
from tests.postgres import PostgresServer


@pytest.fixture
def ledger(postgres_url: str) -> Ledger:
    return Ledger.open(postgres_url)


def test_a_ledger_says_that_it_is_gone_and_works_when_it_is_back(
    ledger: Ledger, postgres_server: PostgresServer
) -> None:
    run, lease = add(ledger, "r"), ledger.lease("a", ttl_s=60.0)
    assert lease.try_hold()
    postgres_server.stop()
    try:
        for call in (
            lambda: ledger.run("r"),
            ledger.runs,
            ledger.scheduler.waiting,
            lambda: add(ledger, "s"),
            lambda: ledger.tokens.user_of("rsk_x"),
            lease.try_hold,
            lambda: Ledger.open(ledger.url),
        ):
            with pytest.raises(ServiceError, match=r"does not respond.*check that the server is up"):
                call()
    finally:
        postgres_server.start()
    assert ledger.run("r") == run
    assert lease.try_hold() and lease.epoch == 1
    add(ledger, "s")
    ledger.close()


def test_a_transaction_that_it_goes_away_in_is_not_half_written(
    ledger: Ledger, postgres_server: PostgresServer
) -> None:
    run = add(ledger, "r")
    with pytest.raises(ServiceError, match="does not respond"), ledger.write() as writer:
        changed = writer.change(run, cause="x", text="", state=RunState.SETTING_UP, at_s=2.0)
        postgres_server.stop()
        postgres_server.start()
        writer.change(changed, cause="y", text="", state=RunState.TRAINING, at_s=3.0)
    assert ledger.run("r") == run
    assert len(ledger.events("r")) == 1
    with ledger.write() as writer:
        writer.change(run, cause="x", text="", state=RunState.SETTING_UP, at_s=4.0)
    ledger.close()


def test_connections_that_were_cut_while_nobody_looked_are_not_noticed(
    ledger: Ledger, postgres_server: PostgresServer
) -> None:
    run = add(ledger, "r")
    postgres_server.stop()
    postgres_server.start()
    assert ledger.run("r") == run
    ledger.close()
