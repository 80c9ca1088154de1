"""Checks what an audio container declares about itself, without decoding it.

Decoders read a truncated file without an error: libsndfile lowers the declared length to the bytes that exist, and MP3
and Ogg decoders just stop, or skip damaged parts. A partial recording must never pass for a complete one.
"""

import hashlib
import re
import struct
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Literal

import numpy as np

from trainers.data.mpeg_frames import check_adts, id3_end, promised_by_mp3, refuse_if_short
from trainers.errors import AudioError

# Streaming writers declare the largest length of 32 bits (FFmpeg), of 31 bits (arecord, LAME), or a page less (SoX,
# espeak), or a few bytes less than these. Other lengths are true, even above 2 GiB.
_LARGEST_LENGTHS_BYTES, _LESS_BYTES = (2**32 - 1, 2**31, 0x7FFFF000), 64

# Segment and cluster (RFC 9559, section 5.1), and their elements; also the header of a following segment.
_MATROSKA_MASTERS = {b"\x18\x53\x80\x67", b"\x1f\x43\xb6\x75"}
_MATROSKA_PARTS = {b"\x11\x4d\x9b\x74", b"\x15\x49\xa9\x66", b"\x16\x54\xae\x6b", b"\x1c\x53\xbb\x6b"}
_MATROSKA_PARTS |= {b"\x12\x54\xc3\x67", b"\x10\x43\xa7\x70", b"\x19\x41\xa4\x69", b"\x1a\x45\xdf\xa3"}
_MATROSKA_NUMBERS, _MATROSKA_BLOCKS = {b"\xe7", b"\xa7", b"\xab"}, {b"\xa3", b"\xa0"}
_MATROSKA_PARTS |= {*_MATROSKA_NUMBERS, *_MATROSKA_BLOCKS, b"\x58\x54", b"\xaf", b"\xec", b"\xbf"}
_MATROSKA_NUMBER_BYTES = 8

# Lines of libsndfile's log: "data : 64000 (should be 47994)". `riff` in lower case is Wave64; a wrong RIFF or FORM
# length alone is a common error of writers and loses no samples, so those names are left out.
_LOG_W64 = re.compile(r"riff\s*: (\d+) \(should be (\d+)\)")
_LOG_LENGTH = re.compile(r"(?:data|SSND|BODY|riff|Data Size)\s*:\s*(\d+) \(should be (\d+)\)")
_W64_ALIGNMENT_BYTES = 8
_LOG_FRAMES = re.compile(r"(?:Frames|Valid frames|Cols|OneShotHiSamples)\s*: (\d+)")
_LOG_DS64 = re.compile(r"frame count (\d+) does not match value from 'ds64' chunk of (\d+)")

# ETSI TS 102 366, table 4.13: frames of AC-3 have 1536 samples; versions above are E-AC-3.
_AC3_RATES_HZ = (48_000, 44_100, 32_000)
_AC3_KBITS = (32, 40, 48, 56, 64, 80, 96, 112, 128, 160, 192, 224, 256, 320, 384, 448, 512, 576, 640)
_AC3_LAST_VERSION = 10

# Rates in Hz by code in a FLAC frame's header, for codes without further bytes; 0 means the rate in STREAMINFO.
_FLAC_RATES_HZ = (0, 88_200, 176_400, 192_000, 8_000, 16_000, 22_050, 24_000, 32_000, 44_100, 48_000, 96_000)
# Codes with further bytes: the number of bytes, and their unit in Hz.
_FLAC_CODED_RATES = {12: (1, 1000), 13: (2, 1), 14: (2, 10)}


_CHUNK_NAME = re.compile(rb"[ -~]{4}")
# Chunks that writers put after the samples.
_CHUNKS_BEHIND = re.compile(rb"LIST|[iI][dD]3 |bext|iXML|_PMX|axml|cue |plst|smpl|inst|fact|PEAK|afsp|JUNK|junk|PAD ")
_TAGS = (b"TAG", b"APETAGEX")


# PCM, float, A-law, µ-law, and the code whose extension names one of them.
_PLAIN_CODINGS = (1, 3, 6, 7, 0xFFFE)


