"""Parses the location of a split's rows: a manifest's path or URL, or `FORMAT:LOCATION?OPTION=VALUE`.

The readers of the formats are in `trainers.data.sources.formats`.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from urllib.parse import unquote

MANIFEST = "manifest"
# Folder in a job's package for the manifests and recordings that `data.ship` adds. Recordings are named by the hash of
# their content.
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
# Options that only say where files are, and do not select rows.
PLACES = ("data_root", "tars")
# Formats whose locations contain all splits; without the option `split`, the config's field selects the rows.
WITH_SPLITS = ("common_voice",)


@dataclass(frozen=True)
class DataLocation:
    """A parsed location of rows. `format` is a key of FORMATS, or MANIFEST; `path` may be a URL."""

    format: str
    path: str
    options: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def parse(cls, text: str) -> "DataLocation":
        """Parses a field of a config; raises ValueError if the path is missing or the format lacks an option."""
        before, path, query = _parts(text)
        if not before:
            return cls(MANIFEST, text)
        name = before.removesuffix(":")
        if not path:
            raise ValueError(f"{text}: {name}: must be followed by a path: {name}:/path/to/it")
        options: dict[str, str] = {}
        for pair in filter(None, query.removeprefix("?").split("&")):
            # A + is not decoded to a space, since it joins splits.
            option, equals, value = map(unquote, pair.partition("="))
            if not equals or not value or option in options:
                raise ValueError(f"{name}:{path}: write each option once, as ?option=value&option=value")
            if option not in FORMATS[name]:
                known = ", ".join(FORMATS[name]) or "none"
                raise ValueError(f"{name}:{path}: {option!r} is not an option of {name}: it has {known}")
            options[option] = value
        return cls(name, path, options)


def rows_in(text: str, split: str) -> str:
    """Returns a key that is equal for two fields of a config if their locations have the same rows."""
    where = DataLocation.parse(text)
    return f"{text} {split}" if where.format in WITH_SPLITS and "split" not in where.options else text


def path_in(text: str) -> str:
    """Returns the path or URL in a location; a plain path is returned unchanged."""
    return _parts(text)[1]


def with_path(text: str, change: Callable[[str], str]) -> str:
    """Returns a location with its path changed."""
    before, path, after = _parts(text)
    return before + change(path) + after


def _parts(text: str) -> tuple[str, str, str]:
    name, colon, rest = text.partition(":")
    if not colon or name not in FORMATS:
        return "", text, ""
    path, mark, query = rest.partition("?")
    return name + colon, path, mark + query
