"""The matched-pairs test: by hand, by its properties, and against NIST's sc_stats on the same files."""

import itertools
import math
import random
import re
import subprocess
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainers.scoring.comparison.matched_pairs import (
    DELETION,
    INSERTION,
    SUBSTITUTION,
    MatchedPairs,
    Pair,
    align,
    exchange_p,
    matched_pairs,
    segments_of,
)

few_words = st.lists(st.sampled_from("abcd"), max_size=8)
# As sclite's report marks them.
MARKS = {(False, True): "I", (True, False): "D"}


def marks(pairs: Sequence[Pair]) -> str:
    """`CSDI`: correct, substituted, deleted, inserted."""
    return "".join(
        MARKS.get((unit is not None, other is not None), "C" if unit == other else "S") for unit, other in pairs
    )


def cost(pairs: Sequence[Pair]) -> int:
    weights = {"C": 0, "S": SUBSTITUTION, "D": DELETION, "I": INSERTION}
    return sum(weights[mark] for mark in marks(pairs))


def least_cost(reference: Sequence[str], hypothesis: Sequence[str]) -> int:
    before = [INSERTION * count for count in range(len(hypothesis) + 1)]
    for unit in reference:
        here = [before[0] + DELETION]
        for place, other in enumerate(hypothesis):
            replaced = before[place] + (0 if unit == other else SUBSTITUTION)
            here.append(min(replaced, before[place + 1] + DELETION, here[-1] + INSERTION))
        before = here
    return before[-1]


@given(few_words, few_words)
def test_an_alignment_has_both_texts_in_order_at_the_least_cost(reference: list[str], hypothesis: list[str]) -> None:
    pairs = align(reference, hypothesis)
    assert [unit for unit, _ in pairs if unit is not None] == reference
    assert [other for _, other in pairs if other is not None] == hypothesis
    assert cost(pairs) == least_cost(reference, hypothesis)


@pytest.mark.parametrize(
    ("reference", "first", "second", "expected"),
    [
        ("a b c d e", "a b c d e", "a b c d e", []),
        # Two right in a row end a segment; one does not.
        ("a b c d e", "x b c d e", "a b c y e", [(1, 0), (0, 1)]),
        ("a b c d e", "x b c d e", "a b y d e", [(1, 1)]),
        # An insertion between them is an error, too.
        ("a b c d", "x b q c d", "a b c d", [(2, 0)]),
        # What is left at the end is a segment.
        ("a b c", "a b x", "a b c", [(1, 0)]),
        ("a b c", "a b c", "a b c q q", [(0, 2)]),
        ("a b c", "a b c q", "a b c", [(1, 0)]),
        ("", "q", "", [(1, 0)]),
        ("", "", "q r", [(0, 2)]),
        ("a b", "", "a b", [(2, 0)]),
    ],
)
def test_segments_end_where_both_have_two_words_in_a_row_right(
    reference: str, first: str, second: str, expected: list[tuple[int, int]]
) -> None:
    assert [*segments_of(*(align(reference.split(), text.split()) for text in (first, second)))] == expected


@given(st.lists(st.tuples(few_words, few_words, few_words), max_size=5))
def test_who_is_first_changes_the_sign_alone_and_no_error_is_lost(
    utterances: list[tuple[list[str], list[str], list[str]]],
) -> None:
    found = matched_pairs(utterances)
    turned = matched_pairs([(reference, other, one) for reference, one, other in utterances])
    assert (turned.segments, turned.mean, turned.deviation) == (found.segments, -found.mean, found.deviation)
    assert (turned.p, turned.z) == (found.p, None if found.z is None else -found.z)
    errors = [
        sum(mark != "C" for text in utterances for mark in marks(align(text[0], text[system]))) for system in (1, 2)
    ]
    assert round(found.mean * found.segments) == errors[0] - errors[1]


def test_the_statistic_is_the_mean_by_its_standard_error() -> None:
    """Differences 2, 1, -1, 1: mean 0.75, standard deviation sqrt(19/12), z = 0.75 / (sd / 2)."""
    found = matched_pairs(
        [
            (["a", "b", "c"], ["x", "y", "c"], ["a", "b", "c"]),
            (["a", "b", "c"], ["x", "b", "c"], ["a", "b", "c"]),
            (["a", "b", "c"], ["a", "b", "c"], ["a", "b", "y"]),
            (["a", "b", "c"], ["a", "b"], ["a", "b", "c"]),
        ]
    )
    deviation = math.sqrt(19 / 12)
    assert (found.segments, found.mean) == (4, 0.75)
    assert found.deviation == pytest.approx(deviation)
    assert found.z == pytest.approx(0.75 / (deviation / 2))
    # 2 (1 - Φ(1.192079))
    assert found.p == pytest.approx(0.2332302, abs=1e-6)


