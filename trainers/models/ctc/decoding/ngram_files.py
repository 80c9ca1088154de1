"""Files of n-gram language models, as far as they can be told apart without loading them. Loads no heavy library."""

import re
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from trainers.errors import ConfigError
from trainers.models.ctc.decoding.lexicon import SENTENCE_MARKS

# Of KenLM, as flashlight-text has it.
MAX_ORDER = 6
BINARY_VERSION = 5
_BINARY = b"mmap lm http://kheafield.com/code "
_VERSION = re.compile(rb"format version (\d+)\n")
# Order and kind are behind the sanity values of the header (lm/binary_format.cc), which are aligned to 8 bytes.
_ORDER_AT, _KIND_AT = 88, 96
_KINDS = ("probing", "rest costs", "trie", "quantized trie", "array trie", "quantized array trie")
_COMPRESSED = {b"\x1f\x8b": "gzip", b"BZh": "bzip2", b"\xfd7zXZ": "xz", b"\x28\xb5\x2f\xfd": "zstd"}
_COUNT = re.compile(r"ngram\s+(\d+)\s*=\s*(\d+)")


@dataclass(frozen=True)
class NgramFile:
    """What the start of a file says of its language model: its kind, and the most words, or tokens, of an n-gram."""

    kind: str
    order: int

    @property
    def is_arpa(self) -> bool:
        return self.kind == "ARPA"


def recognize(start: bytes, location: str) -> NgramFile:
    """What kind of language model a file holds, by its first bytes; a ConfigError, if KenLM reads none there."""
    packed = next((name for magic, name in _COMPRESSED.items() if start.startswith(magic)), None)
    if packed is not None:
        raise ConfigError(f"decode.lm: {location} is compressed ({packed}): unpack it, and name the ARPA file")
    found = _binary(start, location) if start.startswith(_BINARY) else _arpa(start, location)
    if not 1 <= found.order <= MAX_ORDER:
        raise ConfigError(
            f"decode.lm: {location}: an n-gram model of order {found.order}, and KenLM reads up to {MAX_ORDER}: "
            "estimate one of a lower order"
        )
    return found


def _binary(start: bytes, location: str) -> NgramFile:
    version = _VERSION.match(start, len(_BINARY))
    if version is None:
        raise ConfigError(f"decode.lm: {location}: KenLM did not finish this binary: build it again from its ARPA file")
    complete = len(start) >= _KIND_AT + 4
    kind = struct.unpack_from("<I", start, _KIND_AT)[0] if complete else len(_KINDS)
    if int(version[1]) != BINARY_VERSION or kind >= len(_KINDS):
        raise ConfigError(
            f"decode.lm: {location}: a KenLM binary of version {int(version[1])}, which is not {BINARY_VERSION}, or "
            "cut off, or of a kind that KenLM does not know: build it again from its ARPA file, or give that"
        )
    return NgramFile(f"KenLM binary ({_KINDS[kind]})", start[_ORDER_AT])


def _arpa(start: bytes, location: str) -> NgramFile:
    fix = "give an ARPA file or a KenLM binary"
    lines = iter(start.decode("utf-8", errors="replace").splitlines())
    first = next((line.strip() for line in lines if line.strip()), "")
    if first != "\\data\\":
        raise ConfigError(f"decode.lm: {location}: its first line is {first[:40]!r}, not \\data\\ as of ARPA: {fix}")
    orders: list[int] = []
    for line in lines:
        if line.startswith("\\1-grams:"):
            break
        if line.strip():
            count = _COUNT.fullmatch(line.strip())
            if count is None or int(count[1]) != len(orders) + 1:
                raise ConfigError(f"decode.lm: {location}: {line.strip()[:40]!r} is not a count of n-grams: {fix}")
            orders.append(int(count[2]))
    else:
        raise ConfigError(f"decode.lm: {location} ends before its 1-grams: {fix}")
    return NgramFile("ARPA", len(orders))


def words_of(arpa: Path) -> Iterator[str]:
    """The words of an ARPA file, those that mark the ends of a sentence and unknown words not among them."""
    with arpa.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            if line.startswith("\\1-grams:"):
                break
        for line in file:
            fields = line.split()
            if not fields:
                continue
            if fields[0].startswith("\\") and len(fields) == 1:
                return
            if len(fields) > 1 and fields[1] not in SENTENCE_MARKS:
                yield fields[1]
