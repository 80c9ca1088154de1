"""Texts of jobs and of other users, as they may be shown."""

import re

# What moves the cursor, colors or clears (ECMA-48), and what renames the window or writes the clipboard (xterm).
_SEQUENCE = re.compile(r"(?:\x1b\[|\x9b)[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?")
# Other control characters but tab and line feed, and those that change the direction of text.
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]")


def printable(text: str) -> str:
    """The text without what a terminal would obey: escape sequences are left out, other control characters shown."""
    plain = _SEQUENCE.sub("", text).replace("\r\n", "\n")
    # Of a line that was overwritten, such as a progress bar, a terminal shows the last state.
    lines = (line.rstrip("\r").rpartition("\r")[2] for line in plain.split("\n"))
    return _CONTROL.sub(lambda match: ascii(match[0])[1:-1], "\n".join(lines))
