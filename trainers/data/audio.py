"""Decodes recordings to samples, and encodes samples as the FLAC clips of a prepared dataset.

libsndfile (through soundfile) decodes first: WAV, AIFF, FLAC, MP3, Ogg Vorbis and Opus, NIST SPHERE, CAF
and more. FFmpeg (through PyAV) decodes the rest: AAC, MP4, WebM, and files that libsndfile cannot open. A file that is
not read completely is an `AudioError`, never a shorter recording: if one decoder finds damage, the other, which may
conceal it, is not tried.
"""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, BinaryIO

import numpy as np
import soundfile
import soxr

from trainers.data import containers
from trainers.errors import AudioError

if TYPE_CHECKING:
    import av

SAMPLING_RATE_HZ = 16_000

_LOWEST_RATE_HZ = 4_000
_HIGHEST_RATE_HZ = 384_000

# A recording is one utterance; this many values (all channels) are 46 minutes of 48 kHz stereo. The limit
# keeps hours of compressed silence in a small file from taking the node's memory.
UTTERANCE_VALUES = 2**28
# For recordings that are split into segments after decoding: 6 hours of 48 kHz stereo.
RECORDING_VALUES = 2**31
_BLOCK_VALUES = 2**22
# The frame count that libsndfile reports (SF_COUNT_MAX) if the header does not state the length.
_UNKNOWN_FRAMES = 2**62
# Maximum size of a file that has only a header, and no samples.
_MOST_EMPTY_BYTES = 2**10

# Float files may exceed full scale a little; beyond this factor they contain integers stored as floats.
_MAX_PEAK = 8.0

_INT16_SCALE = np.float32(32_768)
_INT32_SCALE = np.float32(2**31)

# Thirty clips of LibriSpeech (16 kHz, one thread): levels 0 to 8 were written at 4583, 5926, 5930, 5400,
# 5391, 5254, 4373, 3893 and 2873 times real time, and took 60.5 (levels 0 to 2) to 59.0 (8) MB an hour.
_FLAC_COMPRESSION_LEVEL = 2 / 8

# Only containers, since FFmpeg also has demuxers (HLS, concat) that open paths and URLs written in the file.
_AV_FORMATS = "aac,ac3,aiff,amr,ape,asf,au,caf,eac3,flac,flv,matroska,mov,mp3,mpegts,ogg,tta,wav,wv"
_AV_OPTIONS = {"format_whitelist": _AV_FORMATS, "protocol_whitelist": ""}
# Formats that declare no length, so that FFmpeg guesses it from the bit rate.
_AV_GUESSED_DURATION = frozenset({"aac", "ac3", "amr", "eac3", "mp3", "mpegts"})
# Containers round a duration to milliseconds, and may count up to one codec frame more than they decode to: 2048
# samples of WMA, whose duration also includes the half frame that is only overlapped.
_AV_DURATION_SLACK_S = 0.03
_ASF_DURATION_SLACK_S = 0.2
# Some containers count the samples that an MP3 encoder and its decoder put before the sound.
_MP3_DELAY_SAMPLES = 1105
# FFmpeg checks frame checksums (AC-3, FLAC, TTA, WavPack) on request only, and otherwise conceals damage.
_AV_ERROR_DETECTION = {"err_detect": "crccheck+explode"}
# FFmpeg's AV_TIME_BASE: units of a container's duration in a second.
_AV_TIME_BASE = 1_000_000

# The value of silence and of full scale, for each of FFmpeg's sample formats.
_AV_SCALES = {"u8": (128.0, 128), "s16": (0.0, 2**15), "s32": (0.0, 2**31), "flt": (0.0, 1), "dbl": (0.0, 1)}

_NOT_AUDIO = {
    b"version https://git-lfs": "a Git LFS pointer, not the recording: fetch it with `git lfs pull`",
    b"<!doctype html": "an HTML page, not a recording: fetch the file again",
    b"<html": "an HTML page, not a recording: fetch the file again",
    b"<?xml": "an XML document, not a recording: fetch the file again",
}


class _UnreadableError(Exception):
    """One decoder could not read a file completely; the other decoder may, unless `is_damage` is True.

    The header declares `promised` frames (0 if it cannot be read), of which `frames` were decoded before the error.
    """

    def __init__(self, reason: str, frames: int = 0, promised: int = 0, *, is_damage: bool = False) -> None:
        super().__init__(reason)
        self.frames = frames
        self.promised = promised
        self.is_damage = is_damage


