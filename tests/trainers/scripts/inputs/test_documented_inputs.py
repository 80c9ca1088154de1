"""What docs/launch.md says of inputs is so."""

import re
from pathlib import Path

import yaml

from trainers.data.sources.manifest_fields import AUDIO_COLUMNS
from trainers.scripts.inputs.placeholders import Known, problems_of, resolve

PAGE = (Path(__file__).parents[4] / "docs" / "launch.md").read_text(encoding="utf-8")
INPUTS = PAGE.partition("## Inputs\n")[2].partition("\n## ")[0]
PREPARED = PAGE.partition("## Prepared once\n")[2].partition("\n## ")[0]


def changed(words: list[str]) -> list[str]:
    """Which of the words have placeholders, on a node."""
    resolved, _ = resolve(words, {}, Known("s3://b/runs/sr", 1, Path("/data")), lambda url: Path("/fetched"))
    return [word for word, there in zip(words, resolved, strict=True) if word != there]


def test_the_placeholders_of_the_page_are_known_and_its_other_braces_are_not() -> None:
    table, _, after = INPUTS.partition("| placeholder | becomes |\n")[2].partition("\n\n")
    placeholders = [word for line in table.splitlines() for word in re.findall(r"`([^`]+)`", line.split("|")[1])]
    assert len(placeholders) == 9
    assert problems_of(placeholders) == []
    assert changed(placeholders) == placeholders
    own, _, doubled = after.partition("To write a placeholder as text")
    texts = re.findall(r"`([^`]+)`", own.partition("is left to the script:")[2])
    assert len(texts) == 4 and changed(texts) == []
    assert resolve(re.findall(r"`([^`]+)`", doubled)[:1], {}, Known("", 1, None), Path)[0] == ["{data}"]


def test_the_examples_have_no_problems() -> None:
    for section, count in ((INPUTS, 5), (PREPARED, 1)):
        (block,) = re.findall(r"```yaml\n(.*?)```", section, re.DOTALL)
        script = yaml.safe_load(block)["script"]
        words = [*script["command"], *script.get("prepare", []), *script.get("env", {}).values()]
        assert problems_of(words) == []
        assert len(changed(script["command"])) == count


def test_the_columns_of_recordings_are_named() -> None:
    line = INPUTS.partition("column or key ")[2].partition(", or\n")[0]
    assert tuple(re.findall(r"`([^`]+)`", line)) == AUDIO_COLUMNS
