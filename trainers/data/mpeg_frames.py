"""Checks frames of MP3 and ADTS, which have no container: each must be complete, and follow the one before.

Decoders search for the next frame after a damaged one, and stop at a truncated one, without an error.
"""

from collections.abc import Callable
from itertools import pairwise

from trainers.errors import AudioError

# ISO 11172-3 table of layer III bit rates (kbit/s), and ISO 13818-3 for the half and quarter sampling rates.
_MP3_KBITS_FULL_RATE = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_KBITS_LOW_RATE = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MP3_RATES_HZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_MP3_VERSION_1 = 3
_MP2_KBITS_FULL_RATE = (0, 32, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384)
_LAYER_III, _LAYER_II = 1, 2
# Maximum rest of a frame at the start of a stream recorded from its middle; a frame has at most 1728 bytes (layer II).
_MOST_LEFT_OF_A_FRAME_BYTES = 2**11
# Maximum number of bytes, apart from zeros, that are skipped in search of the first frame.
_MOST_JUNK_BYTES = 2**16

# Returns the length of the frame that starts at an offset, or None if no frame starts there.
_FrameBytes = Callable[[bytes, int], int | None]


def refuse_if_short(present: int, declared: int, unit: str) -> None:
    """Raises AudioError if there is less than the container declares."""
    if present < declared:
        raise AudioError(f"ends in the middle: {present} of {declared} {unit}")


def promised_by_mp3(source: bytes, frames: int) -> int:
    """Iterates over the frames of an MP3, and compares their number with the file's Xing, Info or VBRI tags.

    Args:
        source: The file, or the data of a WAV.
        frames: Frames of sound that a decoder found declared; 0 if not known.

    Returns:
        The minimum number of frames of sound of a complete decoding.

    Raises:
        AudioError: The file is truncated, or damaged between frames.
    """
    offsets = _walk(source, _mp3_frame_bytes, "MP3")
    if not offsets:
        return 0  # Free format: nothing to compare with.
    # In joined recordings, each has a tag. The tag is in a frame of its own, which some writers do not count.
    declared = (_mp3_declared_frames(source[offset : offset + 192]) for offset in offsets)
    tags = [(number, count) for number, count in enumerate(declared) if count]
    for (number, count), (end, _) in pairwise([*tags, (len(offsets), 0)]):
        refuse_if_short(end - number, count, "MP3 frames")
    start, walked = offsets[0], len(offsets)
    version, layer = source[start + 1] >> 3 & 3, source[start + 1] >> 1 & 3
    samples = 1152 if version == _MP3_VERSION_1 or layer == _LAYER_II else 576
    # A tag also has the padding in the first and last frames: up to 4095 samples each.
    return max(frames, (walked - 8) * samples) if tags else (walked - 1) * samples


def check_adts(source: bytes) -> None:
    """Checks the frames of an AAC stream (ISO 13818-7, section 6.2); raises AudioError if truncated or damaged."""
    _walk(source, _adts_frame_bytes, "AAC")


def id3_end(source: bytes, offset: int = 0) -> int:
    """Returns the offset after the ID3 tags that start at an offset."""
    while source[offset : offset + 3] == b"ID3" and offset + 10 <= len(source):
        size = source[offset + 6 : offset + 10]  # Seven bits per byte (ID3v2.4, section 6.2).
        offset += 10 + (size[0] << 21 | size[1] << 14 | size[2] << 7 | size[3])
    return offset


def _walk(source: bytes, frame_bytes: _FrameBytes, name: str) -> list[int]:
    """Returns the offsets of the frames; empty if there is no first frame."""
    offset, offsets = _first_frame(source, frame_bytes), list[int]()
    if offset < 0:
        return []
    while offset + 4 <= len(source):
        size_bytes = frame_bytes(source, offset)
        if size_bytes is not None:
            offsets.append(offset)
            offset += size_bytes
        elif (after := _after_tag(source, offset)) > offset:
            offset = min(after, len(source))
        else:
            break
    rest = source[offset:].rstrip(b"\0")
    if offset > len(source) or 0 < len(rest) < 4:
        raise AudioError(f"ends in the middle of its {name} frame {len(offsets)}")
    if rest:
        raise AudioError(f"damaged: byte {offset} of {len(source)} should start an {name} frame, and does not")
    return offsets


