"""Damage as disks, networks and tools do it, drawn from a seed."""

import random
from collections.abc import Callable

Mutation = Callable[[random.Random, bytes], bytes]


def flip_bits(draw: random.Random, data: bytes) -> bytes:
    damaged = bytearray(data)
    # Headers are where damage does the most, so half of it goes there.
    end = len(data) if draw.random() < 0.5 else min(len(data), 200)
    for _ in range(draw.randint(1, 8)):
        damaged[draw.randrange(end)] ^= 1 << draw.randrange(8)
    return bytes(damaged)


def cut(draw: random.Random, data: bytes) -> bytes:
    return data[: draw.randrange(len(data))]


def lose_a_block(draw: random.Random, data: bytes) -> bytes:
    start = draw.randrange(len(data))
    return data[:start] + data[start + draw.randint(1, 512) :]


def empty_a_block(draw: random.Random, data: bytes) -> bytes:
    start, size = draw.randrange(len(data)), draw.randint(1, 512)
    return data[:start] + bytes(min(size, len(data) - start)) + data[start + size :]


def claim_more(draw: random.Random, data: bytes) -> bytes:
    """Any four bytes of a header become a huge number, in either order of bytes."""
    start = draw.randrange(max(1, min(len(data), 200) - 4))
    claim = draw.choice([b"\xff\xff\xff\x7f", b"\x7f\xff\xff\xff", b"\xff\xff\xff\xff", b"77777777777"])
    return data[:start] + claim + data[start + len(claim) :]


def insert(draw: random.Random, data: bytes) -> bytes:
    start = draw.randrange(len(data))
    text = draw.choice([b"\0", b'"', b"\r", b"\n", b"\t", b"\xff\xfe", "ž".encode("cp1250"), b"\xe2\x80\xa8", b'"",""'])
    return data[:start] + text * draw.randint(1, 3) + data[start:]


def repeat_a_line(draw: random.Random, data: bytes) -> bytes:
    lines = data.split(b"\n")
    lines.insert(draw.randrange(len(lines)), draw.choice(lines))
    return b"\n".join(lines)


def in_another_encoding(draw: random.Random, data: bytes) -> bytes:
    encoding = draw.choice(["utf-16", "utf-8-sig", "cp1250", "utf-32-be"])
    return data.decode("utf-8", "replace").encode(encoding, "replace")


OF_FILES: tuple[Mutation, ...] = (flip_bits, cut, lose_a_block, empty_a_block, claim_more, insert)
OF_TEXTS: tuple[Mutation, ...] = (*OF_FILES, repeat_a_line, in_another_encoding)
