"""What a row of the comparison says of its goal."""

import pytest

from tests.benchmarks.table import MET, MISSED, UNDECIDED, Row


@pytest.mark.parametrize(
    ("row", "met"),
    [
        (Row("rate", [24.0, 30.0], [10.0, 20.0], least_ratio=1.5), MET),
        (Row("rate", [10.0, 30.0], [10.0, 20.0], least_ratio=1.5), UNDECIDED),
        (Row("rate", [10.0, 20.0], [10.0, 20.0], least_ratio=1.5), MISSED),
        (Row("seconds", [6.0], [10.0], "low", least_ratio=1.5), MET),
        (Row("bytes", [0.07, 0.09], [1.0, 1.0], "low", most=0.08), UNDECIDED),
        (Row("bytes", [5.0], [1.0], "low"), ""),
    ],
)
def test_a_goal_is_met_or_missed_by_all_turns_or_undecided(row: Row, met: str) -> None:
    assert row.met == met


def test_the_ratio_is_that_of_turns_side_by_side_and_its_spread_is_shown() -> None:
    # Both sides are slowed in the second turn.
    cells = Row("rate", [20.0, 11.0, 24.0], [10.0, 5.0, 10.0], least_ratio=2, digits=0).cells()
    assert cells == ("rate", "20", "10", "2.20×", "2.00 to 2.40", "≥ 2×", MET)


def test_a_row_without_a_peer_has_our_figures_alone() -> None:
    assert Row("rate : peer, not installed", [20.0, 11.0], []).cells()[1:] == ("15.5", "", "", "", "", "")
