"""Pictures of what a terminal shows, drawn from transcripts of real runs in docs/transcripts.

`NAME.jsonl` has what `rayscribe train recordings.yaml --json` printed, and becomes the view of a terminal in its midst.
`NAME.txt` has what a terminal was sent, colors included, its command in the first line.
"""

import io
import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path

from rich._export_format import CONSOLE_SVG_FORMAT
from rich.console import Console
from rich.text import Text

from trainers.distributed.console.events import NAMES, Event, Stepped, View
from trainers.distributed.console.live_view import lasting_lines, live_lines

TRANSCRIPTS = Path(__file__).parent / "transcripts"
WIDTH = 110
# How far the training is that a picture shows.
SHOWN = 0.25
# Fonts are the reader's own: nothing is fetched from elsewhere.
FORMAT = re.sub(r"@font-face \{\{.*?\}\}\s*", "", CONSOLE_SVG_FORMAT, flags=re.DOTALL)
CLASSES = {name: kind for kind, name in NAMES.items()}


def _drawn(name: str, title: str, lines: list[Text]) -> str:
    console = Console(file=io.StringIO(), record=True, width=WIDTH, force_terminal=True, color_system="truecolor")
    for line in lines:
        console.print(line, highlight=False)
    return console.export_svg(title=title, code_format=FORMAT, unique_id=name)


def _training(name: str) -> str:
    """The terminal of a training in its midst."""
    view, now_s, lines = View(began_s=0.0), 0.0, list[Text]()
    for event, now_s in _events(TRANSCRIPTS / f"{name}.jsonl"):
        lines += lasting_lines(event, view, now_s)
        view = view.after(event, now_s)
        if isinstance(event, Stepped) and event.step >= SHOWN * event.max_steps:
            break
    return _drawn(name, "rayscribe train recordings.yaml", [*lines, *live_lines(view, now_s, WIDTH)])


def _events(transcript: Path) -> Iterator[tuple[Event, float]]:
    for line in transcript.read_text(encoding="utf-8").splitlines():
        fields = json.loads(line)
        kind, after_s = CLASSES.get(fields.pop("event")), fields.pop("after_s")
        if kind is not None:
            yield fields["text"] if kind is str else kind(**fields), after_s


def _terminal(name: str) -> str:
    """What a command printed."""
    command, _, printed = (TRANSCRIPTS / f"{name}.txt").read_text(encoding="utf-8").partition("\n")
    return _drawn(name, command, Text.from_ansi(printed).split("\n", allow_blank=True))


PICTURES: dict[str, Callable[[], str]] = {
    "pictures/train.svg": lambda: _training("train"),
    "pictures/list.svg": lambda: _terminal("list"),
    "pictures/status.svg": lambda: _terminal("status"),
    "pictures/init.svg": lambda: _terminal("init"),
}
