import base64
import random
from collections.abc import Iterator
from typing import Any, NamedTuple

import pytest

from jobs.ledger import Ledger
from jobs.model import Run, RunFilter, RunState
from tests.jobs.ledger.builders import add, add_in_state
from tests.postgres import PostgresServer
from trainers.config.submitted import config_text
from trainers.errors import ConfigError

# What only reads a ledger with runs shares one.
pytestmark = pytest.mark.xdist_group("test_pages")

STATES = (RunState.QUEUED, RunState.TRAINING, RunState.SUCCEEDED, RunState.FAILED)
# Names whose order by code points is not that of any dictionary.
NAMES = ["B", "a", "A-1", "a_1", "Z", "ä", "b", "š", "Š", "10", "9", "a1"]


class Filled(NamedTuple):
    """A ledger and its runs, newest first."""

    ledger: Ledger
    runs: list[Run]


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def filled(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Filled]:
    """A ledger of each kind with runs, for those who only read it."""
    url = f"sqlite:///{tmp_path_factory.mktemp('filled') / 'ledger.db'}"
    if request.param == "postgres":
        server: PostgresServer = request.getfixturevalue("postgres_server")
        url = server.create_schema()
    ledger = Ledger.open(url)
    yield Filled(ledger, fill(ledger))
    ledger.close()


@pytest.fixture
def runs(ledger: Ledger) -> list[Run]:
    """The same in a ledger that the test may change."""
    return fill(ledger)


def fill(ledger: Ledger) -> list[Run]:
    """Adds runs of several kinds, many of one time; gives them newest first."""
    rng = random.Random(7)
    made = [
        add_in_state(
            ledger,
            f"{name}{number}",
            rng.choice(STATES),
            queue=rng.choice(["default", "night"]),
            user=rng.choice(["ana", "ben", "eva"]),
            tags=rng.sample(["x", "y", "z"], rng.randrange(4)),
            submitted_s=float(rng.randrange(3)),
        )
        for number in range(4)
        for name in NAMES
    ]
    return sorted(made, key=lambda run: (run.submitted_s, run.id), reverse=True)


def walk(ledger: Ledger, limit: int, **wanted: Any) -> list[Run]:
    """All pages, one after the other."""
    found: list[Run] = []
    cursor = None
    while True:
        page = ledger.runs(RunFilter(**wanted), limit=limit, cursor=cursor)
        assert len(page.runs) == limit or page.next_cursor is None
        found += page.runs
        if (cursor := page.next_cursor) is None:
            return found


@pytest.mark.parametrize("limit", [1, 7, 48, 49, 1000])
def test_pages_hold_every_run_once_newest_first_also_where_times_are_equal(filled: Filled, limit: int) -> None:
    assert walk(filled.ledger, limit) == filled.runs


@pytest.mark.parametrize("limit", [3, 1000])
@pytest.mark.parametrize(
    "wanted",
    [
        {"states": [RunState.TRAINING]},
        {"states": [RunState.TRAINING, RunState.FAILED, RunState.FAILED]},
        {"states": set(RunState)},
        {"queue": "night"},
        {"user": "ben"},
        {"tag": "x"},
        {"tag": "x", "states": [RunState.SUCCEEDED, RunState.QUEUED]},
        {"queue": "night", "user": "ana"},
        {"queue": "night", "user": "ana", "tag": "y", "states": [RunState.QUEUED, RunState.FAILED]},
        {"tag": "nobody's"},
    ],
)
def test_filters_leave_the_rest_out(filled: Filled, wanted: dict[str, Any], limit: int) -> None:
    def fits(run: Run) -> bool:
        return (
            run.state in wanted.get("states", RunState)
            and wanted.get("queue") in (None, run.queue)
            and wanted.get("user") in (None, run.user)
            and (wanted.get("tag") is None or wanted["tag"] in run.tags)
        )

    assert walk(filled.ledger, limit, **wanted) == [run for run in filled.runs if fits(run)]


def test_a_list_by_tag_follows_the_state_of_its_runs(ledger: Ledger) -> None:
    add(ledger, "r", tags=["x"])
    assert ledger.runs(RunFilter(tag="x", states=[RunState.STOPPED])).runs == []
    stopped = ledger.requests.request_stop("r", by="ana", at_s=2.0)
    assert ledger.runs(RunFilter(tag="x", states=[RunState.STOPPED])).runs == [stopped]
    assert ledger.runs(RunFilter(tag="x", states=[RunState.QUEUED])).runs == []


def test_runs_that_come_meanwhile_do_not_shift_the_pages(ledger: Ledger, runs: list[Run]) -> None:
    first = ledger.runs(limit=10)
    add(ledger, "newcomer", submitted_s=99.0)
    second = ledger.runs(limit=10, cursor=first.next_cursor)
    assert first.runs + second.runs == runs[:20]
    assert ledger.runs(limit=1).runs[0].id == "newcomer"


def test_a_page_of_large_configs_ends_early_and_the_next_one_goes_on(
    filled: Filled, monkeypatch: pytest.MonkeyPatch
) -> None:
    ledger, runs = filled
    monkeypatch.setattr("jobs.ledger.ledger.MAX_CONFIG_CHARACTERS", 2 * len(config_text(runs[0].config)))
    found, cursor = list[Run](), None
    while True:
        page = ledger.runs(limit=len(runs), cursor=cursor)
        assert 0 < len(page.runs) <= 3
        found += page.runs
        if (cursor := page.next_cursor) is None:
            break
    assert found == runs


def test_an_empty_ledger_has_one_empty_page(ledger: Ledger) -> None:
    page = ledger.runs()
    assert (page.runs, page.next_cursor) == ([], None)


@pytest.mark.parametrize(
    "cursor",
    [
        "",
        "x",
        "not a cursor",
        "ä",
        "\x00",
        "=" * 9,
        *(
            base64.urlsafe_b64encode(text).decode()
            for text in (
                b"[]",
                b"[1]",
                b'["a","b"]',
                b'[NaN, "a"]',
                b"[1" + b"0" * 400 + b', "a"]',
                b"[1,2]",
                b"{}",
                b"\xff",
                b'[1,"a",2]',
                b'[1,"\\ud800"]',
                b"[" * 9999,
            )
        ),
    ],
)
def test_a_cursor_that_no_page_gave_is_refused(filled: Filled, cursor: str) -> None:
    with pytest.raises(ConfigError, match="not the cursor of a list"):
        filled.ledger.runs(cursor=cursor)


@pytest.mark.parametrize("limit", [0, -1])
def test_a_page_of_nothing_is_refused(ledger: Ledger, limit: int) -> None:
    with pytest.raises(ConfigError, match=f"limit is {limit}"):
        ledger.runs(limit=limit)
    with pytest.raises(ConfigError, match=f"limit is {limit}"):
        ledger.events(None, limit=limit)


def test_a_limit_beyond_all_numbers_is_no_trouble(filled: Filled) -> None:
    assert filled.ledger.runs(limit=10**30).runs == filled.runs
