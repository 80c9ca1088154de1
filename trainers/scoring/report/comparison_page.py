"""The page of a comparison: scores, tests, and the utterances in which systems differ most."""

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from typing import Any

from trainers.config.wording import counted
from trainers.scoring.comparison.comparison import Comparison
from trainers.scoring.comparison.matched_pairs import align
from trainers.scoring.report.rendering import rendered

# Number of utterances that are shown for each side of a pair of systems.
SHOWN = 10
COMPARISON = "comparison.html.j2"


def comparison_html(found: Comparison, settings: Mapping[str, Sequence[Any]], split: str) -> str:
    """Returns the page as one file; for the arguments see `comparison_values`."""
    return rendered(COMPARISON, **comparison_values(found, settings, split))


def comparison_values(found: Comparison, settings: Mapping[str, Sequence[Any]], split: str) -> dict[str, Any]:
    """Returns the values of the template COMPARISON; `settings` are those of `systems.differing_settings`."""
    names = [system.name for system in found.systems]
    length = found.systems[0].counts.reference_length
    return {
        "title": " and ".join(names),
        "standing": f"{counted(len(found.ids), 'utterance')} of {split}, {length:,} {found.units}",
        "version": version("rayscribe"),
        "sections": [
            ("scores", "Scores"),
            *((f"contest-{number}", name) for number, name in enumerate(names[1:], 1)),
            ("settings", "What differs"),
        ],
        "found": found,
        "first": names[0],
        "contests": [_contest(found, number) for number in range(1, len(names))],
        "settings": settings,
    }


def _contest(found: Comparison, number: int) -> dict[str, Any]:
    """Returns a system's comparison with the first: for each side, a title and the utterances that differ most."""
    name, first = found.systems[number].name, found.systems[0].name
    fewer = {place: found.errors[0][place] - found.errors[number][place] for place in range(len(found.ids))}
    better = sorted((place for place in fewer if fewer[place] > 0), key=lambda place: -fewer[place])
    worse = sorted((place for place in fewer if fewer[place] < 0), key=lambda place: fewer[place])
    sides = ((f"Where {name} has fewer errors", better), (f"Where {first} has fewer errors", worse))
    shown = [(title, [*_contested(found, number, places[:SHOWN])]) for title, places in sides]
    return {"name": name, "sides": shown}


def _contested(found: Comparison, number: int, places: Sequence[int]) -> Iterator[dict[str, Any]]:
    """Yields utterances with the errors of both systems, and both hypotheses aligned with the reference."""
    for place in places:
        reference = found.references[place].split()
        texts = [
            (found.systems[system].name, align(reference, found.hypotheses[system][place].split()))
            for system in (0, number)
        ]
        errors = (found.errors[0][place], found.errors[number][place])
        yield {"id": found.ids[place], "errors": errors, "texts": texts}
