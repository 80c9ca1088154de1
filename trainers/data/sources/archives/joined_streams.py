"""Strict readers of bzip2 and xz files: each stream is checked to its end, and only streams may follow."""

import io
from bz2 import BZ2Decompressor
from collections.abc import Callable
from lzma import LZMADecompressor
from typing import IO

Decompressor = BZ2Decompressor | LZMADecompressor
_CHUNK_BYTES = 2**20


class JoinedStreams(io.RawIOBase):
    """The decompressed content of a bzip2 or xz file of one or more streams.

    Python's own readers end after the first stream if the next one is damaged, and ignore any other data after it.
    """

    @classmethod
    def opened(cls, file: IO[bytes], new: Callable[[], Decompressor]) -> io.BufferedReader:
        """Opens a file; `new` makes the decompressor for its format."""
        return io.BufferedReader(cls(file, new), _CHUNK_BYTES)

    def __init__(self, file: IO[bytes], new: Callable[[], Decompressor]):
        super().__init__()
        self._file, self._new = file, new
        self._restart()

    def _restart(self) -> None:
        self._file.seek(0)
        self._decompressor, self._position = self._new(), 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        target = offset + (self._position if whence == io.SEEK_CUR else 0)
        if target < self._position:
            self._restart()
        while self._position < target and self._next(min(_CHUNK_BYTES, target - self._position)):
            pass
        return self._position

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self._next(len(buffer))
        buffer[: len(data)] = data
        return len(data)

    def _next(self, most: int) -> bytes:
        """Returns decompressed bytes; none at the end. Raises EOFError, OSError, lzma.LZMAError if damaged."""
        data = b""
        while not data:
            if self._decompressor.eof:
                behind = self._decompressor.unused_data.lstrip(b"\0")
                while not behind and (piece := self._file.read(_CHUNK_BYTES)):
                    behind = piece.lstrip(b"\0")
                if not behind:
                    break
                self._decompressor = self._new()
                data = self._decompressor.decompress(behind, most)
                continue
            piece = self._file.read(_CHUNK_BYTES) if self._decompressor.needs_input else b""
            if not piece and self._decompressor.needs_input:
                raise EOFError("it ends in the middle")
            data = self._decompressor.decompress(piece, most)
        self._position += len(data)
        return data
