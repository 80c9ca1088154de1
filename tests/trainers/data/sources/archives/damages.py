"""Archives as disks and networks damage them: single bits, cuts, and what follows their end."""

import random
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from trainers.errors import RayscribeError

JUNK, JOINED = "junk behind it", "joined with itself"


def damaged(data: bytes, places: Sequence[int], flips: int) -> Iterator[tuple[str, bytes]]:
    """The same damage each time, with what it is; bits are flipped at these places."""
    draw = random.Random(36)
    for _ in range(flips):
        place, bit = draw.choice(places), draw.randrange(8)
        yield f"bit {bit} of byte {place}", data[:place] + bytes([data[place] ^ 1 << bit]) + data[place + 1 :]
    for left in sorted({*range(1, 25), *(draw.randrange(len(data)) for _ in range(flips // 8))}):
        yield f"cut by {left} bytes", data[:-left]
    yield JUNK, data + b"junk that a proxy has added"
    yield JOINED, data + data


def require_same_or_refused(
    data: bytes,
    read: Callable[[bytes], Any],
    kinds: tuple[type[RayscribeError], ...],
    *,
    places: Sequence[int] | None = None,
    flips: int = 300,
) -> None:
    """Damaged or not, it is read as it was made, or refused by an error of these kinds."""
    right, harmless = read(data), []
    for what, changed in damaged(data, places or range(len(data)), flips):
        try:
            found = read(changed)
        except kinds as error:
            assert "\n" not in str(error), what
        except Exception as error:
            raise AssertionError(f"{what}: {error!r}") from error
        else:
            assert found == right, what
            harmless.append(what)
    assert not {JUNK, JOINED} & set(harmless)
    # Times and names in headers mean nothing; of a tar without compression, neither do most zeros at its end.
    assert sum(what.startswith("bit") for what in harmless) < flips // 4


def headers_of_tar(data: bytes) -> list[int]:
    """Places of a tar that its own checksums protect: contents have none."""
    places: list[int] = []
    start = 0
    while data[start]:
        places += range(start, start + 500)
        start += 512 + -(-int(data[start + 124 : start + 135], 8) // 512) * 512
    return places