def test_without_deviation_there_is_no_statistic() -> None:
    same = ["a"], ["a"], ["a"]
    both = ["a"], ["x"], ["y"]
    assert matched_pairs([same, both]) == MatchedPairs(1, 0, 0.0, 0.0, 0.0, 1.0, 1.0)
    better = matched_pairs([(["a"], ["x"], ["a"])] * 3)
    assert (better.mean, better.deviation, better.z, better.p) == (1.0, 0.0, None, None)
    assert better.exact_p == pytest.approx(2 / 2**3)


def misheard(rng: random.Random, words: Sequence[str], vocabulary: Sequence[str], rate: float) -> list[str]:
    """The words with errors of each kind, in the middle and at both ends."""
    heard = [rng.choice(vocabulary)] if rng.random() < rate / 2 else []
    for word in words:
        draw = rng.random() / rate
        if draw < 1 / 3:
            continue
        heard += [rng.choice(vocabulary)] if draw < 2 / 3 else [word, rng.choice(vocabulary)] if draw < 1 else [word]
    return [*heard, rng.choice(vocabulary)] if rng.random() < rate / 2 else heard


def sctk(*arguments: str, folder: Path, given: str = "") -> str:
    command = ["sctk", *arguments]
    return subprocess.run(
        command, cwd=folder, input=given, check=True, capture_output=True, text=True, timeout=120
    ).stdout


@pytest.mark.long
@pytest.mark.system
@pytest.mark.parametrize(("seed", "words"), [(1, 4), (2, 12), (3, 400)])
def test_alignments_segments_statistic_and_p_are_those_of_sc_stats(tmp_path: Path, seed: int, words: int) -> None:
    rng = random.Random(seed)
    vocabulary = [f"w{number}" for number in range(words)]
    references = [[rng.choice(vocabulary) for _ in range(rng.randrange(25))] for _ in range(400)]
    systems = [[misheard(rng, text, vocabulary, rate) for text in references] for rate in (0.34, 0.31)]
    for name, texts in zip(("said", "one", "other"), (references, *systems), strict=True):
        lines = (f"{' '.join(text)} (s_{number})\n" for number, text in enumerate(texts))
        (tmp_path / f"{name}.trn").write_text("".join(lines), encoding="utf-8")
    report = ["-i", "spu_id", "-s", "-o", "sgml", "stdout", "-r", "said.trn", "trn", "-h"]
    aligned = [sctk("sclite", *report, f"{name}.trn", "trn", folder=tmp_path) for name in ("one", "other")]
    for texts, content in zip(systems, aligned, strict=True):
        paths = dict(re.findall(r'<PATH id="\(s_(\d+)\)"[^\n]*>\n(.*?)</PATH>', content, re.DOTALL))
        theirs = {int(id): "".join(word[0] for word in path.strip().split(":") if word) for id, path in paths.items()}
        assert theirs == {
            number: marks(align(reference, text))
            for number, (reference, text) in enumerate(zip(references, texts, strict=True))
        }
    found = matched_pairs(zip(references, *systems, strict=True))
    verbose = sctk("sc_stats", "-p", "-t", "mapsswe", "-v", "-n", "-", folder=tmp_path, given="".join(aligned))
    number = r"(-?[\d.]+)"
    result = re.search(rf"# segs: (\d+)\).*\(mean: +{number}\) \(std dev: +{number}\) \(Z Stat: +{number}\)", verbose)
    assert result is not None, verbose
    assert int(result[1]) == found.segments
    ours = (found.mean, found.deviation, found.z)
    # It prints three decimals.
    assert [float(text) for text in result.groups()[1:]] == pytest.approx(ours, abs=0.0006)
    unified = sctk("sc_stats", "-p", "-t", "mapsswe", "-u", "-n", "-", folder=tmp_path, given="".join(aligned))
    row = re.search(r"MP +\|\| +one\.trn.*?(<?)(0\.\d+|1\.000)", unified)
    assert row is not None and found.p is not None, unified
    # It looks p up in a table, by z with two decimals.
    if row[1]:
        assert found.p < 0.001
    else:
        assert float(row[2]) == pytest.approx(found.p, abs=0.0085)


@given(st.lists(st.integers(-3, 3), max_size=9))
def test_the_exact_p_value_is_the_share_of_all_signs_with_a_sum_as_far_from_0(differences: list[int]) -> None:
    sums = [
        sum(sign * each for sign, each in zip(signs, differences, strict=True))
        for signs in itertools.product((-1, 1), repeat=len(differences))
    ]
    expected = sum(abs(each) >= abs(sum(differences)) for each in sums) / len(sums)
    assert exchange_p(differences) == pytest.approx(expected, rel=1e-9)


def test_the_exact_p_value_approaches_that_of_a_normal_distribution() -> None:
    few_more = [1] * 1530 + [-1] * 1470
    z = 60 / math.sqrt(3000)
    assert exchange_p(few_more) == pytest.approx(math.erfc(z / math.sqrt(2)), rel=0.05)
