"""Splits a line into words like a shell; refuses, with a reason, what only a shell can do."""

import os
import re
from collections.abc import Mapping

from trainers.errors import ConfigError

_VARIABLE = r"\$(?:\{[^}]*\}|[A-Za-z_]\w*|[0-9@*#?$!-])"
# POSIX, Shell Command Language, 2.2 (quoting) and 2.3 (tokens).
_PIECE = re.compile(
    rf"""
      (?P<continuation>\\\n)
    | \\(?P<escaped>.)
    | '(?P<single>[^']*)'
    | "(?P<double>(?:[^"\\]|\\.)*)"
    | (?P<comment>(?<![^\s])(?<!\\[ \t])\#[^\n]*)
    | (?P<newline>\n)
    | (?P<space>[ \t]+)
    | (?P<operator>\$\(|`|\$'|[<>]\(|\|\|?|&&|&>|&|;|[<>]+&?|[()])
    | (?P<variable>{_VARIABLE})
    | (?P<plain>.)
    """,
    re.VERBOSE | re.DOTALL,
)
_IN_DOUBLE_QUOTES = re.compile(
    rf"(?P<continuation>\\\n)|\\(?P<escaped>[$`\"\\])|(?P<operator>\$\(|`)|(?P<variable>{_VARIABLE})|(?P<plain>.)",
    re.DOTALL,
)
_ASSIGNED = re.compile(r"[A-Za-z_]\w*=")
_NAME = re.compile(r"\$\{?([A-Za-z_]\w*)\}?")
_ONE_COMMAND = "one line starts one training: leave out the other commands"
_WRITTEN_OUT = "no other command is run for it: write its output into the line"
_LOGS = "the output is in the logs of the run: leave it out"
_REASONS = {
    "|": f"a pipe; {_LOGS}",
    "||": _ONE_COMMAND,
    "&&": _ONE_COMMAND,
    ";": _ONE_COMMAND,
    "&": "a run is in the background anyway: leave it out",
    "(": _ONE_COMMAND,
    ")": _ONE_COMMAND,
    "<": "a run has no input: leave it out",
    "<<": "a run has no input: leave it out",
    "$(": _WRITTEN_OUT,
    "`": _WRITTEN_OUT,
    "<(": _WRITTEN_OUT,
    ">(": _WRITTEN_OUT,
    "$'": "write the characters between plain quotes",
}


def split_line(text: str, environment: Mapping[str, str] | None = None) -> list[str]:
    """Splits a line into words, like a shell.

    Lines that end with a backslash are continued, comments are dropped, `$NAME` and `${NAME}` are replaced by their
    values in `environment`, by default the process's own, and `~` at the beginning of a word, or of the value of an
    assignment, by HOME. File name patterns stay unchanged, as in a shell without matching files.

    Raises:
        ConfigError: the text has several commands, pipes, redirections, command substitutions, unterminated quotes, or
            variables that are not set; the message lists all of them.
    """
    splitter = _Splitter(os.environ if environment is None else environment)
    for piece in _PIECE.finditer(text.replace("\r\n", "\n")):
        splitter.take(str(piece.lastgroup), piece[str(piece.lastgroup)])
    return splitter.finish()


class _Splitter:
    def __init__(self, environment: Mapping[str, str]) -> None:
        self._environment = environment
        self._words: list[str] = []
        self._word: str | None = None
        self._is_complete = False
        self._problems: dict[str, None] = {}

    def take(self, kind: str, text: str, *, is_quoted: bool = False) -> None:
        """Takes a piece of the line, or of a text between double quotes."""
        if kind == "newline":
            self._end_word()
            self._is_complete = bool(self._words)
        elif kind == "space":
            self._end_word()
        elif kind in ("comment", "continuation"):
            return
        elif kind == "operator":
            self._refuse(f"{text}: {_REASONS.get(text, f'a redirection; {_LOGS}')}")
        elif kind == "variable" and not is_quoted:
            self._expand(text)
        elif kind == "variable":
            self._extend(self._value(text))
        elif kind == "double":
            self._extend("")
            for piece in _IN_DOUBLE_QUOTES.finditer(text):
                self.take(str(piece.lastgroup), piece[str(piece.lastgroup)], is_quoted=True)
        elif kind != "plain" or is_quoted:
            self._extend(text)
        elif text in "'\"":
            self._refuse(f"{text}: the quote does not end: close it, or write \\{text} for the character itself")
        elif text == "~" and (self._word is None or _ASSIGNED.fullmatch(self._word)):
            self._extend(self._environment.get("HOME", "~"))
        else:
            self._extend(text)

    def finish(self) -> list[str]:
        self._end_word()
        if self._problems:
            raise ConfigError("\n".join(self._problems))
        return self._words

    def _expand(self, text: str) -> None:
        """Appends the value of a variable outside of quotes, where a value with spaces becomes several words."""
        value = self._value(text)
        first, *others = re.split(r"[ \t\n]+", value)
        if first or (not others and self._word is not None):
            self._extend(first)
        for word in others:
            self._end_word()
            if word:
                self._extend(word)

    def _value(self, text: str) -> str:
        name = _NAME.fullmatch(text)
        if name is None:
            self._refuse(f"{text}: only $NAME and ${{NAME}} are known here: write its value")
        elif name[1] not in self._environment:
            self._refuse(f"{text}: the variable is not set here: export it, or write its value")
        else:
            return self._environment[name[1]]
        return ""

    def _extend(self, text: str) -> None:
        if self._is_complete:
            self._refuse(f"a second line: {_ONE_COMMAND}; a line that continues ends with a backslash")
        self._word = (self._word or "") + text

    def _end_word(self) -> None:
        if self._word is not None:
            self._words.append(self._word)
        self._word = None

    def _refuse(self, problem: str) -> None:
        self._problems[problem] = None
