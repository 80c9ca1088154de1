r"""Lines of a program's output, from bytes as they come. Pure.

A progress bar writes its line again and again, with a carriage return before or after it. It is shown every few
seconds, and at its end: the log of a night would be nothing but bars. Of several bars below each other, between which
the cursor moves, each is one in turn. What colors and moves is left out.
"""

import re
from collections.abc import Iterator

BAR_INTERVAL_S = 5.0
# A line this long is given in parts, so that a program that writes no line end is seen, too.
LONGEST_BYTES = 64 << 10
# Control sequences of terminals (ECMA-48), and those of xterm that end with BEL or ST; and line feeds, which go down.
_CONTROL = re.compile(
    rb"\x1b\[(?P<count>\d*)(?P<way>[AB])|\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b\n]*(?:\x07|\x1b\\)?"
    rb"|\x1b[ -/]*[0-Z\\^-~]|(?P<down>\n)(?P<back>\r?)"
)
# One that may go on in what is written next.
_CUT = re.compile(rb"\x1b(?:\[[0-?]*[ -/]*|\][^\x07\x1b\n]{0,255}|[ -/]*)\Z")


class OutputLines:
    """Takes bytes, and gives complete lines without their ends."""

    def __init__(self) -> None:
        self._rest = b""
        # What a bar shows now, and what of it was given last.
        self._bar = self._given = b""
        self._given_s = -BAR_INTERVAL_S
        # What came last and waits for what follows; by how many lines the cursor is above the last one.
        self._cut, self._above = b"", 0

    def take(self, new: bytes, now_s: float) -> Iterator[str]:
        """The lines that are to be shown now.

        Args:
            new: What the program wrote since; nothing where it has been silent for a moment.
            now_s: Seconds from any origin.
        """
        *lines, self._rest = (self._rest + self._without_control(new)).split(b"\n")
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

    def _without_control(self, new: bytes) -> bytes:
        """Text, line feeds and carriage returns; where the cursor goes to another bar, a carriage return."""
        if not (b"\x1b" in new or self._cut or self._above):
            return new
        if not new and self._cut == b"\n":
            # A bar below would have followed at once.
            self._cut, self._above = b"", 0
            return b"\n"
        text = self._cut + new
        cut = _CUT.search(text)
        text, self._cut = (text[: cut.start()], cut[0]) if cut is not None else (text, b"")
        # Whether this ends a line or goes to the bar below is not known yet.
        is_open = text.endswith(b"\n") and not self._cut
        plain = _CONTROL.sub(self._plain, text.removesuffix(b"\n") if is_open else text)
        if is_open and self._above:
            self._cut = b"\n"
        return plain + b"\n" if is_open and not self._above else plain

    def _plain(self, match: re.Match[bytes]) -> bytes:
        if match["way"] is not None:
            lines = int(match["count"] or 1)
            self._above = max(0, self._above + (lines if match["way"] == b"A" else -lines))
            return b"\r"
        if match["down"] is None:
            return b""
        if self._above and match["back"]:
            self._above -= 1
            return b"\r"
        self._above = 0
        return match[0]

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
