from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tqdm import tqdm  # type: ignore[import-untyped]

from trainers.scripts.program import BAR_INTERVAL_S, LONGEST_BYTES, OutputLines


def shown(*pieces: tuple[bytes, float]) -> list[str]:
    lines = OutputLines()
    found = [line for piece, now_s in pieces for line in lines.take(piece, now_s)]
    return [*found, *lines.end()]


def test_lines_come_when_they_are_complete() -> None:
    lines = OutputLines()
    assert list(lines.take(b"a\nb", 0)) == ["a"]
    assert list(lines.take(b"c\r\n\nd", 0)) == ["bc", ""]
    assert list(lines.end()) == ["d"]


@pytest.mark.parametrize("style", [b"\r%d%%", b"%d%%\r"])
def test_a_bar_is_shown_now_and_then_and_at_its_end(style: bytes) -> None:
    pieces = [(style % number, number / 10) for number in range(100)]
    assert shown(*pieces, (b"\n", 10.0)) == ["0%", "50%", "99%"]
    assert shown(*pieces) == ["0%", "50%", "99%"]


def test_a_bar_that_is_written_as_a_whole_leaves_what_was_seen_last() -> None:
    assert shown((b"\r 1%\r 2%\r100%\nnext\n", 0.0)) == ["100%", "next"]


def test_a_bar_is_shown_again_once_time_has_passed_without_new_output() -> None:
    lines = OutputLines()
    assert list(lines.take(b"\r1%", 0.0)) == ["1%"]
    assert list(lines.take(b"\r2%", 1.0)) == []
    assert list(lines.take(b"", BAR_INTERVAL_S)) == ["2%"]
    assert list(lines.take(b"", 2 * BAR_INTERVAL_S)) == []


def test_a_line_above_a_bar_that_is_left_open_is_shown_when_nothing_follows() -> None:
    lines = OutputLines()
    list(lines.take(b"\r1%\n\r50%\x1b[A", 0.0))
    assert list(lines.take(b"saving the model\n", 1.0)) == []
    assert list(lines.take(b"", 1.1)) == ["saving the model"]
    assert list(lines.take(b"saved\n", 1.2)) == ["saved"]


def test_a_line_without_an_end_is_given_in_parts() -> None:
    lines = OutputLines()
    found = [line for _ in range(3) for line in lines.take(b"x" * LONGEST_BYTES, 0.0)]
    assert sum(map(len, [*found, *lines.end()])) == 3 * LONGEST_BYTES and len(found) >= 1


def test_a_line_without_an_end_behind_a_bar_is_given_in_parts() -> None:
    lines = OutputLines()
    assert list(lines.take(b"1%\r", 0.0)) == ["1%"]
    found = [line for _ in range(3) for line in lines.take(b"x" * LONGEST_BYTES, 0.0)]
    assert sum(map(len, [*found, *lines.end()])) == 3 * LONGEST_BYTES and len(found) >= 2


class _Written(list[bytes]):
    """A file that keeps each write by itself."""

    def write(self, text: str) -> None:
        self.append(text.encode())

    def flush(self) -> None:
        """Nothing waits."""


@pytest.mark.parametrize("together", [1, 2, 3, 1000])
def test_bars_below_each_other_are_shown_as_one_without_what_moves_the_cursor(together: int) -> None:
    written = _Written()
    for _ in tqdm(range(4), desc="epochs", mininterval=0, file=written):
        for _ in tqdm(range(25), desc="steps", mininterval=0, file=written, position=1, leave=False):
            pass
    written.write("\x1b[32mdone\x1b[0m\n")
    pieces = [b"".join(written[start : start + together]) for start in range(0, len(written), together)]
    lines = shown(*((piece, 0.02 * together * number) for number, piece in enumerate(pieces)))
    assert "\x1b" not in "".join(lines) and lines[-1] == "done"
    assert [line for line in lines if line.startswith("epochs: 100%")]
    assert len(lines) < 10


@pytest.mark.parametrize("size", [1, 2, 3, 5, 100])
def test_control_sequences_are_left_out_however_they_are_cut(size: int) -> None:
    text = b"\x1b[1;31mred\x1b[0m\x1b]0;title\x07 and\x1b[K\r\x1b[2Kplain\x1b(B\n\x1b[?25hend\n"
    assert shown(*((text[start : start + size], 0.0) for start in range(0, len(text), size)))[-2:] == ["plain", "end"]


def test_bytes_that_are_no_text_are_shown() -> None:
    assert shown((b"\xff!\n", 0.0)) == ["�!"]


@given(
    st.lists(st.text(st.characters(exclude_characters="\r\n\x1b", codec="utf-8"), min_size=1), min_size=1), st.data()
)
def test_no_line_is_lost_however_it_is_cut(texts: Sequence[str], data: st.DataObject) -> None:
    content = "".join(f"{text}\n" for text in texts if text.strip()).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(content)), max_size=5)))
    pieces = [content[start:end] for start, end in zip([0, *cuts], [*cuts, len(content)], strict=True)]
    assert shown(*((piece, 0.0) for piece in pieces)) == [text for text in texts if text.strip()]
