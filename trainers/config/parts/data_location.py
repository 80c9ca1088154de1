"""Where the rows of a split are: a manifest's path or URL, or `FORMAT:LOCATION?OPTION=VALUE` in another format.

The readers of the formats are in `trainers.data.sources.formats`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

MANIFEST = "manifest"
# Folder of a job's package with the manifests and recordings that `data.ship` carries along. A recording's name there
# is the hash of its content.
SHIPPED = "rayscribe-data"
# Options of each format.
FORMATS: Mapping[str, tuple[str, ...]] = {
    "common_voice": ("split", "language", "accented_letters"),
    "kaldi": (),
    "lhotse": (),
    "librispeech": (),
    "nemo": ("tars",),
    "shar": (),
    "speechbrain": ("data_root",),
    "webdataset": ("audio", "text"),
}
# Options that say where files are, not what of them is read.
PLACES = ("data_root", "tars")
# Formats whose locations hold all splits; without the option `split`, which rows are meant depends on the field.
WITH_SPLITS = ("common_voice",)


@dataclass(frozen=True)
class DataLocation:
    """A location of rows, taken apart.

    Attributes:
        format: A key of FORMATS, or MANIFEST.
        path: A path or URL.
        options: Values by option.
    """

    format: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "DataLocation":
        """Takes a field of a config apart.

        Raises:
            ValueError: the path is missing, or an option is none of the format's or has no value.
        """
        name, colon, rest = text.partition(":")
        if not colon or name not in FORMATS:
            return cls(MANIFEST, text)
        path, _, query = rest.partition("?")
        if not path:
            raise ValueError(f"{text}: {name}: stands before a path: {name}:/path/to/it")
        options: dict[str, str] = {}
        for pair in filter(None, query.split("&")):
            # A + is one: it joins splits.
            option, equals, value = map(unquote, pair.partition("="))
            if not equals or not value or option in options:
                raise ValueError(f"{name}:{path}: write each option once, as ?option=value&option=value")
            if option not in FORMATS[name]:
                known = ", ".join(FORMATS[name]) or "none"
                raise ValueError(f"{name}:{path}: {option!r} is no option of {name}: it has {known}")
            options[option] = value
        return cls(name, path, options)


def rows_in(text: str, split: str) -> str:
    """What is equal for locations of two fields of the same rows."""
    where = DataLocation.parse(text)
    return f"{text} {split}" if where.format in WITH_SPLITS and "split" not in where.options else text


def path_in(text: str) -> str:
    """The path or URL in a location; any other path is its own."""
    return _parts(text)[1]


def with_path(text: str, change: Callable[[str], str]) -> str:
    """A location with another path in it."""
    before, path, after = _parts(text)
    return before + change(path) + after


def _parts(text: str) -> tuple[str, str, str]:
    name, colon, rest = text.partition(":")
    if not colon or name not in FORMATS:
        return "", text, ""
    path, mark, query = rest.partition("?")
    return name + colon, path, mark + query
