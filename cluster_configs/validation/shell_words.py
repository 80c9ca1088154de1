"""Shell text cut into words and operators. What `$(…)`, `` `…` ``, `${…}` and quotes enclose is a part of its word."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum, auto

_BLANK = re.compile(r"(?:[ \t\r]|\\\n)+|#[^\n]*")
_HERE_DOCUMENT = re.compile(r"\d*<<(?!<)-?[ \t]*['\"\\]?(?P<tag>\w+)['\"]?")
_REDIRECT = re.compile(r"(?P<number>\d*)(?P<sign>&>>?|<<<|>>|>\||<>|[<>]&?)(?!\()")
_OPERATOR = re.compile(r"&&|\|\||;;|\|&|[;&|()\n]")
_PLAIN = re.compile(r"[^\s;&|()<>'\"\\$`]+")
_PLAIN_IN_QUOTES = re.compile(r'[^"\\$`]+')
_NAME = re.compile(r"\$(?:\w+|[@*#?$!-])")
_ARRAY = re.compile(r"\w+\+?=\(")
_PARAMETER = re.compile(r"\$\{?(?P<name>\w+)(?::?[-=](?P<default>[^}$`]*))?\}?")
# Files that are shown where the command runs.
_SHOWN = frozenset({"/dev/stdout", "/dev/stderr", "/dev/tty", "1", "2"})
_CLOSING = {"(": ")", "{": "}"}


class Kind(Enum):
    """What the shell does with a piece of a word."""

    LITERAL = auto()
    PARAMETER = auto()
    COMMAND = auto()


@dataclass(frozen=True)
class Piece:
    """A part of a word.

    Attributes:
        kind: What it is.
        text: A literal without its quotes; anything else as it is written.
        line: Where it begins, counted from 0.
    """

    kind: Kind
    text: str
    line: int

    def expanded(self, variables: Mapping[str, str]) -> str:
        """Its value where that is known, else as it is written."""
        found = _PARAMETER.fullmatch(self.text) if self.kind == Kind.PARAMETER else None
        if found is None:
            return self.text
        value = variables.get(found["name"], found["default"])
        return self.text if value is None or re.search(r"[$`]", value) else value


Word = tuple[Piece, ...]


@dataclass
class Part:
    """The words up to an operator.

    Attributes:
        words: Of one command, redirections left out.
        line: Of the first word, counted from 0.
        shown: Whether its standard output is neither in a file nor in a pipe.
        operator: What ends it; "" for the end of the text.
        documents: Here-documents, and their first lines.
    """

    words: list[Word] = field(default_factory=list)
    line: int = 0
    shown: bool = True
    operator: str = ""
    documents: list[tuple[str, int]] = field(default_factory=list)


def parts_of(text: str) -> Iterator[Part]:
    """The parts of a script, in order."""
    part, begun = Part(), list[Part]()
    waiting: list[tuple[str, Part]] = []  # tags of here-documents that begin on the next line
    at = line = 0
    redirect: re.Match[str] | None = None
    while at < len(text):
        before = at
        if blank := _BLANK.match(text, at):
            at = blank.end()
        elif tag := _HERE_DOCUMENT.match(text, at):
            at = tag.end()
            waiting.append((tag["tag"], part))
        elif found := _REDIRECT.match(text, at):
            redirect, at = found, found.end()
        elif operator := _OPERATOR.match(text, at):
            at = operator.end()
            part.operator, redirect = operator[0], None
            begun.append(part)
            part = Part()
            if operator[0] == "\n":
                for wanted, owner in waiting:
                    body, end = _here_document(text, at, wanted)
                    owner.documents.append((body, line + 1 + text.count("\n", before + 1, at)))
                    at = end
                waiting.clear()
                yield from begun
                begun.clear()
        else:
            word, at = _word(text, at, line)
            if redirect is None:
                part.line = part.line if part.words else line
                part.words.append(word)
            else:
                part.shown = part.shown and not _leads_away(redirect, as_text(word, {}))
                redirect = None
        line += text.count("\n", before, at)
    yield from [*begun, part]


def as_text(word: Word, variables: Mapping[str, str]) -> str:
    """A word without its quotes; what commands in it answer is left as it is written."""
    return "".join(piece.expanded(variables) for piece in word)


def without_substitutions(word: Word, variables: Mapping[str, str]) -> str:
    """Likewise, with a parameter in place of each command."""
    return "".join("$_" if piece.kind == Kind.COMMAND else piece.expanded(variables) for piece in word)


def substitutions(word: Word) -> Iterator[tuple[str, int]]:
    """The commands inside a word, and the line of each."""
    for piece in word:
        if piece.kind == Kind.COMMAND:
            yield piece.text.strip("`") if piece.text[0] == "`" else piece.text[2:-1], piece.line
        elif piece.kind == Kind.PARAMETER and re.search(r"\$\(|`", piece.text):
            yield from substitutions(tuple(_quoted(piece.text[2:-1], 0, piece.line)[0]))


def _leads_away(redirect: re.Match[str], target: str) -> bool:
    return ">" in redirect["sign"] and redirect["number"] in ("", "1") and target not in _SHOWN


def _word(text: str, at: int, line: int) -> tuple[Word, int]:
    pieces: list[Piece] = []
    begin = at
    while at < len(text):
        here = line + text.count("\n", begin, at)
        if plain := _PLAIN.match(text, at):
            pieces.append(Piece(Kind.LITERAL, plain[0], here))
            at = plain.end()
        elif text[at] == "\\":
            pieces.append(Piece(Kind.LITERAL, text[at + 1 : at + 2].strip("\n"), here))
            at += 2
        elif text[at] == "'":
            end = _found(text, "'", at + 1)
            pieces.append(Piece(Kind.LITERAL, text[at + 1 : end], here))
            at = end + 1
        elif text[at] == '"':
            quoted, at = _quoted(text, at + 1, here)
            pieces += quoted or [Piece(Kind.LITERAL, "", here)]
        elif text[at] in "$`" or text[at : at + 2] in ("<(", ">("):
            piece, at = _expansion(text, at, here)
            pieces.append(piece)
        elif text[at] == "(" and _ARRAY.fullmatch(text[begin : at + 1]):
            end = _end_of_group(text, at)
            pieces.append(Piece(Kind.LITERAL, text[at:end], here))
            at = end
        else:
            break
    # A sign that begins nothing is a word of its own.
    return (tuple(pieces), at) if at > begin else ((Piece(Kind.LITERAL, text[at], line),), at + 1)


def _quoted(text: str, at: int, line: int) -> tuple[list[Piece], int]:
    """The pieces of a text in double quotes, and the position after its end."""
    pieces: list[Piece] = []
    begin = at
    while at < len(text) and text[at] != '"':
        here = line + text.count("\n", begin, at)
        if plain := _PLAIN_IN_QUOTES.match(text, at):
            pieces.append(Piece(Kind.LITERAL, plain[0], here))
            at = plain.end()
        elif text[at] == "\\":
            sign = text[at : at + 2]
            pieces.append(Piece(Kind.LITERAL, sign[1:].strip("\n") if sign[1:] in '"\\$`\n' else sign, here))
            at += 2
        else:
            piece, at = _expansion(text, at, here)
            pieces.append(piece)
    return pieces, at + 1


def _expansion(text: str, at: int, line: int) -> tuple[Piece, int]:
    """The piece at a `$`, a backquote, `<(` or `>(`, and the position after it."""
    kind = Kind.COMMAND
    if text[at] == "`":
        found = re.compile(r"`(?:\\.|[^`\\])*`?", re.DOTALL).match(text, at)
        assert found is not None
        end = found.end()
    elif text.startswith("$((", at):
        kind, end = Kind.LITERAL, _end_of_group(text, at + 1)
    elif text[at + 1 : at + 2] == "(":
        end = _end_of_group(text, at + 1)
    elif text[at + 1 : at + 2] == "{":
        kind, end = Kind.PARAMETER, _end_of_group(text, at + 1)
    else:
        name = _NAME.match(text, at)
        kind, end = (Kind.PARAMETER, name.end()) if name else (Kind.LITERAL, at + 1)
    return Piece(kind, text[at:end], line), end


def _end_of_group(text: str, at: int) -> int:
    """The position after the bracket that closes the one at a position; the end of the text where none does."""
    open_: list[str] = [_CLOSING[text[at]]]
    at += 1
    while open_ and at < len(text):
        sign, top = text[at], open_[-1]
        if sign == "\\":
            at += 1
        elif sign == top:
            open_.pop()
        elif sign == "$" and text[at + 1 : at + 2] in _CLOSING:
            at += 1
            open_.append(_CLOSING[text[at]])
        elif sign == '"':
            open_.append('"')
        elif top != '"' and sign == "'":
            at = _found(text, "'", at + 1)
        elif top == ")" and sign == "(":
            open_.append(")")
        at += 1
    return min(at, len(text))


def _found(text: str, sign: str, at: int) -> int:
    end = text.find(sign, at)
    return len(text) if end < 0 else end


def _here_document(text: str, begin: int, tag: str) -> tuple[str, int]:
    """The text up to a line that is the tag, and the position after that line."""
    end = re.compile(rf"^[\t ]*{tag}[\t ]*(\n|\Z)", re.MULTILINE).search(text, begin)
    return (text[begin:], len(text)) if end is None else (text[begin : end.start()], end.end())
