import pytest

from trainers.data.sources.formats.librispeech import read_chapter
from trainers.errors import DataError


def test_a_chapter_s_lines_are_clips_next_to_it() -> None:
    rows = list(
        read_chapter("/data/dev/84/7/84-7.trans.txt", "84-7-0000 ČAJ I KAFA\n\n84-7-0001  DOBAR DAN \n".encode())
    )
    assert [(row["id"], row["text"], row["speaker"]) for row in rows] == [
        ("84-7-0000", "ČAJ I KAFA", "84"),
        ("84-7-0001", "DOBAR DAN", "84"),
    ]
    assert rows[1]["audio"] == "/data/dev/84/7/84-7-0001.flac"


@pytest.mark.parametrize("line", ["84-7-0000", "85-7-0000 TEXT", "../84-7-0000 TEXT", "84-7-../x TEXT"])
def test_a_line_that_is_no_clip_of_the_chapter_is_named(line: str) -> None:
    with pytest.raises(DataError, match=r"84-7\.trans\.txt: line 1 is .*: write 84-7-NUMBER and its text"):
        list(read_chapter("/data/84-7.trans.txt", line.encode()))
