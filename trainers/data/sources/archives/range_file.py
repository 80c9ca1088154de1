"""A file that is read in ranges, as a file object of Python."""

import io
from collections.abc import Callable

from trainers.errors import DataError

# Bytes from a position on: fewer only at the end.
ReadAt = Callable[[int, int], bytes]


class RangeFile(io.RawIOBase):
    """Reads blocks of a file, of which the last is kept; what is skipped is not read.

    Args:
        name: The file in messages.
        read_at: Reads a range of it.
        block_bytes: What is read at a time.
        most_bytes: The most that one call may ask for. An archive's header that claims more is none.
        size_bytes: Its size, from which positions may count. None: not known.
    """

    def __init__(self, name: str, read_at: ReadAt, *, block_bytes: int, most_bytes: int, size_bytes: int | None = None):
        super().__init__()
        self._name, self._read_at = name, read_at
        self._block_bytes, self._most_bytes, self._size_bytes = block_bytes, most_bytes, size_bytes
        self._position = self._block_start = 0
        self._block = b""

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        if whence == io.SEEK_END and self._size_bytes is None:
            raise io.UnsupportedOperation("its end is not known")
        self._position = offset + {io.SEEK_CUR: self._position, io.SEEK_END: self._size_bytes or 0}.get(whence, 0)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        if size is None or not 0 <= size <= self._most_bytes:
            raise DataError(f"{self._name}: a header claims {size} bytes: it is damaged; fetch the archive again")
        start = self._position - self._block_start
        if start < 0 or start + size > len(self._block):
            self._block_start, start = self._position, 0
            self._block = self._read_at(self._position, max(size, self._block_bytes))
        data = self._block[start : start + size]
        self._position += len(data)
        return data

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        data = self.read(min(len(buffer), self._most_bytes))
        buffer[: len(data)] = data
        return len(data)
