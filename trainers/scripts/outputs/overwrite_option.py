"""`--overwrite_output_dir`, with which the public scripts ignore their checkpoints and start over."""

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path

from trainers.config.flags.flag import WORDS_OF_A_SWITCH
from trainers.scripts.outputs.output_folder import arguments_of, with_files

OPTION = "--overwrite_output_dir"
LEFT_OUT = f"script: without {OPTION}, with which the program would ignore the checkpoint that it continues from"
_SPELLED, _SHORTEST = OPTION.replace("-", "_"), "__overwrite"
# In a text for a shell, or an override of Hydra's.
_ELSEWHERE = re.compile(
    r"(?<!\w)(?<!no-)overwrite[_-]output(?:[_-]dir)?(?![\w-])(?!\s*[=:\s]\s*(?:false|no|off|0|null)\b)", re.IGNORECASE
)
_ON = frozenset(word for word, is_on in WORDS_OF_A_SWITCH.items() if is_on)


def without_overwriting(words: Sequence[str]) -> list[str]:
    """A command without the option; one that says no stays."""
    left_out = {place for each in _places(words) for place in each}
    return [word for place, word in enumerate(words) if place not in left_out]


def note_on_overwriting(words: Sequence[str], working_dir: Path) -> str | None:
    """What becomes of the option of a command that is started in a folder. None: it has none."""
    if any(_places(words)):
        return (
            f"script.command: {OPTION} has the program ignore its checkpoints: it is kept at the first start, and left "
            "out where the run goes on from a checkpoint"
        )
    if any(_ELSEWHERE.search(word) for word in words if not word.startswith("--")):
        return (
            f"script.command: {OPTION.removeprefix('--')} has the program ignore its checkpoints, and is not left out "
            "of a text for a shell or of an override, so it starts over at every restart: take it out, or give the "
            f"program {OPTION} as an argument, which is left out then"
        )
    name = OPTION.removeprefix("--")
    if any(_places(with_files(words, working_dir))) or str(arguments_of(words, working_dir).get(name)).lower() in _ON:
        return (
            f"script.command: {name} in a file of arguments has the program ignore its "
            "checkpoints, so it starts over at every restart: take it out of the file, or give it as an argument, "
            "which is left out then"
        )
    return None


def _places(words: Sequence[str]) -> Iterator[range]:
    """Of the words that turn it on."""
    for place, (word, following) in enumerate(pairwise([*words, ""])):
        name, equals, value = word.partition("=")
        # argparse takes what an option begins with, too.
        name = name.replace("-", "_")
        if not (name.startswith(_SHORTEST) and _SPELLED.startswith(name)):
            continue
        if equals or following.lower() not in WORDS_OF_A_SWITCH:
            if not equals or value.lower() in _ON:
                yield range(place, place + 1)
        elif following.lower() in _ON:
            yield range(place, place + 2)