class _SoundFile(io.BytesIO):
    """Bytes for libsndfile, which may seek to a negative position in a damaged file."""

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        """Seeks, or stays if the position is negative, since libsndfile's callback cannot raise an exception."""
        if whence == io.SEEK_SET and offset < 0:
            return self.tell()
        return super().seek(offset, whence)


def decode(
    source: bytes,
    *,
    name: str,
    sampling_rate_hz: int = SAMPLING_RATE_HZ,
    most_values: int = UTTERANCE_VALUES,
) -> np.ndarray:
    """Decodes a recording to mono samples at `sampling_rate_hz`.

    Channels are averaged, then soxr (quality "HQ") resamples; values outside full scale are clipped. T is seconds ×
    `sampling_rate_hz` as rounded by soxr, and exactly the file's frames if it has that rate.

    Args:
        source: The bytes of the encoded file, in any container that libsndfile or FFmpeg supports.
        name: The file's name or URL; only its extension is used, in messages.
        sampling_rate_hz: Sampling rate of the result.
        most_values: Maximum number of values, of all channels, in a recording.

    Returns:
        float32 samples (T,) in [-1, 1], T > 0.

    Raises:
        AudioError: The file cannot be decoded completely; the message is the reason for its quarantine.
    """
    if not source:
        raise AudioError("the file is empty (0 bytes)")
    samples, rate_hz = _read(source, name, most_values)
    if not len(samples):
        of = f" by its header, and has {len(source)} bytes: store it again" if len(source) > _MOST_EMPTY_BYTES else ""
        raise AudioError(f"has no samples{of}")
    peak = max(float(samples.max()), -float(samples.min()))  # NaN propagates through max and min, fails the next test.
    if not np.isfinite(peak):
        raise AudioError("has samples that are not numbers (NaN or infinity)")
    if peak > _MAX_PEAK:
        raise AudioError(f"float samples reach {peak:.6g}, outside -1..1: divide them by full scale and store again")
    if rate_hz != sampling_rate_hz:
        samples = soxr.resample(samples, rate_hz, sampling_rate_hz, quality="HQ")
        if not len(samples):
            raise AudioError(f"has no samples once resampled from {rate_hz} to {sampling_rate_hz} Hz")
        peak = np.inf  # The filter may overshoot.
    return np.clip(samples, -1, 1, out=samples) if peak > 1 else samples


def encode_flac(samples: np.ndarray, sampling_rate_hz: int) -> bytes:
    """Encodes float mono samples (T,), T > 0, as a 16-bit FLAC clip, see `to_int16`."""
    file = io.BytesIO()
    soundfile.write(
        file,
        to_int16(samples),
        sampling_rate_hz,
        format="FLAC",
        subtype="PCM_16",
        compression_level=_FLAC_COMPRESSION_LEVEL,
    )
    return file.getvalue()


def to_int16(samples: np.ndarray) -> np.ndarray:
    """Converts float samples (T,) to their stored form, int16 (T,).

    Each is clipped to [-1, 1], multiplied by 32768, rounded to the nearest integer (ties to even) and limited to 32767:
    samples decoded from 16 bits become the same 16 bits again.
    """
    scaled = np.rint(np.clip(samples, -1, 1) * _INT16_SCALE)
    integers: np.ndarray = np.minimum(scaled, 32_767).astype(np.int16)
    return integers


def decode_flac(data: bytes) -> np.ndarray:
    """Decodes a clip that `encode_flac` made, to int16 samples (T,). Raises AudioError if the clip is damaged."""
    try:
        samples, _ = soundfile.read(io.BytesIO(data), dtype="int16")
    except (soundfile.SoundFileError, MemoryError) as error:
        raise AudioError(f"a stored clip of {len(data)} bytes is damaged ({error}): prepare the data again") from error
    return np.asarray(samples, dtype=np.int16)


def _read(source: bytes, name: str, most_values: int) -> tuple[np.ndarray, int]:
    """Returns float32 mono samples (T,) at the file's own rate, and that rate in Hz."""
    source = containers.with_length(source)
    containers.refuse_joined(source)
    containers.refuse_more_than_declared(source)
    containers.refuse_contradiction(source)
    plain = containers.pcm16_wav(source)
    if plain is not None:
        integers, rate_hz = plain
        _check_rate(rate_hz)
        return _mono(integers.astype(np.float32) / _INT16_SCALE), rate_hz
    try:
        return _read_with_soundfile(source, most_values)
    except _UnreadableError as error:
        if error.is_damage:
            reason = f"ends in the middle or is damaged: not all of {error.promised} frames can be decoded ({error})"
            raise AudioError(reason) from error
        first = error
    try:
        return _read_with_av(source, most_values, promised=first.promised)
    except _UnreadableError as second:
        raise AudioError(_reason(source, name, first, second)) from second


