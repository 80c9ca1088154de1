"""What a mix comes to, for the journal and for people: members, shares, and what an epoch draws of each."""

from collections.abc import Iterator
from typing import Any

import numpy as np

from trainers.config.schema import TrainConfig
from trainers.config.wording import counted
from trainers.data.joined_set import JoinedSet
from trainers.data.mixing import Group
from trainers.data.selection import TrainingRows
from trainers.training.planning import mixture_of


def describe_mix(config: TrainConfig, joined: JoinedSet, rows: TrainingRows) -> dict[str, Any]:
    """What the journal has of a mix: counts are of clips that are trained on, hours of them as they are stored.

    Raises:
        DataError: none of a member's clips is left to train on.
    """
    groups, durations_s = mixture_of(config, joined, rows).groups, rows.selection.durations_s
    members = [
        {
            "name": member.name,
            "key": joined.members[number].prepared.key,
            "language": member.language,
            "weight": member.weight,
            **_counts([group for group in groups if group.member == number], durations_s),
        }
        for number, member in enumerate(config.data.mix)
    ]
    names = sorted({group.language for group in groups})
    languages = {name: _counts([group for group in groups if group.language == name], durations_s) for name in names}
    draws = sum(group.draws for group in groups)
    temperature = config.data.mix_temperature
    return {"temperature": temperature, "draws_per_epoch": draws, "members": members, "languages": languages}


def _counts(groups: list[Group], durations_s: np.ndarray) -> dict[str, Any]:
    seconds = sum(float(durations_s[group.rows].sum()) for group in groups)
    return {
        "clips": sum(len(group.rows) for group in groups),
        "hours": round(seconds / 3600, 4),
        "share": round(sum(group.share for group in groups), 6),
        "draws_per_epoch": sum(group.draws for group in groups),
    }


def mix_lines(mix: dict[str, Any]) -> Iterator[str]:
    """The same for people, a line for each member, and for each language where there are several."""
    temperature = f", languages by temperature {mix['temperature']:g}" if mix["temperature"] is not None else ""
    yield f"mix: {mix['draws_per_epoch']} draws an epoch{temperature}"
    for member in mix["members"]:
        weight = f", weight {member['weight']:g}" if member["weight"] is not None else ""
        yield f"mix: {member['name']}{weight}: {_line(member)}"
    if len(mix["languages"]) > 1:
        yield from (f"mix: language {name}: {_line(counts)}" for name, counts in mix["languages"].items())


def _line(counts: dict[str, Any]) -> str:
    clips, draws = counts["clips"], counts["draws_per_epoch"]
    share = f"{counts['share']:.1%}, {draws} draws, each clip {draws / clips:.2f} times"
    return f"{counted(clips, 'clip')} ({counts['hours']:.2f} h) · {share}"