def _is_open(size_bytes: int) -> bool:
    """Returns True if a 32-bit length is a placeholder of a writer that did not know the length."""
    return size_bytes == 0 or any(0 <= largest - size_bytes <= _LESS_BYTES for largest in _LARGEST_LENGTHS_BYTES)


def with_length(source: bytes) -> bytes:
    """Returns a WAV whose data length was left at 0 with that length filled in; any other file unchanged.

    The length stays 0 if the writer could not seek back, or was killed. Bytes that are not a chunk count as samples.
    """
    for chunk, offset, size_bytes in _wav_chunks(source):
        if chunk == b"data":
            if size_bytes == 0 and not _are_chunks(source, offset):
                behind = (found.start() for found in _CHUNKS_BEHIND.finditer(source, offset))
                end = next((place for place in behind if _are_chunks(source, place)), len(source))
                length = min(end - offset, 2**32 - 1)
                return source[: offset - 4] + struct.pack("<I", length) + source[offset:]
            break
    return source


def _are_chunks(source: bytes, offset: int) -> bool:
    """Returns True if a WAV from an offset on is a sequence of chunks that ends exactly at its end, or is empty."""
    following = list(_wav_chunks(source, offset))
    *_, (_, start, last_bytes) = following or [(b"", offset, 0)]
    # The last chunk's padding byte may be missing.
    ends = 0 <= start + last_bytes + last_bytes % 2 - len(source) <= 1
    return ends and all(_CHUNK_NAME.fullmatch(name) for name, _, _ in following)


def pcm16_wav(source: bytes) -> tuple[np.ndarray, int] | None:
    """Reads the most common format, a WAV of plain 16-bit samples, without a decoder, in an eighth of the time.

    Returns:
        Samples int16 (T, C), a view of `source`, and the sampling rate in Hz; None for any other file.

    Raises:
        AudioError: The file ends before the samples that it declares.
    """
    channels = rate_hz = 0
    for chunk, offset, size_bytes in _wav_chunks(source):
        if chunk == b"fmt ":
            if size_bytes < 16 or offset + 16 > len(source):
                return None
            coding, channels, rate_hz, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", source, offset)
            if coding != 1 or bits != 16 or channels == 0 or frame_bytes != 2 * channels:
                return None
        elif chunk == b"data":
            if channels == 0 or _is_open(size_bytes):
                return None
            declared = size_bytes // (2 * channels)
            present = (len(source) - offset) // (2 * channels)
            refuse_if_short(min(present, declared), declared, "frames")
            samples = np.frombuffer(source, "<i2", declared * channels, offset)
            return samples.reshape(declared, channels), rate_hz
    return None


def _wav_chunks(source: bytes, offset: int = 12) -> Iterator[tuple[bytes, int, int]]:
    """Yields name, offset and declared size in bytes of the content of each chunk of a WAV; nothing for other files."""
    offset = offset if source[:4] == b"RIFF" and source[8:12] == b"WAVE" else len(source)
    while offset + 8 <= len(source):
        chunk, size_bytes = struct.unpack_from("<4sI", source, offset)
        yield chunk, offset + 8, size_bytes
        offset += 8 + size_bytes + size_bytes % 2


def promised_frames(source: bytes, container: str, frames: int, log: str) -> int:
    """Compares what a container declares with the bytes that exist.

    Args:
        source: The file.
        container: libsndfile's name of the container, such as "WAV" or "OGG".
        frames: Frames that libsndfile will read, after lowering the declared length to the bytes that exist.
        log: libsndfile's log of parsing the header.

    Returns:
        The minimum number of frames of a complete decoding; libsndfile only guesses it for an MP3 without a tag.

    Raises:
        AudioError: The file is truncated or, for MP3, is damaged between frames.
    """
    if container == "MP3":
        return promised_by_mp3(source, frames)
    if container == "OGG":
        _check_ogg(source)
    elif container == "NIST":
        _check_frames(frames, re.findall(r"sample_count -i (\d+)", source[:1024].decode("latin-1")))
    elif container != "FLAC":
        _check_log(log)
        if container == "CAF":
            _check_caf(source)
        if container in ("AVR", "CAF", "MAT4", "MAT5", "MPC2K", "SVX"):
            _check_frames(frames, _LOG_FRAMES.findall(log))
    if "WAVE_FORMAT_MPEGLAYER3" in log:
        start = source.index(b"data") + 8
        return promised_by_mp3(source[start : start + int.from_bytes(source[start - 4 : start], "little")], 0)
    return frames


