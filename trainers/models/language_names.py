"""Identifies languages by code or name, for all families, from ISO 639, BCP 47 and CLDR. Imports no transformers."""

import difflib
import re
import unicodedata
from collections.abc import Mapping
from functools import cache

import langcodes
from langcodes.data_dicts import MACROLANGUAGES
from langcodes.tag_parser import LanguageTagError
from language_data.names import get_trie_value, load_trie, normalize_name  # type: ignore[import-untyped]
from language_data.util import data_filename  # type: ignore[import-untyped]

# The languages of Whisper's tokens, in their order, with transformers' names.
# fmt: off
LANGUAGES: Mapping[str, str] = {
    "en": "english", "zh": "chinese", "de": "german", "es": "spanish", "ru": "russian", "ko": "korean",
    "fr": "french", "ja": "japanese", "pt": "portuguese", "tr": "turkish", "pl": "polish", "ca": "catalan",
    "nl": "dutch", "ar": "arabic", "sv": "swedish", "it": "italian", "id": "indonesian", "hi": "hindi",
    "fi": "finnish", "vi": "vietnamese", "he": "hebrew", "uk": "ukrainian", "el": "greek", "ms": "malay",
    "cs": "czech", "ro": "romanian", "da": "danish", "hu": "hungarian", "ta": "tamil", "no": "norwegian",
    "th": "thai", "ur": "urdu", "hr": "croatian", "bg": "bulgarian", "lt": "lithuanian", "la": "latin", "mi": "maori",
    "ml": "malayalam", "cy": "welsh", "sk": "slovak", "te": "telugu", "fa": "persian", "lv": "latvian",
    "bn": "bengali", "sr": "serbian", "az": "azerbaijani", "sl": "slovenian", "kn": "kannada", "et": "estonian",
    "mk": "macedonian", "br": "breton", "eu": "basque", "is": "icelandic", "hy": "armenian", "ne": "nepali",
    "mn": "mongolian", "bs": "bosnian", "kk": "kazakh", "sq": "albanian", "sw": "swahili", "gl": "galician",
    "mr": "marathi", "pa": "punjabi", "si": "sinhala", "km": "khmer", "sn": "shona", "yo": "yoruba", "so": "somali",
    "af": "afrikaans", "oc": "occitan", "ka": "georgian", "be": "belarusian", "tg": "tajik", "sd": "sindhi",
    "gu": "gujarati", "am": "amharic", "yi": "yiddish", "lo": "lao", "uz": "uzbek", "fo": "faroese",
    "ht": "haitian creole", "ps": "pashto", "tk": "turkmen", "nn": "nynorsk", "mt": "maltese", "sa": "sanskrit",
    "lb": "luxembourgish", "my": "myanmar", "bo": "tibetan", "tl": "tagalog", "mg": "malagasy", "as": "assamese",
    "tt": "tatar", "haw": "hawaiian", "ln": "lingala", "ha": "hausa", "ba": "bashkir", "jw": "javanese",
    "su": "sundanese", "yue": "cantonese",
}
# fmt: on
# Whisper's codes, by the current codes that they differ from.
_WHISPERS: Mapping[str, str] = {"jv": "jw", "fil": "tl"}
# Unspecified Norwegian is Bokmål, as in CLDR; zlm is Malay apart from its standard (zsm), as in MMS.
_SAME: Mapping[str, str] = {"nb": "no", "zlm": "ms"}
# Macrolanguages whose members share one written standard. Those of Chinese, Malay or Latvian do not; for these CLDR has
# the one member that the macrolanguage's name usually means, such as Mandarin.
_ONE_STANDARD = ("ar", "fa", "mg", "ps", "sq", "sw", "yi")
# Territories in which unspecified Chinese is Cantonese.
_CANTONESE = ("HK", "MO")
_CODE = re.compile(r"[a-z]{2,3}", re.IGNORECASE)
# Prefix of the name that CLDR's data give to an unassigned code.
_UNKNOWN = "Unknown"
# A code with script, region or more: zh-Hant-TW, es_419, cmn_hans_cn, azj-script_latin.
_TAG = re.compile(r"[a-z]{2,3}[-_].+", re.IGNORECASE)
# Text after a tag that is not part of it: the encoding and the modifier of a locale, or a remark.
_LOCALE_TAIL, _REMARK = re.compile(r"[.@].*", re.DOTALL), re.compile(r"[ (].*", re.DOTALL)
# A name with a region or a script: Portuguese (Brazil), Chinese (Simplified).
_QUALIFIED = re.compile(r"([^()]+)\(([^()]+)\)")
# Names that CLDR does not have, or has in English for another language.
_OTHER_NAMES: Mapping[str, str] = {"bahasa melayu": "ms", "bahasa indonesia": "id", "kihindi": "hi", "bokmal": "no"}
# Romanizations of Mandarin; all other variants of Chinese may be other languages (zh-minnan).
_OF_MANDARIN = frozenset({"pinyin", "tongyong", "wadegile"})