def _read_with_soundfile(source: bytes, most_values: int) -> tuple[np.ndarray, int]:
    blocks: list[np.ndarray] = []
    frames = promised = 0
    try:
        with soundfile.SoundFile(_SoundFile(source)) as file:
            _check_rate(file.samplerate)
            if file.frames > _UNKNOWN_FRAMES:
                raise _UnreadableError("the header does not say how many frames there are")
            promised = containers.promised_frames(source, file.format, file.frames, file.extra_info)
            flac = containers.FlacHeader.of(source) if file.format == "FLAC" else None
            block_frames = _BLOCK_VALUES // file.channels
            while len(block := file.read(block_frames, dtype="int32" if flac else "float32", always_2d=True)):
                frames += len(block)
                _check_size(frames * file.channels, most_values)
                if flac:
                    flac.add(block)
                    block = block.astype(np.float32) / _INT32_SCALE
                blocks.append(_mono(block))
            if frames < promised:
                # libsndfile stops after the first of several joined MP3 recordings; FFmpeg may decode the others.
                is_mp3 = file.subtype == "MPEG_LAYER_III"
                more = ", as where recordings were joined: store each in a file, or all in one" if is_mp3 else ""
                raise _UnreadableError(f"libsndfile stopped early{more}", frames, promised, is_damage=not is_mp3)
            if flac:
                flac.check(file.samplerate)
            return _joined(blocks), file.samplerate
    except soundfile.LibsndfileError as error:
        reason = error.error_string.removeprefix("Error : ").rstrip(".")
        raise _UnreadableError(reason, frames, promised, is_damage=promised > 0) from error
    except (soundfile.SoundFileError, ValueError, OverflowError, MemoryError) as error:
        raise _UnreadableError(str(error), frames, promised) from error


def _read_with_av(source: bytes, most_values: int, *, promised: int) -> tuple[np.ndarray, int]:
    """Decodes with FFmpeg; `promised` frames were declared to libsndfile, 0 if it did not know the format."""
    try:
        # Imported here because it is as large as the rest of decoding, and rarely needed.
        import av  # noqa: PLC0415
    except ImportError as error:
        raise _UnreadableError("FFmpeg is not tried: the package av is not installed", 0, promised) from error
    blocks: list[np.ndarray] = []
    frames = rate_hz = 0
    try:
        with av.open(io.BytesIO(source), mode="r", options=_AV_OPTIONS) as container:
            if not container.streams.audio:
                raise AudioError("has no audio stream")
            stream = container.streams.audio[0]
            if stream.codec_context is None:
                raise _UnreadableError("FFmpeg knows no decoder of its samples", 0, promised)
            stream.codec_context.options = _AV_ERROR_DETECTION
            declared_s = _declared_s(container, stream)
            declared, packets = containers.check_container(source, container.format.name)
            promised = max(promised, declared)
            flac = containers.FlacHeader.of(source) if container.format.name == "flac" else None
            for packet in _packets_of(stream, container, packets):
                if packet.is_corrupt:
                    raise _UnreadableError("FFmpeg found a truncated packet", frames, promised)
                for frame in stream.decode(packet):
                    _check_rate(frame.sample_rate)
                    if rate_hz not in (0, frame.sample_rate):
                        raise AudioError(f"changes from {rate_hz} to {frame.sample_rate} Hz midway: store one rate")
                    rate_hz = frame.sample_rate
                    frames += frame.samples
                    _check_size(frames * frame.layout.nb_channels, most_values)
                    values = frame.to_ndarray()
                    values = values.T if frame.format.is_planar else values.reshape(-1, frame.layout.nb_channels)
                    if flac:
                        flac.add(values)
                    offset, full_scale = _AV_SCALES[frame.format.packed.name]
                    blocks.append(_mono((values - offset) / np.float32(full_scale)))
    # PyAV raises IndexError for a packet of a stream that appears in mid-file.
    except (av.FFmpegError, ValueError, LookupError, OverflowError, MemoryError) as error:
        reason = getattr(error, "strerror", None) or str(error)
        raise _UnreadableError(reason, frames, promised) from error
    promised = max(promised, int(declared_s * rate_hz))
    if frames < promised:
        raise _UnreadableError("FFmpeg stopped early", frames, promised)
    if flac:
        flac.check(rate_hz)
    return _joined(blocks), rate_hz