def refuse_joined(source: bytes) -> None:
    """Raises AudioError for several WAV, AIFF or FLAC files in one, of which decoders read only the first."""
    order: Literal["little", "big"] = "little" if source[:4] == b"RIFF" else "big"
    size_bytes = int.from_bytes(source[4:8], order)
    end = 8 + size_bytes + size_bytes % 2
    is_iff = source[:4] in (b"RIFF", b"FORM") and source[end : end + 4] == source[:4]
    if is_iff and source[end + 8 : end + 12] == source[8:12]:
        raise _several("WAV or AIFF")
    if source[:4] == b"fLaC" and source.find(source[:8], 8) > 0:
        raise _several("FLAC")


def refuse_more_than_declared(source: bytes) -> None:
    """Raises AudioError for a WAV with more bytes than it declares, apart from chunks and tags; decoders drop them."""
    end, samples_bytes = 12, None
    for chunk, offset, size_bytes in _wav_chunks(source):
        if not _CHUNK_NAME.fullmatch(chunk):
            break
        if chunk == b"data":
            if _is_open(size_bytes):
                return
            samples_bytes = size_bytes
        end = offset + size_bytes + size_bytes % 2
    rest = source[end:]
    # Some writers pad a file with zeros; some tags are those of MP3.
    if samples_bytes is not None and rest.strip(b"\0") and not rest.startswith(_TAGS):
        raise AudioError(
            f"damaged, or its header is wrong: after {samples_bytes} bytes of samples {len(rest)} more follow"
        )


def refuse_contradiction(source: bytes) -> None:
    """Raises AudioError for a WAV of plain samples whose channel count does not fit its frame size."""
    content = next(((at, size) for name, at, size in _wav_chunks(source) if name == b"fmt "), (0, 0))
    if content[1] < 16 or content[0] + 16 > len(source):
        return
    coding, channels, _, _, frame_bytes, bits = struct.unpack_from("<HHIIHH", source, content[0])
    if coding not in _PLAIN_CODINGS or not channels or not frame_bytes:
        return
    # Samples may have more bytes than their bits need.
    if frame_bytes % channels or frame_bytes // channels < -(-bits // 8):
        raise AudioError(f"damaged header: frames of {frame_bytes} bytes do not fit {channels} channels of {bits} bits")


def _several(name: str) -> AudioError:
    return AudioError(f"has several {name} recordings, one after the other: store each in a file, or all in one")


def check_container(source: bytes, container: str) -> tuple[int, int]:
    """Checks what FFmpeg does not: that a container has its declared length, and its checksums.

    Args:
        source: The file.
        container: FFmpeg's name of the format, such as "matroska,webm".

    Returns:
        The minimum numbers of frames, and of packets of all streams, of a complete decoding; 0 if not declared.

    Raises:
        AudioError: The file is truncated or damaged.
    """
    if container == "matroska,webm":
        return 0, _check_matroska(source)
    checks = {
        "ogg": _check_ogg,
        "mov,mp4,m4a,3gp,3g2,mj2": _check_mp4,
        "asf": _check_asf,
        "caf": _check_caf,
        "flv": _check_flv,
        "mpegts": _check_mpegts,
        "ac3": _check_ac3,
        "eac3": _check_ac3,
        "aac": check_adts,
    }
    if container in checks:
        checks[container](source)
    return promised_by_mp3(source, 0) if container == "mp3" else 0, 0


def _offsets(source: bytes, name: str, size_at: Callable[[int], int]) -> list[int]:
    """Returns the offsets of chunks (called `name`), all of which must be complete, and the end of the last one.

    `size_at` returns the bytes of the chunk at an offset; 0 if no chunk starts there, or its size is unknown.
    """
    offsets = [0]
    while offsets[-1] < len(source) and (size_bytes := size_at(offsets[-1])):
        refuse_if_short(len(source) - offsets[-1], size_bytes, f"bytes of the {name} at byte {offsets[-1]}")
        offsets.append(offsets[-1] + size_bytes)
    return offsets


