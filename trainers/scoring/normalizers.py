"""Normalizers, which transform reference and hypothesis before they are compared.

Two scores are comparable only if they were made with the same normalizer, so every score contains its name and version.
Imports neither torch nor transformers.
"""

import re
import unicodedata
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice

from whisper_normalizer.basic import BasicTextNormalizer
from whisper_normalizer.english import EnglishTextNormalizer

from trainers.data.text import SPOKEN, TextRules, collapse_whitespace, normalize
from trainers.errors import ConfigError
from trainers.models.language_names import code_or_name

# Characters that are typed for an apostrophe, a glottal stop or a Hebrew geresh: ʻ ʼ ‘ ’ ׳ ` ´
_APOSTROPHES = dict.fromkeys(map(ord, "\u02bb\u02bc\u2018\u2019\u05f3`\u00b4"), "'")
# Silent characters: the stretch of Arabic words (tatweel); Armenian punctuation within a word: ՛ ՜ ՞; combining
# grapheme joiner, inherent vowels of Khmer; signs that NFKC would spell out: © ® ™.
_SILENT = dict.fromkeys(map(ord, "\u0640\u055b\u055c\u055e\u034f\u17b4\u17b5\u00a9\u00ae\u2122"), "")
_DECIMAL_SIGNS = {0x066B: ".", 0x066C: ","}  # Arabic
_ALIKE: dict[int, str] = {**_APOSTROPHES, **_SILENT, **_DECIMAL_SIGNS}
_VARIATION_SELECTORS = re.compile("[\u180b-\u180d\u180f\ufe00-\ufe0f\U000e0100-\U000e01ef]")

# Letters that older text writes with a joiner, and today's letters (the Unicode Standard, chapter 12): Malayalam
# chillus, and Bengali khanda ta.
_JOINED = {
    "\u0d23\u0d4d\u200d": "\u0d7a",
    "\u0d28\u0d4d\u200d": "\u0d7b",
    "\u0d30\u0d4d\u200d": "\u0d7c",
    "\u0d32\u0d4d\u200d": "\u0d7d",
    "\u0d33\u0d4d\u200d": "\u0d7e",
    "\u0d15\u0d4d\u200d": "\u0d7f",
    "\u09a4\u09cd\u200d": "\u09ce",
}
_JOINED_LETTERS = re.compile("|".join(_JOINED))

# NFKC decomposes the vowel AM of Thai and Lao; a tone mark may stand between its halves.
_AM = re.compile("\u0e4d([\u0e48-\u0e4b]?)\u0e32|\u0ecd([\u0ec8-\u0ecb]?)\u0eb2")
_AM_OF = {"\u0e32": "\u0e33", "\u0eb2": "\u0eb3"}

# Lower case of the Turkish İ; it becomes i, which has a dot anyway.
_DOTTED_I = "i\u0307"
_TAGS = re.compile(r"\[[^\[\]]*\]|<[^<>]*>")
# Gershayim of Hebrew abbreviations, and the dot of Catalan l·l.
_WITHIN_WORDS = re.compile('(?<=[\u05d0-\u05ea])["\u05f4\u201d](?=[\u05d0-\u05ea])|(?<=l)\u00b7(?=l)')
# Hiragana, katakana, bopomofo and Han, with their iteration marks.
_HAN_OR_KANA = (
    "\u3005-\u3007\u3040-\u30ff\u3100-\u312f\u31a0-\u31bf\u31f0-\u31ff\u3400-\u4dbf\u4e00-\u9fff\U00020000-\U0003ffff"
)
_SPACE_IN_HAN_OR_KANA = re.compile(f"(?<=[{_HAN_OR_KANA}]) +(?=[{_HAN_OR_KANA}])")


