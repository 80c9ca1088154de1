"""The page of messages has them as the code says them."""

import re

import pytest

from tests.test_architecture import ROOT

PAGE = ROOT / "docs" / "how-to" / "troubleshooting.md"
ROW = re.compile(r"^\| (?P<ticks>`+)(?P<message>.+?)(?P=ticks) \|", re.MULTILINE)
MESSAGES = [row["message"] for row in ROW.finditer(PAGE.read_text(encoding="utf-8"))]
# Between two literals that Python joins.
JOINT = re.compile(r"[\"']\s+f?[\"']")
LONGEST_VALUE = 200


@pytest.fixture(scope="module")
def code() -> str:
    files = [path for folder in ("jobs", "trainers", "runtime_env") for path in sorted((ROOT / folder).rglob("*.py"))]
    return JOINT.sub("", "\n".join(path.read_text(encoding="utf-8") for path in files))


def test_there_are_messages() -> None:
    assert len(MESSAGES) > 40


@pytest.mark.parametrize("message", MESSAGES)
def test_each_message_is_one_that_the_code_gives(message: str, code: str) -> None:
    literals = [re.escape(literal) for literal in message.split("…") if literal]
    assert re.search(f".{{0,{LONGEST_VALUE}}}?".join(literals), code)