def _check_mp4(source: bytes) -> None:
    """Checks the boxes (ISO 14496-12, section 4.2); at most one may be an index, since only one is read."""

    def size_at(offset: int) -> int:
        size_bytes = int.from_bytes(source[offset : offset + 4], "big")
        if size_bytes == 1:
            size_bytes = int.from_bytes(source[offset + 8 : offset + 16], "big")
        return size_bytes if size_bytes >= 8 else 0  # 0 means up to the end of the file.

    if sum(source[offset + 4 : offset + 8] == b"moov" for offset in _offsets(source, "MP4 box", size_at)) > 1:
        raise _several("MP4")


def _check_asf(source: bytes) -> None:
    """Checks the objects (ASF specification, section 2.1)."""

    def size_at(offset: int) -> int:
        size_bytes = int.from_bytes(source[offset + 16 : offset + 24], "little")
        return size_bytes if size_bytes >= 24 else 0  # The size is unknown in a recorded stream.

    _offsets(source, "ASF object", size_at)


def _check_flv(source: bytes) -> None:
    """Checks that every tag (Adobe FLV specification 10.1, annex E) is complete, and the declared size of the file."""
    declared = re.search(rb"\x00\x08filesize\x00(.{8})", source[:4096], re.DOTALL)
    if declared:
        refuse_if_short(len(source), int(max(0.0, struct.unpack(">d", declared[1])[0])), "bytes")
    offset = int.from_bytes(source[5:9], "big") + 4
    while offset + 11 <= len(source):
        size_bytes = 11 + int.from_bytes(source[offset + 1 : offset + 4], "big")
        refuse_if_short(len(source) - offset, size_bytes, f"bytes of the FLV tag at byte {offset}")
        after = source[offset + size_bytes : offset + size_bytes + 4]
        if len(after) == 4 and int.from_bytes(after, "big") not in (0, size_bytes):
            raise AudioError(f"damaged: the FLV tag at byte {offset} has another size before and after its data")
        offset += size_bytes + 4
    refuse_if_short(0, max(0, len(source) - offset), "bytes of its last FLV tag")


