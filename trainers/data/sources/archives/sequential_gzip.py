"""A gzip file, read once from its beginning to its end, which checks the length and the checksum of all of it."""

import gzip
import zlib
from typing import BinaryIO

from trainers.errors import DataError

_PIECE_BYTES = 2**20
# Behind the furthest byte that was read: as far as a tar's reader goes back, for a header that it has read ahead of.
_KEPT_BYTES = 4 * 2**20


class SequentialGzip:
    """What a gzip file holds. Several that were joined hold one content; anything else behind their end is damage.

    Python's reader compares the CRC-32 and the length of each of them at its end; indexed_gzip passes over junk, takes
    a file that is cut for a shorter one, and checks nothing that it has not read in one go.

    Args:
        name: The file in messages.
        file: The file, at its beginning.
    """

    def __init__(self, name: str, file: BinaryIO):
        self._name, self._file = name, gzip.GzipFile(fileobj=file, mode="rb")
        self._window, self._start, self._has_ended = bytearray(), 0, False

    def read_at(self, start: int, length: int) -> bytes:
        """Bytes of its content from a position on that is not far before the last one; fewer only at its end.

        Raises:
            DataError: it is damaged, or was cut short.
        """
        while not self._has_ended and self._start + len(self._window) < start + length:
            self._window += self._next_piece()
            surplus = min(start - self._start, len(self._window)) - _KEPT_BYTES
            if surplus > 0:
                del self._window[:surplus]
                self._start += surplus
        first = start - self._start
        assert first >= 0, "a tar is read forwards"
        return bytes(self._window[first : first + length])

    def check_rest(self) -> None:
        """Reads to its end. Raises DataError as `read_at`."""
        while not self._has_ended:
            self._next_piece()

    def _next_piece(self) -> bytes:
        try:
            piece = self._file.read(_PIECE_BYTES)
        # What zlib raises has no base of its own.
        except (OSError, EOFError, zlib.error) as error:
            # Errors of the disk have a number.
            if getattr(error, "errno", None) is not None:
                raise
            raise DataError(f"{self._name}: the archive is damaged or cut short ({error}): fetch it again") from None
        self._has_ended = not piece
        return piece
