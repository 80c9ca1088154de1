"""Parses the source of a model in a recipe: Hub id, folder or file, URL, or another run. Opens nothing."""

import re
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePosixPath
from typing import Annotated
from urllib.parse import urlsplit

from pydantic import AfterValidator
from pydantic_core import PydanticCustomError

from trainers.config.parts.part import UNSUPPORTED_URL
from trainers.config.parts.run_part import NAME
from trainers.config.storage_location import SUPPORTED, is_url, refused_url, without_password

RUN, HTTPS = "run:", "https://"
SOURCES = f"a Hub id, e.g. openai/whisper-tiny, {HTTPS}… of a zip or tar, {RUN}<name> of another run, {SUPPORTED}"
_SHA256 = re.compile(r"sha256=([0-9a-fA-F]{64})")


class SourceKind(Enum):
    """The kind of a source, which selects its reader."""

    HUB = "hub"
    PATH = "path"
    STORAGE = "storage"
    HTTPS = "https"
    RUN = "run"


@dataclass(frozen=True)
class ModelSource:
    """A source of a model or of part of a model.

    Attributes:
        address: Hub id, path, URL, or name of a run.
        revision: Branch, tag or commit on the Hub; None for the main branch.
        sha256: SHA-256 of the file at an https:// URL, in lower case; None if not given.
    """

    kind: SourceKind
    address: str
    revision: str | None = None
    sha256: str | None = None

    @classmethod
    def parse(cls, text: str, revision: str | None = None) -> "ModelSource":
        """Parses a field and the separate field `revision`; a relative path looks like a Hub id, and becomes one.

        Raises:
            ValueError: The text is not a source. The message does not repeat a URL, which may contain a password.
        """
        source = cls._parse(text)
        if revision is None or source.kind is SourceKind.PATH:
            return source
        if source.kind is not SourceKind.HUB:
            raise ValueError(f"is not a Hub id, so it has no revisions: remove revision {revision}")
        if source.revision is not None:
            raise ValueError(f"names the revision {source.revision}, and revision is {revision}: keep one of them")
        return cls(SourceKind.HUB, source.address, revision)

    @classmethod
    def _parse(cls, text: str) -> "ModelSource":
        if text.startswith(RUN):
            name = text.removeprefix(RUN)
            if not re.fullmatch(NAME, name):
                raise ValueError(f"{RUN} must precede the name of a run in the same run.storage_path: {RUN}my-run")
            return cls(SourceKind.RUN, name)
        if text.startswith(HTTPS):
            return cls._of_https(text)
        if is_url(text):
            return cls(SourceKind.STORAGE, text.rstrip("/"))
        if (problem := refused_url(text, SOURCES)) is not None:
            raise ValueError(problem)
        if PurePosixPath(text).is_absolute() or text.startswith((".", "~", "$")):
            return cls(SourceKind.PATH, text)
        address, at, revision = text.partition("@")
        if not address or (at and not revision):
            raise ValueError("append the revision to its Hub id: openai/whisper-tiny@main")
        return cls(SourceKind.HUB, address, revision or None)

    @classmethod
    def _of_https(cls, text: str) -> "ModelSource":
        address, mark, fragment = text.partition("#")
        parts = urlsplit(address)
        if "@" in parts.netloc or not parts.hostname:
            raise ValueError(f"give an {HTTPS} URL with a host, and without a user name or password")
        found = _SHA256.fullmatch(fragment)
        if mark and found is None:
            raise ValueError(f"append the hash of the file to its URL: {HTTPS}…/model.zip#sha256=<64 hex digits>")
        return cls(SourceKind.HTTPS, address, sha256=found[1].lower() if found is not None else None)

    @property
    def text(self) -> str:
        """The source as messages and records show it, without a URL's query, which may contain a secret."""
        if self.kind is SourceKind.HUB:
            return f"{self.address}@{self.revision}" if self.revision is not None else self.address
        if self.kind is SourceKind.RUN:
            return f"{RUN}{self.address}"
        return without_password(self.address) if self.kind is SourceKind.HTTPS else self.address


def _a_source(text: str) -> str:
    try:
        ModelSource.parse(text)
    except ValueError as error:
        raise PydanticCustomError(UNSUPPORTED_URL, "{problem}", {"problem": str(error)}) from None
    return text


# A field that names a source.
SourceText = Annotated[str, AfterValidator(_a_source)]
