"""The normalizers by name: what is done to reference and hypothesis before they are compared.

A score is comparable with another only where both were made with the same normalizer, so each has a name and a version,
which stand in every score. Imports neither torch nor transformers.
"""

import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from whisper_normalizer.basic import BasicTextNormalizer
from whisper_normalizer.english import EnglishTextNormalizer

from trainers.data.text import collapse_whitespace
from trainers.errors import ConfigError
from trainers.models.language_names import code_or_name
from trainers.scoring.basic_normalizer import normalize_basic

# Where nothing is said.
DEFAULT = "basic"
# More words than this share with marks are the writing of the language itself.
_FEW_MARKED, _LOOKED_AT = 0.02, 10_000
# Rules that whisper-normalizer has and openai-whisper does not; `cause` → `because` also changes "the cause of".
_NOT_WHISPERS = (r"\bkinda\b", r"\bsorta\b", r"\bdunno\b", r"\bcause\b")

_WHISPER_BASIC, _WHISPER_ENGLISH = BasicTextNormalizer(), EnglishTextNormalizer()
for _pattern in _NOT_WHISPERS:
    _WHISPER_ENGLISH.replacers.pop(_pattern, None)


@dataclass(frozen=True, slots=True)
class Normalizer:
    """A function of a module, of one text, by name and version, which changes with any result; can be pickled."""

    name: str
    version: str
    function: Callable[[str], str]

    def __call__(self, text: str) -> str:
        return self.function(text)

    def to_json_dict(self) -> dict[str, str]:
        return {"normalizer": self.name, "normalizer_version": self.version}

    def __str__(self) -> str:
        return f"{self.name} {self.version}"


def normalizer_named(name: str) -> Normalizer:
    """The normalizer of this name; a ConfigError, if there is none."""
    if name not in NORMALIZERS:
        raise ConfigError(f"normalizer {name!r} is not known: use one of {', '.join(NORMALIZERS)}")
    return NORMALIZERS[name]


def normalize_whisper_basic(text: str) -> str:
    """Whisper's BasicTextNormalizer, by which most published scores of languages other than English were made.

    Lower case, NFKC, no text in brackets, symbols and punctuation to spaces. It also takes combining marks for symbols,
    which cuts words of Indic scripts, Thai and vocalized Arabic into pieces and hides errors in their vowels.
    """
    return collapse_whitespace(_WHISPER_BASIC(text))


def normalize_whisper_english(text: str) -> str:
    """Whisper's EnglishTextNormalizer: contractions, titles, numbers and British spellings get one form each."""
    return collapse_whitespace(_WHISPER_ENGLISH(text))


def hidden_marks(normalizer: Normalizer, references: Iterable[str], language: str | None = None) -> str | None:
    """Says that a normalizer removes marks with which words of the references are written; None where it does not.

    Marks are what stays of a letter's when it is decomposed: vowel signs of Hindi and Thai, harakat, tones of
    Vietnamese, accents of French. `basic` keeps each of them. A few, as of foreign words and names, are not told; nor
    are those of English, which is written without.
    """
    if normalizer.name in ("none", DEFAULT) or (language is not None and code_or_name(language) == "en"):
        return None
    words = Counter(word for text in islice(references, _LOOKED_AT) for word in normalize_basic(text).split())
    marked = {word: count for word, count in words.items() if _marks(word)}
    lost = {word: count for word, count in marked.items() if not _marks(word) <= _marks(normalizer(word))}
    if sum(lost.values()) <= _FEW_MARKED * words.total():
        return None
    word = max(lost, key=lost.__getitem__)
    return (
        f"the normalizer {normalizer.name} removes marks from {sum(lost.values()):,} of {words.total():,} words of the "
        f"references, such as {word}, which becomes {normalizer(word)}: errors in these marks are not counted; the "
        "normalizer basic keeps them"
    )


def _marks(text: str) -> Counter[str]:
    """Combining marks of a decomposed text."""
    return Counter(letter for letter in unicodedata.normalize("NFD", text) if unicodedata.category(letter)[0] == "M")


NORMALIZERS = {
    item.name: item
    for item in (
        Normalizer("none", "1", collapse_whitespace),
        Normalizer("basic", "1", normalize_basic),
        Normalizer("whisper_basic", "1", normalize_whisper_basic),
        Normalizer("whisper_english", "1", normalize_whisper_english),
    )
}
