"""The pages, and the commands that they show: lines of blocks of shell, and those after `$ ` in blocks of a console."""

import re
import shlex
from collections.abc import Iterator
from pathlib import Path

from tests.test_architecture import ROOT

PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").rglob("*.md")])
IDS = [str(path.relative_to(ROOT)) for path in PAGES]
BLOCK = re.compile(r"^```(?P<kind>bash|sh|console)\n(?P<content>.*?)^```$", re.MULTILINE | re.DOTALL)
# Commands in a text, such as `rayscribe list`.
INLINE = re.compile(r"`(?P<command>(?:rayscribe|python|make|ray|pip) [^`\n]+)`")
COMMENT = re.compile(r"(?:^|\s)# .*$", re.MULTILINE)
PROMPT = "$ "
BETWEEN = ";&|()\n"
REDIRECTIONS = "<>"


def scripts_of(page: Path) -> list[str]:
    """What a page's blocks give to a shell, without what it prints."""
    blocks = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [typed(block["content"]) if block["kind"] == "console" else block["content"] for block in blocks]


def typed(console: str) -> str:
    """The lines of a console after its prompts."""
    return "".join(f"{line.removeprefix(PROMPT)}\n" for line in console.splitlines() if line.startswith(PROMPT))


def commands_of(script: str) -> Iterator[list[str]]:
    """The words of each command of a script, without variables before it and files behind `<` and `>`."""
    text = COMMENT.sub("", script.replace("\\\n", " "))
    lexer = shlex.shlex(text, posix=True, punctuation_chars=BETWEEN + REDIRECTIONS)
    lexer.whitespace, lexer.commenters, lexer.whitespace_split = " \t", "", True
    words: list[str] = []
    is_file = False
    for token in [*lexer, "\n"]:
        if set(token) <= set(REDIRECTIONS):
            is_file = True
        elif set(token) <= set(BETWEEN):
            if found := without_variables(words):
                yield found
            words, is_file = [], False
        elif is_file:
            is_file = False
        else:
            words.append(token)


def without_variables(words: list[str]) -> list[str]:
    """A command without the variables that are set for it alone."""
    first = next((place for place, word in enumerate(words) if not re.match(r"[A-Za-z_]+=", word)), len(words))
    return words[first:]
