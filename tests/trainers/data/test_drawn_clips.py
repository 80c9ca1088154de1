"""Shares of clips that are drawn by their ids."""

from trainers.data.selection import drawn_clips

IDS = [f"clip-{number}" for number in range(2000)]


def test_the_share_is_about_what_was_asked_for() -> None:
    assert 340 < len(drawn_clips(IDS, 0.2)) < 460
    assert len(drawn_clips(IDS, 0.0)) == 0
    assert drawn_clips(IDS, 1.0).tolist() == [*range(2000)]


def test_a_larger_share_has_the_clips_of_a_smaller_one() -> None:
    assert {*drawn_clips(IDS, 0.2).tolist()} < {*drawn_clips(IDS, 0.5).tolist()}


def test_clips_depend_on_their_ids_only() -> None:
    few = {IDS[row] for row in drawn_clips(IDS, 0.2)}
    turned = [*reversed(IDS)]
    assert {turned[row] for row in drawn_clips(turned, 0.2)} == few