def _first_frame(source: bytes, frame_bytes: _FrameBytes) -> int:
    """Returns the offset of the first frame, which is the first that another frame follows; -1 if there is none.

    Streams may be recorded from their middle on. After a tag, only zeros that its size does not include may follow.
    """
    start = id3_end(source)
    offset = first = len(source) - len(source[start:].lstrip(b"\0"))
    while 0 <= offset < min(first + _MOST_JUNK_BYTES, len(source) - 4):
        after = offset + (frame_bytes(source, offset) or 0)
        follows = after + 4 <= len(source) and (frame_bytes(source, after) or _after_tag(source, after) > after)
        if after > offset and (follows or offset == first):
            is_first = offset == first if start else offset <= _MOST_LEFT_OF_A_FRAME_BYTES
            return offset if is_first else start
        offset = source.find(b"\xff", offset + 1)
    return -1


def _after_tag(source: bytes, offset: int) -> int:
    """Returns the offset after the tag that starts at an offset; the same offset if there is no tag."""
    if source.startswith(b"ID3", offset):
        return id3_end(source, offset)
    if source.startswith(b"TAG", offset):
        return offset + 128
    if source.startswith(b"APETAGEX", offset):
        size = int.from_bytes(source[offset + 12 : offset + 16], "little")  # Without a header, with the footer.
        return offset + 32 + size if source[offset + 23 : offset + 24] >= b"\xa0" else offset + 32
    if source.startswith((b"LYRICSBEGIN", b"3DI"), offset):
        return len(source)
    footer = source.find(b"APETAGEX", offset)  # APEv1 has no header.
    if footer >= 0 and footer + 32 - int.from_bytes(source[footer + 12 : footer + 16], "little") == offset:
        return footer + 32
    return offset


def _adts_frame_bytes(source: bytes, offset: int) -> int | None:
    header = source[offset : offset + 7]
    if len(header) < 7:
        # A frame that is truncated in its header has more bytes than the file.
        return 7 if header[:1] == b"\xff" else None
    size_bytes = (header[3] & 3) << 11 | header[4] << 3 | header[5] >> 5
    if header[0] != 0xFF or header[1] & 0xF6 != 0xF0 or header[2] >> 2 & 15 > 12 or size_bytes < 7:
        return None
    return size_bytes


def _mp3_frame_bytes(source: bytes, offset: int) -> int | None:
    sync, second, third = source[offset], source[offset + 1], source[offset + 2]
    version, layer = second >> 3 & 3, second >> 1 & 3
    bit_rate, rate = third >> 4, third >> 2 & 3
    if sync != 0xFF or second < 0xE0 or version == 1 or bit_rate in (0, 15) or rate == 3:
        return None
    rate_hz = _MP3_RATES_HZ[version][rate]
    padding = third >> 1 & 1
    if layer == _LAYER_II:
        kbits = _MP2_KBITS_FULL_RATE if version == _MP3_VERSION_1 else _MP3_KBITS_LOW_RATE
        return 144_000 * kbits[bit_rate] // rate_hz + padding
    if layer != _LAYER_III:
        return None
    if version == _MP3_VERSION_1:
        return 144_000 * _MP3_KBITS_FULL_RATE[bit_rate] // rate_hz + padding
    return 72_000 * _MP3_KBITS_LOW_RATE[bit_rate] // rate_hz + padding


def _mp3_declared_frames(frame: bytes) -> int:
    """Returns the frame count in a Xing, Info or VBRI tag, whose frame has no sound; 0 if there is no tag."""
    for tag, count_offset in ((b"Xing", 8), (b"Info", 8), (b"VBRI", 14)):
        at = frame.find(tag, 4, 64)
        count = frame[at + count_offset : at + count_offset + 4]
        if at >= 0 and not any(frame[6:at]) and len(count) == 4 and (tag == b"VBRI" or frame[at + 7] & 1):
            return int.from_bytes(count, "big")
    return 0
