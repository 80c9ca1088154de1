"""What an audio container says about itself, found without decoding it.

Decoders read a file that was cut short without an error: libsndfile lowers the declared length to the bytes
that are there, and MP3 and Ogg decoders just stop. The checks here compare what the container declares (a
length, a frame count, an end mark) with the bytes: half a recording never passes for a complete one.
"""

import re
import struct

import numpy as np

from trainers.errors import AudioError

# Writers that stream declare the largest number they know (0xFFFFFFFF; sox 0x7FFFF000) for want of a length.
_UNKNOWN_LENGTH_BYTES = 0x7FFFF000

# Lines of libsndfile's log: "data : 64000 (should be 47994)". `riff` in small letters is Wave64; a wrong
# RIFF or FORM length alone is a common slip of writers and loses no samples, so those names are left out.
_LOG_LENGTH = re.compile(r"(?:data|SSND|BODY|riff|Data Size)\s*:\s*(\d+) \(should be (\d+)\)")
_LOG_DS64 = re.compile(r"frame count (\d+) does not match value from 'ds64' chunk of (\d+)")

# ISO 11172-3 table of layer III bit rates (kbit/s), and ISO 13818-3 for the half and quarter sampling rates.
_MP3_KBITS_FULL_RATE = (0, 32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320)
_MP3_KBITS_LOW_RATE = (0, 8, 16, 24, 32, 40, 48, 56, 64, 80, 96, 112, 128, 144, 160)
_MP3_RATES_HZ = {3: (44_100, 48_000, 32_000), 2: (22_050, 24_000, 16_000), 0: (11_025, 12_000, 8_000)}
_MP3_VERSION_1 = 3
_MP3_TRAILERS = (b"TAG", b"APETAGEX", b"LYRICSBEGIN", b"ID3", b"3DI")


def pcm16_wav(source: bytes) -> tuple[np.ndarray, int] | None:
    """Read the commonest file of all, a WAV of plain 16-bit samples, without a decoder.

    Args:
        source: The file.

    Returns:
        Samples int16 (T, C), a view of `source`, and the sampling rate in Hz; None for any other file.

    Raises:
        AudioError: The file ends before the samples that it declares.
    """
    if source[:4] != b"RIFF" or source[8:12] != b"WAVE":
        return None
    channels = rate_hz = 0
    offset = 12
    while offset + 8 <= len(source):
        chunk, size_bytes = struct.unpack_from("<4sI", source, offset)
        offset += 8
        if chunk == b"fmt ":
            if size_bytes < 16 or offset + 16 > len(source):
                return None
            coding, channels, rate_hz, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", source, offset)
            if coding != 1 or bits != 16 or channels == 0 or frame_bytes != 2 * channels:
                return None
        elif chunk == b"data":
            if channels == 0 or not 0 < size_bytes < _UNKNOWN_LENGTH_BYTES:
                return None
            declared = size_bytes // (2 * channels)
            present = (len(source) - offset) // (2 * channels)
            refuse_if_short(min(present, declared), declared, "frames")
            samples = np.frombuffer(source, "<i2", declared * channels, offset)
            return samples.reshape(declared, channels), rate_hz
        offset += size_bytes + size_bytes % 2
    return None


def refuse_if_short(present: int, declared: int, unit: str) -> None:
    """Raise AudioError when there is less than the container declares."""
    if present < declared:
        raise AudioError(f"ends in the middle: {present} of {declared} {unit}")


def promised_frames(source: bytes, container: str, frames: int, log: str) -> int:
    """Compare what a container declares with the bytes that are there, and return the frames that are to be decoded.

    Args:
        source: The file.
        container: libsndfile's name of the container, such as "WAV" or "OGG".
        frames: Frames that libsndfile will read, after it lowered the declared length to what is there.
        log: libsndfile's log of parsing the header.

    Returns:
        The frames below which decoding is not complete: `frames`, except for MP3, where libsndfile guesses the
        length from the size of a file without a tag.

    Raises:
        AudioError: The file was cut short or, for MP3, is damaged between frames.
    """
    if container == "MP3":
        return _promised_by_mp3(source, frames)
    if container == "OGG":
        _check_ogg(source)
    elif container == "NIST":
        declared = re.search(rb"sample_count -i (\d+)", source[:1024])
        if declared:
            refuse_if_short(frames, int(declared[1]), "frames")
    elif container == "CAF":
        _check_caf(source)
    elif container != "FLAC":
        _check_log(log)
    return frames


def check_matroska(source: bytes) -> None:
    """Check that a Matroska or WebM file reaches the end of its segment.

    Raises:
        AudioError: The segment declares more bytes than there are.
    """
    header_bytes, start = _ebml_size(source, 4)
    segment = start + (header_bytes or 0)
    if header_bytes is None or source[segment : segment + 4] != b"\x18\x53\x80\x67":
        return
    segment_bytes, start = _ebml_size(source, segment + 4)
    if segment_bytes is not None:
        refuse_if_short(len(source) - start, segment_bytes, "bytes of the segment")


