"""The mix of several sets: the share of what is trained on that each has, and which utterances an epoch draws. Pure.

An epoch of a mix has as many draws as there are utterances. Each group, the utterances of one member in one language,
has the same number of draws in every epoch: its share of them, rounded by largest remainders, and at least one. A group
is drawn from without replacement: all of its utterances in a random order, a pass, then all in another. Epochs go on
where the one before has ended, so that no utterance is drawn twice more often than another, and none is left out. With
the shares that the sets have by themselves, an epoch holds each utterance once, in the batches of the joined set.

What is drawn is a function of (utterances, shares, seed, epoch) and of nothing else.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from trainers.data.batch_plan import IntArray

# Last of the words that seed the order of a pass, so that it is the sequence of no other draw.
_PASS = 1


@dataclass(frozen=True)
class Group:
    """The utterances of one member in one language.

    Attributes:
        member: Number of the member.
        language: Its code or name.
        rows: Positions of its utterances among those that are trained on, int64 (n,).
        share: Which part of what is drawn is drawn from it.
        draws: How many that is in an epoch.
    """

    member: int
    language: str
    rows: IntArray
    share: float
    draws: int


class Mixture:
    """What is drawn of several sets in each epoch, see above.

    Args:
        members: Number of the member that each utterance is of, shape (N,).
        languages: Its language, of N.
        weights: Weight of each member. None: as many as it has utterances.
        temperature: See `language_shares`. None: languages have the shares of their members.
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
        """What an epoch draws, ascending.

        Returns:
            Positions among the utterances that are trained on, and how many passes over its group came before each
            draw: int64 (N,) both.
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
    """The share of each group, by member and language, from the numbers of their utterances; in all 1.

    Members have shares by their weights, or by their utterances, and the languages of a member by the utterances of
    each. With a temperature, a language has its share by `language_shares`, which its members divide in that ratio.
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
    """The share of each language: p ∝ n^(1 / temperature), where n is the number of its utterances.

    1 leaves languages the shares that they have, and the higher the temperature, the more equal they are. Arivazhagan
    et al. 2019, "Massively Multilingual Neural Machine Translation in the Wild", section 4.2; for speech, with
    α = 1 / temperature, Conneau et al. 2020, "Unsupervised Cross-lingual Representation Learning for Speech
    Recognition" (XLSR), section 2.
    """
    scaled = {language: count ** (1 / temperature) for language, count in counts.items()}
    total = sum(scaled.values())
    return {language: each / total for language, each in scaled.items()}


def apportion(shares: Sequence[float], total: int) -> list[int]:
    """Whole numbers in the ratio of shares that add up to a total, by largest remainders; each is at least 1.

    There are at most `total` shares. Of equal remainders the first is rounded up; what the smallest shares lack is
    taken from the largest number.
    """
    wanted = np.asarray(shares) * total
    # A whole number of draws may come out a rounding below itself.
    counts = np.floor(wanted + 1e-6).astype(np.int64)
    missing = total - int(counts.sum())
    counts[np.argsort(-(wanted - counts), kind="stable")[:missing]] += 1
    for number in np.flatnonzero(counts == 0):
        counts[int(np.argmax(counts))] -= 1
        counts[number] = 1
    whole: list[int] = counts.tolist()
    return whole
