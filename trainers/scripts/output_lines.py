r"""Lines of a program's output, from bytes as they come. Pure.

A progress bar writes its line again and again, with a carriage return before or after it. It is shown every few
seconds, and at its end: the log of a night would be nothing but bars.
"""

from collections.abc import Iterator

BAR_INTERVAL_S = 5.0
# A line this long is given in parts, so that a program that writes no line end is seen, too.
LONGEST_BYTES = 64 << 10


class OutputLines:
    """Takes bytes, and gives complete lines without their ends."""

    def __init__(self) -> None:
        self._rest = b""
        # What a bar shows now, and what of it was given last.
        self._bar = self._given = b""
        self._given_s = -BAR_INTERVAL_S

    def take(self, new: bytes, now_s: float) -> Iterator[str]:
        """The lines that are to be shown now.

        Args:
            new: What the program wrote since.
            now_s: Seconds from any origin.
        """
        *lines, self._rest = (self._rest + new).split(b"\n")
        for line in lines:
            yield from self._complete(line)
        if b"\r" in self._rest:
            self._bar = _seen_last(self._rest) or self._bar
            self._rest = self._rest[self._rest.rindex(b"\r") :]
            if self._bar != self._given and now_s - self._given_s >= BAR_INTERVAL_S:
                self._given, self._given_s = self._bar, now_s
                yield _text(self._bar)
        if len(self._rest) > LONGEST_BYTES:
            yield _text(self._rest.lstrip(b"\r"))
            self._rest = b""

    def end(self) -> Iterator[str]:
        """What was not complete when the program ended."""
        if self._rest:
            yield from self._complete(self._rest)
            self._rest = b""

    def _complete(self, line: bytes) -> Iterator[str]:
        last = _seen_last(line) or self._bar
        if not self._bar or last != self._given:
            yield _text(last)
        self._bar = self._given = b""


def _seen_last(line: bytes) -> bytes:
    """What is left of a line that was overwritten."""
    return next((part for part in reversed(line.split(b"\r")) if part.strip()), b"")


def _text(line: bytes) -> str:
    return line.decode(errors="replace")