def opens_with_av(file: BinaryIO) -> bool:
    """Returns True if FFmpeg is installed and finds an audio stream in the header of a file."""
    try:
        import av  # noqa: PLC0415
    except ImportError:
        return False
    try:
        with av.open(file, mode="r", options=_AV_OPTIONS) as container:
            return bool(container.streams.audio)
    except (av.FFmpegError, ValueError, LookupError, OverflowError, MemoryError):
        return False


def _packets_of(
    stream: av.AudioStream, container: av.container.InputContainer, declared: int
) -> Iterator[av.Packet[av.stream.Stream]]:
    """Yields the packets of a stream; raises AudioError if all streams together have fewer packets than `declared`."""
    present = 0
    for packet in container.demux():
        present += packet.size > 0
        if packet.stream is stream:
            yield packet
    if present < declared:
        raise AudioError(f"damaged: FFmpeg passed over {declared - present} of {declared} packets")


def _declared_s(container: av.container.InputContainer, stream: av.AudioStream) -> float:
    """Returns the minimum seconds of an audio stream that its container declares; 0 if it declares no duration."""
    if container.format.name in _AV_GUESSED_DURATION:
        return 0.0
    slack_s = _ASF_DURATION_SLACK_S if container.format.name == "asf" else _AV_DURATION_SLACK_S
    if stream.codec_context.name.startswith("mp3"):
        slack_s += _MP3_DELAY_SAMPLES / max(1, stream.codec_context.sample_rate)
    if stream.duration is not None and stream.time_base is not None:
        return float(stream.duration * stream.time_base) - slack_s
    # With other streams, such as video, the container's duration may not be that of the sound.
    if container.duration is not None and len(container.streams) == 1:
        return float(container.duration / _AV_TIME_BASE) - slack_s
    return 0.0


def _mono(values: np.ndarray) -> np.ndarray:
    """Averages the channels of float samples (T, C); returns float32 (T,)."""
    if values.shape[1] == 1:
        return np.ascontiguousarray(values[:, 0], dtype=np.float32)
    # Over such a short axis mean() takes forty times as long: 1.82 against 0.04 ms for 2.7 s of stereo.
    weights = np.full(values.shape[1], 1 / values.shape[1], dtype=np.float32)
    with np.errstate(invalid="ignore"):  # Infinities become NaN here, and an AudioError in `decode`.
        return np.asarray(values @ weights, dtype=np.float32)


def _joined(blocks: list[np.ndarray]) -> np.ndarray:
    if len(blocks) == 1:
        return blocks[0]
    return np.concatenate(blocks) if blocks else np.zeros(0, dtype=np.float32)


def _check_rate(rate_hz: int) -> None:
    if not _LOWEST_RATE_HZ <= rate_hz <= _HIGHEST_RATE_HZ:
        raise AudioError(f"a sampling rate of {rate_hz} Hz is outside {_LOWEST_RATE_HZ}..{_HIGHEST_RATE_HZ} Hz")


def _check_size(values: int, most_values: int) -> None:
    if values > most_values:
        raise AudioError(f"decodes to more than {most_values} samples: cut it into utterances first")


def _reason(source: bytes, name: str, first: _UnreadableError, second: _UnreadableError) -> str:
    """Returns one line on why neither libsndfile (`first`) nor FFmpeg (`second`) could read a file."""
    promised = max(first.promised, second.promised)
    frames = max(first.frames, second.frames)
    if promised:
        return f"ends in the middle: {frames} of {promised} frames can be decoded ({first})"
    opening = source[:64].lstrip().lower()
    for start, reason in _NOT_AUDIO.items():
        if opening.startswith(start):
            return reason
    if frames:
        return f"damaged or truncated after {frames} frames ({second})"
    if source[4:8] == b"ftyp":
        return "an MP4 file without its index (moov): it is truncated, or was never finished"
    if "not recognised" not in str(first):  # libsndfile's spelling
        return f"damaged header ({str(first).rstrip('.')})"
    readers = (
        f"libsndfile knows; {second}" if isinstance(second.__cause__, ImportError) else "libsndfile or FFmpeg knows"
    )
    suffix = PurePosixPath(name).suffix or "its name"
    return (
        f"no header of an audio format that {readers} ({suffix}, {len(source)} bytes): "
        "raw samples need a container such as WAV"
    )
