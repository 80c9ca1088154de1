"""Language models that tests make on the spot, and what a test may expect of a search."""

import math
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from transformers import Wav2Vec2CTCTokenizer

from trainers.models.ctc.ctc_part import CtcPart
from trainers.models.ctc.ctc_scratch import new_tokenizer

Context = tuple[str, ...]
# Of the model in the binaries next to this file, which KenLM's own code has written (`lm::ngram::Config::write_mmap`).
SENTENCES = ("ab ba", "ab ab", "a b", "a b", "abba")
# Of flashlight-text, see pyproject.toml.
HAS_WHEELS = sys.version_info < (3, 13)
START, END, UNKNOWN = "<s>", "</s>", "<unk>"


class Ngrams:
    """A bigram model with a third of the mass of each history left to the unigrams (add-one)."""

    BACKOFF = 1 / 3

    def __init__(self, sentences: Iterable[str]):
        rows = [sentence.split() for sentence in sentences]
        words = Counter(word for row in rows for word in [*row, END])
        pairs = Counter(pair for row in rows for pair in zip([START, *row], [*row, END], strict=True))
        histories = Counter(first for first, _ in pairs.elements())
        total = words.total() + len(words) + 1
        self.unigrams = {word: (count + 1) / total for word, count in words.items()} | {UNKNOWN: 1 / total}
        self.bigrams = {pair: (1 - self.BACKOFF) * count / histories[pair[0]] for pair, count in pairs.items()}
        # So that what the unigrams give to a history's known followers is not lost.
        self.backoffs = {
            first: self.BACKOFF / (1 - sum(self.unigrams[second] for one, second in self.bigrams if one == first))
            for first in histories
        }

    def write(self, path: Path) -> Path:
        """Writes the ARPA file."""
        ones = [(word, each) for word, each in sorted(self.unigrams.items())]
        lines = ["\\data\\", f"ngram 1={len(ones) + 1}", f"ngram 2={len(self.bigrams)}", "", "\\1-grams:"]
        lines += [f"-99\t{START}\t{math.log10(self.backoffs[START])}"]
        lines += [f"{math.log10(each)}\t{word}\t{math.log10(self.backoffs.get(word, 1.0))}" for word, each in ones]
        lines += ["", "\\2-grams:"]
        lines += [f"{math.log10(each)}\t{' '.join(pair)}" for pair, each in sorted(self.bigrams.items())]
        path.write_text("\n".join([*lines, "", "\\end\\", ""]), encoding="utf-8")
        return path

    def logprob(self, words: Sequence[str]) -> float:
        """ln P of a sentence and of its end."""
        known = [word if word in self.unigrams else UNKNOWN for word in words]
        return sum(map(self._logprob, zip([START, *known], [*known, END], strict=True)))

    def _logprob(self, pair: tuple[str, str]) -> float:
        if pair in self.bigrams:
            return math.log(self.bigrams[pair])
        return math.log(self.backoffs.get(pair[0], 1.0) * self.unigrams[pair[1]])


def binary(kind: str) -> Path:
    """The model of SENTENCES as a KenLM binary: probing, trie."""
    return Path(__file__).with_name(f"bigrams_{kind}.binary")


def tokenizer_of(*texts: str, **changes: Any) -> Wav2Vec2CTCTokenizer:
    """A tokenizer whose vocabulary is of the characters of texts."""
    tokenizer: Wav2Vec2CTCTokenizer = new_tokenizer(list(texts), CtcPart(init="scratch", family="ctc", **changes))
    return tokenizer


def random_logprobs(frames: int, tokens: int, seed: int, sharpness: float = 2.0) -> npt.NDArray[np.float32]:
    """Log-softmax of random outputs, (T, V)."""
    logits = np.random.default_rng(seed).normal(0, sharpness, (frames, tokens))
    logprobs: npt.NDArray[np.float32] = (logits - np.logaddexp.reduce(logits, axis=1, keepdims=True)).astype(np.float32)
    return logprobs


def every_text(
    logprobs: npt.NDArray[np.float32], tokenizer: Any, among: Sequence[int] | None = None
) -> Mapping[str, float]:
    """ln P of each text that some path spells, summed over all paths of these outputs, else of all but the unknown."""
    spoken = among if among is not None else [id for id in range(logprobs.shape[1]) if id != tokenizer.unk_token_id]
    found: dict[str, float] = {}
    for path in product(spoken, repeat=len(logprobs)):
        text = tokenizer.decode(list(path)).strip()
        score = float(sum(logprobs[frame, id] for frame, id in enumerate(path)))
        found[text] = float(np.logaddexp(found.get(text, -np.inf), score))
    return found
