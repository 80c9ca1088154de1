"""The normalizers by name: what is done to reference and hypothesis before they are compared.

A score is comparable with another only where both were made with the same normalizer, so each has a name and a version,
which stand in every score. Imports neither torch nor transformers.
"""

from collections.abc import Callable
from dataclasses import dataclass

from whisper_normalizer.basic import BasicTextNormalizer
from whisper_normalizer.english import EnglishTextNormalizer

from trainers.data.text import collapse_whitespace
from trainers.errors import ConfigError
from trainers.scoring.basic_normalizer import normalize_basic

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


NORMALIZERS = {
    item.name: item
    for item in (
        Normalizer("none", "1", collapse_whitespace),
        Normalizer("basic", "1", normalize_basic),
        Normalizer("whisper_basic", "1", normalize_whisper_basic),
        Normalizer("whisper_english", "1", normalize_whisper_english),
    )
}
