"""The page of a comparison: scores, tests, and the utterances in which systems differ most."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any

from trainers.config.wording import counted
from trainers.scoring.comparison.comparison import Comparison
from trainers.scoring.comparison.matched_pairs import Pair, align
from trainers.scoring.report.rendering import rendered

# Of each side of a pair of systems.
SHOWN = 10
COMPARISON = "comparison.html.j2"


@dataclass(frozen=True)
class Contested:
    """An utterance in which one of two systems has fewer errors.

    Attributes:
        errors: Of the first system, and of the other.
        texts: The words of each system, aligned with the reference's.
    """

    id: str
    errors: tuple[int, int]
    texts: Sequence[tuple[str, Sequence[Pair]]]


@dataclass(frozen=True)
class Contest:
    """A system against the first: titles of either side with the utterances that differ most."""

    name: str
    sides: Sequence[tuple[str, Sequence[Contested]]]


def comparison_html(found: Comparison, settings: Mapping[str, Sequence[Any]], split: str) -> str:
    """The page as one file; for the arguments see `comparison_values`."""
    return rendered(COMPARISON, **comparison_values(found, settings, split))


def comparison_values(found: Comparison, settings: Mapping[str, Sequence[Any]], split: str) -> dict[str, Any]:
    """What the template COMPARISON shows.

    Args:
        found: Systems compared.
        settings: Fields whose values are not the same, with that of each system, see `systems.differing_settings`.
        split: What the runs were scored on.
    """
    names = [system.name for system in found.systems]
    contests = [_contest(found, number) for number in range(1, len(names))]
    length = found.systems[0].counts.reference_length
    return {
        "title": " and ".join(names),
        "standing": f"{counted(len(found.ids), 'utterance')} of {split}, {length:,} {found.units}",
        "version": version("rayscribe"),
        "sections": [
            ("scores", "Scores"),
            *((f"contest-{number}", contest.name) for number, contest in enumerate(contests, 1)),
            ("settings", "What differs"),
        ],
        "found": found,
        "first": names[0],
        "contests": contests,
        "settings": settings,
    }


def _contest(found: Comparison, number: int) -> Contest:
    name, first = found.systems[number].name, found.systems[0].name
    fewer = {place: found.errors[0][place] - found.errors[number][place] for place in range(len(found.ids))}
    better = sorted((place for place in fewer if fewer[place] > 0), key=lambda place: -fewer[place])
    worse = sorted((place for place in fewer if fewer[place] < 0), key=lambda place: fewer[place])
    sides = ((f"Where {name} has fewer errors", better), (f"Where {first} has fewer errors", worse))
    return Contest(name, [(title, [*_contested(found, number, places[:SHOWN])]) for title, places in sides])


def _contested(found: Comparison, number: int, places: Sequence[int]) -> Iterator[Contested]:
    for place in places:
        reference = found.references[place].split()
        texts = [
            (found.systems[system].name, align(reference, found.hypotheses[system][place].split()))
            for system in (0, number)
        ]
        errors = (found.errors[0][place], found.errors[number][place])
        yield Contested(found.ids[place], errors, texts)
