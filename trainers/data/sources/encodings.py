"""Encodings of manifests and transcripts: which one it is, a config says; none is guessed."""

import codecs

from trainers.errors import DataError

UTF_8 = "utf-8"


def in_utf_8(location: str, content: bytes, encoding: str) -> bytes:
    """A text of another encoding in UTF-8; one in UTF-8 as it is, whatever bytes it has.

    Raises:
        DataError: it is of another encoding; names byte and line.
    """
    if codecs.lookup(encoding).name == UTF_8:
        return content
    try:
        return content.decode(encoding).encode()
    except UnicodeError as error:
        start = getattr(error, "start", 0)
        line = content.count(b"\n", 0, start) + 1
        raise DataError(
            f"{location}: byte {start} (line {line}) is not {encoding}: correct data.encoding, or save it as UTF-8"
        ) from None