def _check_ac3(source: bytes) -> None:
    """Checks the frames of AC-3 or E-AC-3 (ETSI TS 102 366, sections 4.3 and E.1.2)."""

    def size_at(offset: int) -> int:
        frame = source[offset : offset + 6]
        if len(frame) < 6 or frame[:2] != b"\x0b\x77":
            return 0
        if frame[5] >> 3 > _AC3_LAST_VERSION:
            return 2 * ((int.from_bytes(frame[2:4], "big") & 0x7FF) + 1)
        rate, size = frame[4] >> 6, frame[4] & 63
        if rate >= len(_AC3_RATES_HZ) or size // 2 >= len(_AC3_KBITS):
            return 0
        return 2 * (96_000 * _AC3_KBITS[size // 2] // _AC3_RATES_HZ[rate] + (rate == 1) * (size & 1))

    end = _offsets(source, "AC-3 frame", size_at)[-1]
    if source[end:].strip(b"\0"):
        raise AudioError(f"damaged: byte {end} of {len(source)} should start an AC-3 frame, and does not")


def _check_mpegts(source: bytes) -> None:
    """Checks that the packets of a transport stream (ISO 13818-1, section 2.4.3.2) are complete and contiguous."""
    packet_bytes = 188
    if source[:1] == source[packet_bytes : packet_bytes + 1] == b"\x47":
        if len(source) % packet_bytes:
            raise AudioError("ends in the middle of its last MPEG-TS packet")
        if source[::packet_bytes].strip(b"\x47"):
            raise AudioError("damaged: not all of its MPEG-TS packets start as one does")


def _check_matroska(source: bytes) -> int:
    """Checks that the segment of a Matroska or WebM file is complete, and the checksums of its elements.

    Returns its number of blocks, since a decoder skips blocks with damaged headers.
    """
    header_bytes, start = _ebml_size(source, 4)
    segment = start + (header_bytes or 0)
    if header_bytes is None or source[segment : segment + 4] != b"\x18\x53\x80\x67":
        return 0
    blocks = 0
    segment_bytes, start = _ebml_size(source, segment + 4)
    if segment_bytes is not None:
        refuse_if_short(len(source) - start, segment_bytes, "bytes of the segment")
    # Zeros may follow a segment of known size; in a segment of unknown size they are unwritten data.
    while start < len(source) and (segment_bytes is None or source[start] or source[start:].strip(b"\0")):
        # The number of leading zeros in an element's first byte is the length of its ID, less one.
        after_id = start + 9 - source[start].bit_length()
        element, (element_bytes, data) = source[start:after_id], _ebml_size(source, after_id)
        # The size is unknown in a live recording.
        known = _MATROSKA_MASTERS if element_bytes is None else _MATROSKA_MASTERS | _MATROSKA_PARTS
        is_too_long = element in _MATROSKA_NUMBERS and (element_bytes or 0) > _MATROSKA_NUMBER_BYTES
        if element not in known or is_too_long:
            raise AudioError(f"damaged: byte {start} of {len(source)} should start a Matroska element, and does not")
        end = data + (element_bytes or 0)
        refuse_if_short(len(source) - data, element_bytes or 0, f"bytes of the Matroska element at byte {start}")
        if element_bytes and source[data : data + 2] == b"\xbf\x84":  # CRC-32 (RFC 8794, 11.3.1) of the bytes after it.
            stored = int.from_bytes(source[data + 2 : data + 6], "little")
            if zlib.crc32(source[data + 6 : end]) != stored:
                raise AudioError(f"damaged: the Matroska element at byte {start} has another checksum than it says")
        blocks += element in _MATROSKA_BLOCKS
        start = data if element in _MATROSKA_MASTERS else end
    return blocks


def _ebml_size(source: bytes, offset: int) -> tuple[int | None, int]:
    """Reads an EBML length (RFC 8794, section 4): its value, None for "unknown", and the offset after it."""
    first = source[offset] if offset < len(source) else 0
    if first == 0:
        return None, offset
    length = 9 - first.bit_length()
    mask = (1 << 7 * length) - 1
    value = int.from_bytes(source[offset : offset + length], "big") & mask
    return (None if value == mask else value), offset + length


def _check_frames(frames: int, declared: list[str]) -> None:
    """Checks the declared frames; in these containers libsndfile also decodes what follows the samples."""
    if declared:
        refuse_if_short(frames, int(declared[-1]), "frames")
        if frames > int(declared[-1]):
            raise AudioError(f"damaged: {frames} frames are there, where its header declares {declared[-1]}")


def _check_log(log: str) -> None:
    for declared, present in _LOG_LENGTH.findall(log):
        if not _is_open(int(declared)):
            refuse_if_short(int(present), int(declared), "bytes")
    for declared, present in _LOG_W64.findall(log):
        if int(present) >= int(declared) + _W64_ALIGNMENT_BYTES:  # libsndfile decodes the surplus as samples.
            raise AudioError(f"damaged: it has {present} bytes, and declares {declared}")
    for present, declared in _LOG_DS64.findall(log):
        refuse_if_short(int(present), int(declared), "frames")
    if "multi-segment file" in log:  # libsndfile decodes everything after the first block of a VOC as samples.
        raise AudioError("damaged, or of several blocks of samples, of which decoders read one: store it as WAV")
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
    """Checks the checksum and order of every page (RFC 3533, section 6); the last page must end the stream.

    Decoders skip a damaged page, and continue with the next.
    """
    offset = id3_end(source)
    expected: dict[bytes, int] = {}
    ended = False
    while source[offset : offset + 4] == b"OggS":
        header = source[offset : offset + 27]
        segments = source[offset + 27 : offset + 27 + header[26]] if len(header) == 27 else b""
        end = offset + 27 + len(segments) + sum(segments)
        if len(header) < 27 or len(segments) < header[26] or end > len(source):
            raise AudioError("ends in the middle of its last Ogg page")
        stored, serial = header[22:26], header[14:18]
        if _ogg_crc(header[:22] + bytes(4) + source[offset + 26 : end]) != int.from_bytes(stored, "little"):
            raise AudioError(f"damaged: the Ogg page at byte {offset} has another checksum than it says")
        if ended and header[5] & 2:  # Decoders stop before a second stream.
            raise _several("Ogg")
        number = int.from_bytes(header[18:22], "little")
        if expected.get(serial, number) != number:
            raise AudioError(f"damaged: Ogg pages are missing or in another order before byte {offset}")
        expected[serial] = (number + 1) & 0xFFFFFFFF
        ended = bool(header[5] & 4)
        offset = end
    if b"OggS" in source[offset:]:
        raise AudioError(f"damaged: byte {offset} of {len(source)} should start an Ogg page, and does not")
    if not ended:
        raise AudioError("ends in the middle: its last Ogg page is not marked as the end of the stream")


# Each byte with its bits in reverse order.
_REVERSED_BITS = bytes(int(f"{byte:08b}"[::-1], 2) for byte in range(256))


def _ogg_crc(page: bytes) -> int:
    """Returns the CRC-32 of a page: zlib's polynomial, highest bit first, without inversion before and after."""
    reflected = zlib.crc32(page.translate(_REVERSED_BITS), 0xFFFFFFFF) ^ 0xFFFFFFFF
    return int(f"{reflected:032b}"[::-1], 2)


@dataclass
class FlacHeader:
    """STREAMINFO, the rate in the first frame's header (0 if none), and the MD5 of samples decoded so far (RFC 9639).

    Decoders check only the CRC of each frame, not whether all frames were decoded, or whether the header belongs to
    these frames. The MD5 in STREAMINFO is zeros if the encoder did not know it.
    """

    bits: int
    rate_hz: int
    md5: bytes
    _digest: "hashlib._Hash" = field(default_factory=lambda: hashlib.md5(usedforsecurity=False))

    @classmethod
    def of(cls, source: bytes) -> "FlacHeader":
        """Reads the header of a file that a decoder has opened."""
        start = id3_end(source)
        info = source[start + 8 : start + 42]
        offset, is_last = start + 4, False
        while not is_last and offset + 4 <= len(source):
            is_last = bool(source[offset] & 0x80)
            offset += 4 + int.from_bytes(source[offset + 1 : offset + 4], "big")
        bits = ((int.from_bytes(info[10:14], "big") >> 4) & 31) + 1
        return cls(bits, _flac_frame_rate_hz(source[offset : offset + 16]), info[18:])

    def add(self, values: np.ndarray) -> None:
        """Adds decoded samples, int16 or int32 (T, C), whose highest bits are the samples' own."""
        samples = values >> max(0, 8 * values.itemsize - self.bits)
        sample_bytes = -(-self.bits // 8)
        if sample_bytes == 3:
            of_each = samples.astype("<i4").view(np.uint8).reshape(-1, 4)
            self._digest.update(of_each[:, :3].tobytes())
        else:
            self._digest.update(samples.astype(f"<i{sample_bytes}").tobytes())

    def check(self, rate_hz: int) -> None:
        """Raises AudioError if the rate or the samples, all of which must have been added, differ from the header."""
        if self.rate_hz not in (0, rate_hz):
            raise AudioError(f"damaged: the FLAC header says {rate_hz} Hz, its first frame {self.rate_hz} Hz")
        if any(self.md5) and self.md5 != self._digest.digest():
            raise AudioError("damaged: the samples have another MD5 than the FLAC header says")


def _flac_frame_rate_hz(frame: bytes) -> int:
    """Returns the rate in the first bytes of a frame (RFC 9639, section 9.1); 0 if it has none, or is not a frame."""
    if len(frame) < 16 or int.from_bytes(frame[:2], "big") & 0xFFFE != 0xFFF8:
        return 0
    size_code, rate_code = frame[2] >> 4, frame[2] & 15
    if rate_code < len(_FLAC_RATES_HZ):
        return _FLAC_RATES_HZ[rate_code]
    if rate_code not in _FLAC_CODED_RATES:
        return 0
    # After the frame number, whose length is the number of leading ones in its first byte, and the block size.
    ones = 8 - (frame[4] ^ 0xFF).bit_length()
    at = 4 + max(1, ones) + {6: 1, 7: 2}.get(size_code, 0)
    count, unit_hz = _FLAC_CODED_RATES[rate_code]
    return int.from_bytes(frame[at : at + count], "big") * unit_hz