def _ebml_size(source: bytes, offset: int) -> tuple[int | None, int]:
    """Read an EBML length (RFC 8794, section 4): its value, None for "unknown", and the offset after it."""
    first = source[offset] if offset < len(source) else 0
    if first == 0:
        return None, offset
    length = 9 - first.bit_length()
    mask = (1 << 7 * length) - 1
    value = int.from_bytes(source[offset : offset + length], "big") & mask
    return (None if value == mask else value), offset + length


def _check_log(log: str) -> None:
    for declared, present in _LOG_LENGTH.findall(log):
        if int(declared) < _UNKNOWN_LENGTH_BYTES:
            refuse_if_short(int(present), int(declared), "bytes")
    for present, declared in _LOG_DS64.findall(log):
        refuse_if_short(int(present), int(declared), "frames")
    if "truncated file" in log:
        raise AudioError("ends in the middle: the header declares more samples than there are")


def _check_caf(source: bytes) -> None:
    offset = 8
    while offset + 12 <= len(source):
        chunk, size_bytes = struct.unpack_from(">4sq", source, offset)
        offset += 12
        if chunk == b"data" or size_bytes < 0:
            refuse_if_short(len(source) - offset, size_bytes, "bytes")
            return
        offset += size_bytes


def _check_ogg(source: bytes) -> None:
    """The last page (RFC 3533, section 6) must be there in full and carry the end-of-stream flag."""
    page = source.rfind(b"OggS")
    header = source[page : page + 27]
    segments = source[page + 27 : page + 27 + header[26]] if len(header) == 27 else b""
    if len(header) < 27 or len(segments) < header[26] or page + 27 + len(segments) + sum(segments) > len(source):
        raise AudioError("ends in the middle of its last Ogg page")
    if not header[5] & 4:
        raise AudioError("ends in the middle: its last Ogg page is not marked as the end of the stream")


def _promised_by_mp3(source: bytes, frames: int) -> int:
    """Walk over the MP3 frames: each whole, each after the other, and as many as a Xing or VBRI tag says."""
    offset = start = _mp3_start(source)
    declared = walked = 0
    while offset + 4 <= len(source):
        size_bytes = _mp3_frame_bytes(source, offset)
        if size_bytes is None:
            break
        if walked == 0:
            declared = _mp3_declared_frames(source[offset : offset + size_bytes])
        offset += size_bytes
        walked += 1
    if not walked:
        return 0  # Free format, or junk in front: nothing to go by.
    rest = source[offset:].rstrip(b"\0")
    is_tag = rest.startswith(_MP3_TRAILERS)
    if offset > len(source) or (0 < len(rest) < 4 and not is_tag):
        raise AudioError(f"ends in the middle of its MP3 frame {walked}")
    if rest and not is_tag:
        raise AudioError(f"damaged: byte {offset} of {len(source)} should start an MP3 frame, and does not")
    # The tag sits in a frame of its own, which some writers count and some do not.
    refuse_if_short(walked, declared, "MP3 frames")
    samples = 1152 if source[start + 1] >> 3 & 3 == _MP3_VERSION_1 else 576
    # A tag also tells how much of the first and last frames is padding: up to 4095 samples each way.
    return max(frames, (walked - 8) * samples) if declared else (walked - 1) * samples


def _mp3_start(source: bytes) -> int:
    offset = 0
    while source[offset : offset + 3] == b"ID3" and offset + 10 <= len(source):
        size = source[offset + 6 : offset + 10]  # Seven bits a byte (ID3v2.4, section 6.2).
        offset += 10 + (size[0] << 21 | size[1] << 14 | size[2] << 7 | size[3])
    while source[offset : offset + 1] == b"\0":
        offset += 1
    return offset


def _mp3_frame_bytes(source: bytes, offset: int) -> int | None:
    """Return the length of the layer III frame that starts at `offset`, or None where none starts."""
    sync, second, third = source[offset], source[offset + 1], source[offset + 2]
    version, layer = second >> 3 & 3, second >> 1 & 3
    bit_rate, rate = third >> 4, third >> 2 & 3
    if sync != 0xFF or second < 0xE0 or version == 1 or layer != 1 or bit_rate in (0, 15) or rate == 3:
        return None
    rate_hz = _MP3_RATES_HZ[version][rate]
    padding = third >> 1 & 1
    if version == _MP3_VERSION_1:
        return 144_000 * _MP3_KBITS_FULL_RATE[bit_rate] // rate_hz + padding
    return 72_000 * _MP3_KBITS_LOW_RATE[bit_rate] // rate_hz + padding


def _mp3_declared_frames(frame: bytes) -> int:
    """Return the frame count of a Xing, Info or VBRI tag in the first frame; 0 where there is none."""
    for tag, count_offset in ((b"Xing", 8), (b"Info", 8), (b"VBRI", 14)):
        at = frame.find(tag, 4, 64)
        count = frame[at + count_offset : at + count_offset + 4]
        if at >= 0 and len(count) == 4 and (tag == b"VBRI" or frame[at + 7] & 1):
            return int.from_bytes(count, "big")
    return 0
