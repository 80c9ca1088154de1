"""What a worker gives to Ray's metrics, and gives again, since Ray drops what nobody sets again."""

from typing import Any

import pytest
from ray.util import metrics

from trainers.distributed.gauges import Gauge
from trainers.distributed.ray_session import RaySession


def test_a_number_is_labeled_and_repeated_as_it_was_last(monkeypatch: pytest.MonkeyPatch) -> None:
    was_set: list[tuple[str, float, dict[str, str]]] = []

    class Recorded:
        """A gauge of Ray."""

        def __init__(self, name: str, description: str, tag_keys: tuple[str, ...]):
            self.name, self.keys = name, tag_keys

        def set(self, value: float, tags: dict[str, str]) -> None:
            assert set(tags) == set(self.keys)
            was_set.append((self.name, value, tags))

    monkeypatch.setattr(metrics, "Gauge", Recorded)
    session: Any = RaySession(1, 2, 0, None, "digits", 3)
    own = {"run": "digits", "attempt": "3", "rank": "1"}
    session.show(Gauge.WER, 0.5, split="validation")
    session.show(Gauge.WER, 0.25, split="validation")
    session.show_from_main(Gauge.LOSS, 1.0)
    assert was_set == [("rayscribe_wer_ratio", wer, {**own, "split": "validation"}) for wer in (0.5, 0.25)]
    session.show_again()
    assert was_set[2:] == was_set[1:2]