@cache
def code_or_name(language: str) -> str:
    """Returns the code of a language given by code or name: `Serbian`, `srpski`, `srp_Cyrl`, `sr-RS` → `sr`.

    The code is from ISO 639-1 if that has one. Deprecated codes are replaced by current ones, and a macrolanguage by
    the member that it usually means. A text that names no language is returned in lower case.
    """
    text = language.strip()
    tag = _by_name(text) if _CODE.fullmatch(text) is None else _by_code(text)
    if tag is None and _TAG.fullmatch(text) is not None:
        tag = _by_tag(text)
    if tag is None or not tag.language:
        return language.lower()
    if tag.language == "zh" and tag.territory in _CANTONESE:
        return "yue"
    code = str(tag.prefer_macrolanguage().language)
    macro = MACROLANGUAGES.get(code)
    return _SAME.get(code, code) if macro not in _ONE_STANDARD else str(macro)


def whisper_code(language: str) -> str | None:
    """Returns the code of a language (see `code_or_name`) in Whisper's token for it; None if no Whisper has one."""
    code = code_or_name(language)
    code = _WHISPERS.get(code, code)
    return code if code in LANGUAGES else None


def no_token(language: str) -> str:
    """Returns a message that Whisper has no token for a language, with the language's name, or a similar name."""
    problem = f"Whisper has no token for {language!r}"
    code = code_or_name(language)
    name = langcodes.Language.get(code).language_name() if _CODE.fullmatch(code) else _UNKNOWN
    if not name.startswith(_UNKNOWN):
        return f"{problem}." if name.lower() == language.lower() else f"{problem} ({name})."
    # With the languages' own names, since Deutch is more similar to Deutsch than to Dutch.
    known = {**{name: name for name in LANGUAGES.values()}, **{own: LANGUAGES[to] for own, to in _own_names().items()}}
    near = difflib.get_close_matches(language.lower(), known, n=1, cutoff=0.8)
    hint = f"; did you mean {known[near[0]].title()}?" if near else ": write a code (sr) or a name (Serbian)."
    return f"{problem}{hint}"


def _by_code(text: str) -> langcodes.Language | None:
    try:
        return langcodes.Language.get(text)
    except LanguageTagError:
        return None


def _by_tag(text: str) -> langcodes.Language | None:
    """Returns the language of a tag, ignoring invalid subtags at its end, except for Chinese, where they may matter."""
    tag, remarks = _LOCALE_TAIL.sub("", text), _REMARK.search(text)
    subtags = [part for part in re.split(r"[-_]", _REMARK.sub("", tag)) if part]
    for length in range(len(subtags), 0, -1):
        found = _by_code("-".join(subtags[:length]))
        if found is not None:
            is_unclear = remarks or length < len(subtags) or found.private or {*(found.variants or ())} - _OF_MANDARIN
            return None if found.language == "zh" and is_unclear else found
    return None


def _by_name(text: str) -> langcodes.Language | None:
    """Returns the language with this complete name, in the language itself, in English, or else in any language.

    A name may have a region or a script in brackets, and those of Whisper's languages may lack accents.
    """
    name = normalize_name(text)
    known = _OTHER_NAMES.get(name) or _own_names().get(name)
    if known is not None:
        return _by_code(known)
    for names in (_names("en"), _names("und")):
        if name in names:
            return _by_code(get_trie_value(names, name))
    if (qualified := _QUALIFIED.fullmatch(text)) is not None and (found := _by_name(qualified[1])) is not None:
        kind = normalize_name(qualified[2])
        for field in ("territory", "script"):
            if kind in (names := _names("en", field)):
                return found.update_dict({field: get_trie_value(names, kind)})
    return _by_code(_own_names().get(_without_accents(name), ""))


@cache
def _own_names() -> Mapping[str, str]:
    """Returns Whisper's codes by the languages' own names; names in Latin letters are also listed without accents."""
    own: dict[str, str] = {}
    for code in LANGUAGES:
        name = normalize_name(langcodes.Language.get(code).autonym())
        own |= {each: code for each in (name, _without_accents(name)) if each == name or each.isascii()}
    return own


def _without_accents(name: str) -> str:
    letters = unicodedata.normalize("NFD", name)
    return "".join(letter for letter in letters if not unicodedata.combining(letter))


@cache
def _names(language: str, of: str = "language") -> Mapping[str, list[bytes]]:
    """Returns codes of languages, territories or scripts by their names in a language; `und` means all languages."""
    names: Mapping[str, list[bytes]] = load_trie(data_filename(f"trie/{language}/name_to_{of}.marisa"))
    return names
