"""The clips whose labels get timestamps."""

from trainers.training.timestamps import chosen_clips

IDS = [f"clip-{number}" for number in range(2000)]


def test_the_share_is_about_what_was_asked_for() -> None:
    assert 340 < len(chosen_clips(IDS, 0.2)) < 460
    assert len(chosen_clips(IDS, 0.0)) == 0
    assert chosen_clips(IDS, 1.0).tolist() == [*range(2000)]


def test_a_larger_share_has_the_clips_of_a_smaller_one() -> None:
    assert {*chosen_clips(IDS, 0.2).tolist()} < {*chosen_clips(IDS, 0.5).tolist()}


def test_clips_depend_on_their_ids_only() -> None:
    few = {IDS[row] for row in chosen_clips(IDS, 0.2)}
    turned = [*reversed(IDS)]
    assert {turned[row] for row in chosen_clips(turned, 0.2)} == few