def normalize_basic(text: str) -> str:
    """Normalizes reference and hypothesis for comparison, in any language.

    - Encoding: NFKC, so that NFC and NFD, full and half width, ligatures and presentation forms are equal. Decimal
      digits of every script become 0 to 9. Format characters are removed: joiners (U+200C, U+200D), direction marks,
      soft hyphens, zero-width spaces, variation selectors; letters once written with a joiner become today's letters.
    - Marks (category M) are kept: vowel signs, viramas, tone marks, harakat, accents. Enclosing marks are removed.
    - Lower case.
    - Text in [square] or <angle> brackets is removed, since it describes sounds, not words.
    - Punctuation is removed as by `trainers.data.text.normalize`: an apostrophe within a word is kept, as ', and so is
      a full stop, comma or colon within a number. Hyphens separate words.
    - Symbols are removed, except currency signs, ° and % ‰ & @ # §, which are spoken: each becomes a separate word.
    - Whitespace becomes single spaces, and is removed between two characters of Han, kana or bopomofo, where spaces do
      not separate words. Spaces of Thai, Lao, Khmer and Burmese are kept.
    """
    text = _JOINED_LETTERS.sub(lambda match: _JOINED[match[0]], text)
    text = "".join(map(_plain, _VARIATION_SELECTORS.sub("", text).translate(_ALIKE)))
    text = unicodedata.normalize("NFKC", text).lower().replace(_DOTTED_I, "i")
    text = _AM.sub(lambda match: (match[1] or match[2] or "") + _AM_OF[match[0][-1]], text)
    text = _TAGS.sub(" ", text)
    text = _WITHIN_WORDS.sub("", text)
    text = normalize(text, TextRules(do_lower_case=True, do_remove_punctuation=True))
    text = collapse_whitespace("".join(map(_spoken, text)))
    return _SPACE_IN_HAN_OR_KANA.sub("", text)


def _plain(character: str) -> str:
    """Returns a character, prepared for NFKC, which would otherwise turn some symbols into letters."""
    category = unicodedata.category(character)
    if category == "Nd":
        return str(unicodedata.decimal(character))
    if category in ("Cf", "Me"):
        return ""
    # Spacing forms of accents (¨ ¸ ゛): NFKC would attach the accent to the previous letter.
    return " " if category in ("Cc", "Sk") else character


def _spoken(character: str) -> str:
    category = unicodedata.category(character)
    if category == "Sc" or character in SPOKEN or character == "°":
        return f" {character} "
    return " " if category[0] == "S" or character == "-" else character


# Used if data.normalizer is not set.
DEFAULT = "basic"
# Marks are part of a language's writing if more than this fraction of words have them; number of texts that are read.
_FEW_MARKED, _LOOKED_AT = 0.02, 10_000
# Rules that whisper-normalizer has and openai-whisper has not; `cause` → `because` also changes "the cause of".
_NOT_WHISPERS = (r"\bkinda\b", r"\bsorta\b", r"\bdunno\b", r"\bcause\b")

_WHISPER_BASIC, _WHISPER_ENGLISH = BasicTextNormalizer(), EnglishTextNormalizer()
for _pattern in _NOT_WHISPERS:
    _WHISPER_ENGLISH.replacers.pop(_pattern, None)


@dataclass(frozen=True, slots=True)
class Normalizer:
    """A function of texts with a name, and a version that changes whenever a result changes; picklable."""

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
    """Returns the normalizer of this name; raises ConfigError if there is none."""
    if name not in NORMALIZERS:
        raise ConfigError(f"normalizer {name!r} is not known: use one of {', '.join(NORMALIZERS)}")
    return NORMALIZERS[name]


def normalize_whisper_basic(text: str) -> str:
    """Whisper's BasicTextNormalizer, used for most published scores of languages other than English.

    Converts to lower case and NFKC, removes text in brackets, and replaces symbols and punctuation by spaces. Combining
    marks count as symbols, which splits words of Indic scripts, Thai and vocalized Arabic, and hides errors in vowels.
    """
    return collapse_whitespace(_WHISPER_BASIC(text))


def normalize_whisper_english(text: str) -> str:
    """Whisper's EnglishTextNormalizer: contractions, titles, numbers and British spellings get one form each."""
    return collapse_whitespace(_WHISPER_ENGLISH(text))


def hidden_marks(normalizer: Normalizer, references: Iterable[str], language: str | None = None) -> str | None:
    """Returns a warning if a normalizer removes marks with which the references are written, else None.

    Marks are the parts of a decomposed letter besides the base, such as vowel signs, tones and accents. A few marks, as
    in foreign words and names, are not reported, and neither are those of English, which is written without marks.
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
    """Returns the combining marks of a decomposed text, with counts."""
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
