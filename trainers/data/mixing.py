"""Mixes several sets: computes each set's share of the training data, and the utterances that an epoch draws. Pure.

An epoch of a mix has as many draws as there are utterances. Each group, the utterances of one member in one language,
has the same number of draws in every epoch: its share, rounded by largest remainders, and at least one. Draws from a
group are without replacement: a pass has all of its utterances in a random order, the next pass has them in another. An
epoch continues where the one before ended, so that the numbers of draws of a group's utterances differ by at most one.
If shares are proportional to the sets' sizes, an epoch has each utterance once, in the batches of the joined set.

The draws are a function of (utterances, shares, seed, epoch) only.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainers.data.batch_plan import IntArray

# Last word of the seed of a pass's order, so that its sequence differs from those of other draws.
_PASS = 1


@dataclass(frozen=True)
class Group:
    """The utterances of one member in one language.

    Attributes:
        member: Number of the member.
        language: Its code or name.
        rows: Positions of its utterances among the training utterances, int64 (n,).
        share: Its fraction of all draws.
        draws: Number of its draws in an epoch.
    """

    member: int
    language: str
    rows: IntArray
    share: float
    draws: int


class Mixture:
    """The draws from several sets in each epoch, see the module's docstring.

    Args:
        members: Number of each utterance's member, shape (N,).
        languages: Language of each utterance, length N.
        weights: Weight of each member; if None, its number of utterances.
        temperature: See `language_shares`; if None, languages have the shares of their members.
        seed: Seed of the order.
    """

    def __init__(
        self,
        members: IntArray,
        languages: Sequence[str],
        *,
        weights: Sequence[float] | None,
        temperature: float | None,
        seed: int,
    ):
        self._seed = seed
        names = sorted(set(languages))
        codes = {name: code for code, name in enumerate(names)}
        of_each = members * len(names) + np.fromiter((codes[name] for name in languages), np.int64, len(members))
        found, counts = np.unique(of_each, return_counts=True)
        keys = [(int(each) // len(names), names[int(each) % len(names)]) for each in found]
        shares = group_shares(dict(zip(keys, counts.tolist(), strict=True)), weights, temperature)
        draws = apportion([shares[key] for key in keys], len(members))
        self.groups = [
            Group(*key, np.flatnonzero(of_each == each), shares[key], draws[number])
            for number, (each, key) in enumerate(zip(found, keys, strict=True))
        ]

    def draws(self, epoch: int) -> tuple[IntArray, IntArray]:
        """Returns the draws of an epoch, ascending.

        Returns:
            Positions among the training utterances, and for each draw the number of earlier passes over its group; both
                int64 (N,).
        """
        parts = [self._of_group(number, group, epoch) for number, group in enumerate(self.groups)]
        rows, passes = (np.concatenate(each) for each in zip(*parts, strict=True))
        order = np.lexsort((passes, rows))
        return rows[order], passes[order]

    def _of_group(self, number: int, group: Group, epoch: int) -> tuple[IntArray, IntArray]:
        size, first, end = len(group.rows), epoch * group.draws, (epoch + 1) * group.draws
        drawn = []
        for number_of_pass in range(first // size, -(-end // size)):
            generator = np.random.default_rng([self._seed, number_of_pass, number, 0, 0, _PASS])
            order, start = generator.permutation(group.rows), number_of_pass * size
            drawn.append(order[max(first - start, 0) : end - start])
        return np.concatenate(drawn), np.arange(first, end) // size


def group_shares(
    counts: Mapping[tuple[int, str], int], weights: Sequence[float] | None, temperature: float | None
) -> dict[tuple[int, str], float]:
    """Returns the share of each group, by member and language, from its number of utterances; the sum is 1.

    Members have shares by their weights, or else by their utterances, and a member's languages by their utterances.
    With a temperature, a language has the share given by `language_shares`, divided among members in that ratio.
    """
    of_member: dict[int, int] = {}
    of_language: dict[str, int] = {}
    for (member, language), count in counts.items():
        of_member[member] = of_member.get(member, 0) + count
        of_language[language] = of_language.get(language, 0) + count
    of_utterance = [1.0 if weights is None else weights[member] / of_member[member] for member in sorted(of_member)]
    base = {key: count * of_utterance[key[0]] for key, count in counts.items()}
    if temperature is not None:
        by_language = language_shares(of_language, temperature)
        of_each = dict.fromkeys(of_language, 0.0)
        for (_, language), mass in base.items():
            of_each[language] += mass
        base = {key: by_language[key[1]] * mass / of_each[key[1]] for key, mass in base.items()}
    total = sum(base.values())
    return {key: mass / total for key, mass in base.items()}


def language_shares(counts: Mapping[str, int], temperature: float) -> dict[str, float]:
    """Returns the share of each language: p ∝ n^(1 / temperature), where n is its number of utterances.

    At 1, shares are proportional to n; the higher the temperature, the more equal they are. Arivazhagan
    et al. 2019, "Massively Multilingual Neural Machine Translation in the Wild", section 4.2; for speech, with
    α = 1 / temperature, Conneau et al. 2020, "Unsupervised Cross-lingual Representation Learning for Speech
    Recognition" (XLSR), section 2.
    """
    scaled = {language: count ** (1 / temperature) for language, count in counts.items()}
    total = sum(scaled.values())
    return {language: each / total for language, each in scaled.items()}


def apportion(shares: Sequence[float], total: int) -> list[int]:
    """Returns integers in the ratio of shares that add up to a total, by largest remainders; each is at least 1.

    There must be at most `total` shares. Of equal remainders the first is rounded up. Each result of 0 becomes 1, and
    the largest result one less.
    """
    wanted = np.asarray(shares) * total
    # Rounding errors may make an integer number of draws slightly less.
    counts = np.floor(wanted + 1e-6).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(-(wanted - counts), kind="stable")[:missing]] += 1
    for number in np.flatnonzero(counts == 0):
        counts[int(np.argmax(counts))] -= 1
        counts[number] = 1
    integers: list[int] = counts.tolist()
    return integers
