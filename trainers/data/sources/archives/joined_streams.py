"""Files of bzip2 and xz, of which each part is checked to its end, and nothing else may follow one."""

import io
from bz2 import BZ2Decompressor
from collections.abc import Callable
from lzma import LZMADecompressor
from typing import IO

Decompressor = BZ2Decompressor | LZMADecompressor
_CHUNK_BYTES = 2**20


class JoinedStreams(io.RawIOBase):
    """What a file of bzip2 or xz holds, or several that were joined.

    Python's own readers take the first of them for all where the next one is damaged, and pass over what else follows.
    """

    @classmethod
    def opened(cls, file: IO[bytes], new: Callable[[], Decompressor]) -> io.BufferedReader:
        """What a file holds, where `new` makes what decompresses its kind."""
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
        """Bytes of what it holds; none at its end. Raises EOFError, OSError, lzma.LZMAError: it is cut or damaged."""
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
