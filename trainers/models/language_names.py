"""The languages that Whisper's tokens name, by name and code, as transformers lists them. Imports no transformers."""

import difflib
import re
from collections.abc import Mapping

# Name of each language by its code, in the order of Whisper's tokens.
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
_OTHER_NAMES: Mapping[str, str] = {
    "burmese": "my", "valencian": "ca", "flemish": "nl", "haitian": "ht", "letzeburgesch": "lb", "pushto": "ps",
    "panjabi": "pa", "moldavian": "ro", "moldovan": "ro", "sinhalese": "si", "castilian": "es", "mandarin": "zh",
}
# fmt: on
CODE_OF_NAME: Mapping[str, str] = {**{name: code for code, name in LANGUAGES.items()}, **_OTHER_NAMES}
# A code of ISO 639 with script or region, e.g. zh-Hant-TW or es_419.
_TAG = re.compile(r"([a-z]{2,3})(?:[-_](?:[a-z]{4}|[a-z]{2}|[0-9]{3}))+")


def code_or_name(language: str) -> str:
    """The code of a language given by name or code, with or without script and region: `Serbian`, `sr-RS` → `sr`.

    Of one that transformers does not list, what is given, in lower case.
    """
    name = language.lower()
    tag = _TAG.fullmatch(name)
    code = CODE_OF_NAME.get(tag[1], tag[1]) if tag else CODE_OF_NAME.get(name, name)
    return code if code in LANGUAGES else name


def suggest_language(language: str) -> str:
    """The end of a message about a language that has no token."""
    near = difflib.get_close_matches(language.lower(), CODE_OF_NAME, n=1)
    return f"did you mean {near[0].title()}?" if near else "name one of its languages (English, Serbian, …)."
