import contextlib
import io
import re
import struct
from fractions import Fraction
from functools import cache

import av
import numpy as np
import pytest
import soundfile
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tests.settings import examples
from trainers.data.audio import SAMPLING_RATE_HZ, decode
from trainers.data.mpeg_frames import id3_end
from trainers.errors import AudioError

SOUNDFILE_FORMATS = [
    ("WAV", "PCM_16"),
    ("WAV", "PCM_U8"),
    ("WAV", "PCM_24"),
    ("WAV", "FLOAT"),
    ("WAV", "ULAW"),
    ("WAVEX", "PCM_16"),
    ("RF64", "PCM_16"),
    ("W64", "PCM_16"),
    ("AIFF", "PCM_16"),
    ("AU", "PCM_16"),
    ("CAF", "PCM_16"),
    ("NIST", "PCM_16"),
    ("FLAC", "PCM_16"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("MP3", "MPEG_LAYER_III"),
]
AV_FORMATS = [
    ("adts", "aac"),
    ("mp4", "aac"),
    ("ipod", "aac"),
    ("flv", "aac"),
    ("asf", "wmav2"),
    ("ac3", "ac3"),
    ("eac3", "eac3"),
    ("mp2", "mp2"),
    ("wv", "wavpack"),
    ("webm", "libopus"),
    ("matroska", "pcm_s16le"),
]
# What these write has checksums of all samples, so that damage cannot go unseen.
CHECKED_FORMATS = [
    ("FLAC", "PCM_16"),
    ("FLAC", "PCM_24"),
    ("OGG", "VORBIS"),
    ("OGG", "OPUS"),
    ("ac3", "ac3"),
    ("eac3", "eac3"),
    ("wv", "wavpack"),
    ("matroska", "pcm_s16le"),
]
RATE_HZ = 48_000
SECONDS = 0.75


def tone(rate_hz: int = RATE_HZ, duration_s: float = SECONDS, channels: int = 1) -> np.ndarray:
    time_s = np.arange(int(rate_hz * duration_s)) / rate_hz
    samples = (0.4 * np.sin(2 * np.pi * 440 * time_s)).astype(np.float32)
    return np.stack([samples] * channels, axis=1)


@cache
def written(container: str, subtype: str, rate_hz: int = RATE_HZ, channels: int = 1) -> bytes:
    """A tone in a container that libsndfile writes."""
    file = io.BytesIO()
    soundfile.write(file, tone(rate_hz, channels=channels), rate_hz, format=container, subtype=subtype)
    return file.getvalue()


@cache
def written_with_av(container: str, codec: str, option: str = "") -> bytes:
    """A tone in a container that FFmpeg writes, with an option of the container."""
    file = io.BytesIO()
    with av.open(file, "w", format=container, options=dict([option.split("=")] if option else [])) as output:
        stream = output.add_stream(codec, rate=RATE_HZ, layout="mono")
        assert isinstance(stream, av.AudioStream)
        stream.bit_rate = 64_000  # The WMA encoder has no rate of its own.
        frame = av.AudioFrame.from_ndarray((tone().T * 32767).astype(np.int16), format="s16", layout="mono")
        frame.sample_rate, frame.pts, frame.time_base = RATE_HZ, 0, Fraction(1, RATE_HZ)
        output.mux([*stream.encode(frame), *stream.encode(None)])
    return file.getvalue()


def refusal(source: bytes, name: str = "a.wav") -> str:
    with pytest.raises(AudioError) as caught:
        decode(source, name=name)
    return str(caught.value)


def assert_is_the_tone(samples: np.ndarray, slack_s: float) -> None:
    assert samples.dtype == np.float32 and samples.ndim == 1
    assert np.abs(samples).max() <= 1
    assert abs(len(samples) / SAMPLING_RATE_HZ - SECONDS) <= slack_s
    spectrum = np.abs(np.fft.rfft(samples))
    assert abs(np.argmax(spectrum) * SAMPLING_RATE_HZ / len(samples) - 440) < 3
    assert 0.3 < np.abs(samples[2000:-2000]).max() < 0.5


@pytest.mark.parametrize(("container", "subtype"), SOUNDFILE_FORMATS)
@pytest.mark.parametrize("channels", [1, 2])
def test_formats_of_libsndfile_are_decoded_whole(container: str, subtype: str, channels: int) -> None:
    samples = decode(written(container, subtype, channels=channels), name="a")
    assert_is_the_tone(samples, slack_s=1 / SAMPLING_RATE_HZ)


@pytest.mark.parametrize(("container", "codec"), AV_FORMATS)
def test_formats_of_ffmpeg_are_decoded_whole(container: str, codec: str) -> None:
    assert_is_the_tone(decode(written_with_av(container, codec), name="a"), slack_s=0.06)


@pytest.mark.parametrize("rate_hz", [8_000, 11_025, 16_000, 22_050, 32_000, 44_100, 48_000])
def test_every_rate_ends_as_the_rate_asked_for(rate_hz: int) -> None:
    assert_is_the_tone(decode(written("WAV", "PCM_16", rate_hz), name="a.wav"), slack_s=1 / SAMPLING_RATE_HZ)


def test_a_plain_wav_gives_its_own_samples() -> None:
    integers = np.array([0, 1, -1, 32767, -32768], dtype=np.int16)
    file = io.BytesIO()
    soundfile.write(file, integers, SAMPLING_RATE_HZ, format="WAV", subtype="PCM_16")
    np.testing.assert_array_equal(decode(file.getvalue(), name="a.wav"), integers.astype(np.float32) / 32768)


def test_channels_are_averaged() -> None:
    file = io.BytesIO()
    samples = np.array([[0.5, -0.25], [0.25, 0.25]] * 100)
    soundfile.write(file, samples, SAMPLING_RATE_HZ, format="WAV", subtype="PCM_16")
    np.testing.assert_array_equal(decode(file.getvalue(), name="a.wav")[:2], [0.125, 0.25])


def test_chunks_before_the_samples_are_passed_over() -> None:
    plain = written("WAV", "PCM_16")
    listed = plain[:36] + b"LIST" + struct.pack("<I", 3) + b"abc\0" + plain[36:]
    np.testing.assert_array_equal(decode(listed, name="a.wav"), decode(plain, name="a.wav"))


@pytest.mark.parametrize(("container", "subtype"), SOUNDFILE_FORMATS)
@pytest.mark.parametrize("kept", [0.5, 0.9, 0.999])
def test_a_file_cut_short_is_never_taken_for_a_whole_one(container: str, subtype: str, kept: float) -> None:
    whole = written(container, subtype)
    assert refusal(whole[: int(len(whole) * kept)])


@pytest.mark.parametrize(("container", "codec"), AV_FORMATS)
@pytest.mark.parametrize("kept", [0.51, 0.9, 0.995])
def test_a_file_of_ffmpeg_cut_short_is_never_taken_for_a_whole_one(container: str, codec: str, kept: float) -> None:
    whole = written_with_av(container, codec)
    assert refusal(whole[: int(len(whole) * kept)])


@pytest.mark.parametrize(("container", "codec"), [("flv", "aac"), ("flv", "libmp3lame"), ("caf", "pcm_s16le")])
def test_wherever_a_file_is_cut_it_is_not_taken_for_a_whole_one(container: str, codec: str) -> None:
    whole = written_with_av(container, codec)
    # FFmpeg reads samples of a CAF in packets of 4096 bytes.
    ends_of_packets = range(whole.index(b"data") + 16, len(whole), 4096)
    for end in (*range(400, 1600, 23), *range(1600, len(whole), len(whole) // 79), *ends_of_packets):
        assert refusal(whole[:end]), end


@pytest.mark.parametrize(("container", "codec"), CHECKED_FORMATS)
def test_a_flipped_bit_never_gives_other_samples_where_there_are_checksums(container: str, codec: str) -> None:
    whole = written(container, codec) if container in ("FLAC", "OGG") else written_with_av(container, codec)
    samples = decode(whole, name="a")
    draws = np.random.default_rng(1)
    # Half of the flips are in the headers, which only the checksums of few formats cover.
    places = np.concatenate([draws.integers(0, len(whole), 8), draws.integers(0, 120, 8)])
    for place, bit in zip(places, draws.integers(0, 8, len(places)), strict=True):
        damaged = bytearray(whole)
        damaged[place] ^= 1 << bit
        try:
            decoded = decode(bytes(damaged), name="a")
        except AudioError:
            continue
        np.testing.assert_array_equal(decoded, samples, err_msg=f"bit {bit} of byte {place}")


@pytest.mark.parametrize("rate_hz", [16_000, 11_025, 37_800, 12_000])
def test_a_flac_whose_header_says_another_rate_than_its_frames_is_refused(rate_hz: int) -> None:
    plain = bytearray(written("FLAC", "PCM_16", rate_hz))
    plain[19] ^= 1  # Bit 8 of the 20 that are the rate.
    assert "the FLAC header says" in refusal(bytes(plain), "a.flac")


def test_a_flac_that_declares_fewer_samples_than_it_has_is_refused() -> None:
    plain = bytearray(written("FLAC", "PCM_16"))
    plain[24] ^= plain[24] & -plain[24]
    assert "another MD5" in refusal(bytes(plain), "a.flac")


def test_ogg_pages_that_are_missing_are_refused() -> None:
    plain = written("OGG", "OPUS")
    pages = [b"OggS" + page for page in plain.split(b"OggS")[1:]]
    assert len(pages) > 3
    assert "pages are missing" in refusal(b"".join([*pages[:2], *pages[3:]]), "a.opus")
    assert "several Ogg recordings" in refusal(plain + plain, "a.opus")


@pytest.mark.parametrize(
    ("container", "codec", "option"),
    [("webm", "libopus", "live=1"), ("matroska", "pcm_s16le", "live=1"), ("adts", "aac", "write_id3v2=1")],
)
def test_a_stream_without_a_length_is_decoded_whole_or_refused(container: str, codec: str, option: str) -> None:
    whole = written_with_av(container, codec, option)
    samples = decode(whole, name="a")
    assert_is_the_tone(samples, slack_s=0.06)
    for place in range(len(whole) * 2 // 3, len(whole), len(whole) // 17):
        for damaged in (
            whole[:place],
            whole[:place] + bytes(99) + whole[place + 99 :],
            whole[: place - 9] + whole[place:],
        ):
            with contextlib.suppress(AudioError):
                # Where no length is declared, what a cut leaves out may only be frames as a whole.
                assert len(decode(damaged, name="a")) == len(samples), place


@pytest.mark.parametrize("option", ["live=1", "live=0"])
@pytest.mark.parametrize(("place", "bit"), [(0, 2), (0, 3), (3, 0), (3, 7), (6, 1), (6, 2)])
def test_a_block_whose_damaged_header_ffmpeg_passes_over_is_refused(option: str, place: int, bit: int) -> None:
    whole = bytearray(written_with_av("webm", "libopus", option))
    block = re.compile(rb"\xa3[\x40-\x4f].\x81..[\x00\x80]", re.DOTALL).search(whole, len(whole) // 4)
    assert block is not None
    whole[block.start() + place] ^= 1 << bit
    assert "damaged: " in refusal(bytes(whole), "a.webm")


def test_a_recording_that_a_browser_did_not_write_to_its_end_is_refused() -> None:
    whole = written_with_av("webm", "libopus", "live=1")
    block = whole.rindex(b"\xa3")
    assert "damaged" in refusal(whole[:block] + bytes(len(whole) - block), "a.webm")


@pytest.mark.parametrize(
    ("container", "codec"),
    [("WAV", "PCM_16"), ("WAV", "PCM_24"), ("AIFF", "PCM_16"), ("FLAC", "PCM_16"), ("OGG", "VORBIS"), ("mp4", "aac")],
)
def test_several_recordings_in_one_file_are_never_taken_for_the_first(container: str, codec: str) -> None:
    whole = written_with_av(container, codec) if container == "mp4" else written(container, codec)
    assert "recordings, one after the other: store each in a file" in refusal(whole + whole, "a")


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "ULAW"])
def test_samples_beyond_what_a_wav_declares_are_not_dropped(subtype: str) -> None:
    rng = np.random.default_rng(1)
    buffer = io.BytesIO()
    soundfile.write(buffer, rng.uniform(-0.5, 0.5, 8000), SAMPLING_RATE_HZ, format="WAV", subtype=subtype)
    whole = buffer.getvalue()
    inserted = whole[:2000] + rng.bytes(300) + whole[2000:]
    with pytest.raises(AudioError, match=r"samples 30\d more follow"):
        decode(inserted, name="x.wav")
    for more in (b"", bytes(64), b"LIST\x04\0\0\0INFO", b"LIST\xff\0\0\0INFO", b"TAG" + bytes(125)):
        assert len(decode(whole + more, name="x.wav")) == 8000


def test_joined_streams_are_decoded_whole_or_refused() -> None:
    for stream in (written_with_av("adts", "aac"), written_with_av("mp3", "libmp3lame", "write_xing=0")):
        length = len(decode(stream, name="a"))
        assert abs(len(decode(stream + stream, name="a")) - 2 * length) <= 1
    tagged = written_with_av("mp3", "libmp3lame")
    assert tagged.startswith(b"ID3")
    assert "recordings were joined: store each in a file" in refusal(tagged + tagged, "a.mp3")


def test_an_mp3_recorded_from_the_middle_of_a_stream_is_checked_from_its_first_frame_on() -> None:
    stream = b"no frame \xff\xfb" * 9 + written_with_av("mp3", "libmp3lame", "write_xing=0")
    assert_is_the_tone(decode(stream, name="a.mp3"), slack_s=0.1)
    assert "ends in the middle of its MP3 frame" in refusal(stream[: len(stream) * 2 // 3], "a.mp3")


def test_an_mp3_whose_first_frames_are_lost_is_refused() -> None:
    tagged, untagged = written_with_av("mp3", "libmp3lame"), written_with_av("mp3", "libmp3lame", "write_xing=0")
    plain = untagged[id3_end(untagged) :]
    for stream in (tagged, untagged):
        longer_tag = bytearray(stream)
        longer_tag[8] ^= 1 << 2
        assert "should start an MP3 frame" in refusal(bytes(longer_tag), "a.mp3")
    for lost in (4096, plain.index(plain[:2], 4096)):
        assert "should start an MP3 frame" in refusal(bytes(lost) + plain[lost:], "a.mp3")
    assert "should start an MP3 frame" in refusal(plain[:100] + plain[101:], "a.mp3")


def test_an_mp3_of_a_few_frames_is_refused_where_its_tag_says_more() -> None:
    assert "ends in the middle" in refusal(written_with_av("mp3", "libmp3lame")[:600], "a.mp3")


@pytest.mark.parametrize("container", ["wav", "matroska"])
def test_mp3_in_another_container_is_decoded_whole(container: str) -> None:
    whole = written_with_av(container, "libmp3lame")
    assert_is_the_tone(decode(whole, name="a"), slack_s=0.08)
    assert refusal(whole[: len(whole) * 9 // 10], "a")


@pytest.mark.parametrize(
    ("container", "subtype"),
    [("W64", "PCM_16"), ("NIST", "PCM_16"), ("SVX", "PCM_16"), ("AVR", "PCM_16"), ("VOC", "PCM_16")],
)
def test_what_follows_the_samples_is_never_decoded_with_them(container: str, subtype: str) -> None:
    assert "damaged" in refusal(written(container, subtype) + b"more" * 9, "a")


@pytest.mark.parametrize(("container", "subtype"), [("AVR", "PCM_16"), ("MAT5", "PCM_16"), ("MPC2K", "PCM_16")])
def test_the_frames_that_a_header_counts_must_be_there(container: str, subtype: str) -> None:
    assert "ends in the middle" in refusal(written(container, subtype)[:-50], "a")


def test_bytes_that_are_inserted_between_packets_are_refused() -> None:
    for whole in (written("CAF", "ALAC_16"), written_with_av("mpegts", "mp2")):
        middle = len(whole) // 2
        assert "damaged" in refusal(whole[:middle] + bytes(188) + whole[middle:], "a")


def test_an_mp3_without_a_tag_is_decoded_whole_whatever_libsndfile_guesses() -> None:
    tagged = written("MP3", "MPEG_LAYER_III")
    first_frame_bytes = tagged.index(tagged[:2], 4)
    assert_is_the_tone(decode(tagged[first_frame_bytes:], name="a.mp3"), slack_s=0.08)


def test_an_mp3_keeps_its_tags_out_of_the_samples() -> None:
    plain = written("MP3", "MPEG_LAYER_III")
    item = struct.pack("<II", 1, 0) + b"Title\0x"
    ape_v1 = item + b"APETAGEX" + struct.pack("<IIII8x", 1000, len(item) + 32, 1, 0)
    tagged = b"ID3\4\0\0\0\0\0\x0a" + b"\0" * 10 + plain
    for end in (b"", ape_v1, b"LYRICSBEGIN" + ape_v1):
        decoded = decode(tagged + end + b"TAG" + b"\0" * 125, name="a.mp3")
        np.testing.assert_array_equal(decoded, decode(plain, name="a.mp3"))


def test_an_mp3_with_a_hole_is_refused() -> None:
    plain = written("MP3", "MPEG_LAYER_III")
    middle = len(plain) // 2
    assert "should start an MP3 frame" in refusal(plain[:middle] + b"\0" * 100 + plain[middle:], "a.mp3")


@pytest.mark.parametrize(
    ("source", "name", "reason"),
    [
        (b"", "a.wav", "the file is empty (0 bytes)"),
        (bytes(range(1, 200)) * 50, "a.raw", "raw samples need a container such as WAV"),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:0\n", "a.wav", "git lfs pull"),
        (b"\n<!DOCTYPE html><html></html>", "a.mp3", "an HTML page"),
        (b"#EXTM3U\n#EXTINF:1,\n/etc/hostname\n#EXT-X-ENDLIST\n", "a.m3u8", "no header"),
        (b"ffconcat version 1.0\nfile /etc/hostname\n", "a.txt", "no header"),
        (b"RIFF\x24\0\0\0WAVEfmt \x10\0\0\0\1\0", "a.wav", "No 'data' chunk"),
    ],
)
def test_what_is_no_audio_is_refused_with_a_reason(source: bytes, name: str, reason: str) -> None:
    assert reason in refusal(source, name)


@pytest.mark.parametrize("subtype", ["PCM_16", "PCM_24", "FLOAT", "ULAW", "PCM_U8"])
@pytest.mark.parametrize("channels", [1, 2])
def test_channels_that_do_not_fit_the_frames_of_a_wav_are_refused(subtype: str, channels: int) -> None:
    file = io.BytesIO()
    soundfile.write(file, np.full((800, channels), 0.1), 16_000, format="WAV", subtype=subtype)
    plain = file.getvalue()
    assert decode(plain, name="a.wav").shape == (800,)
    for bit in range(16):
        wrong = bytearray(plain)
        wrong[22 + bit // 8] ^= 1 << bit % 8
        with pytest.raises(AudioError):
            decode(bytes(wrong), name="a.wav")


def test_a_wav_without_samples_is_refused() -> None:
    file = io.BytesIO()
    soundfile.write(file, np.zeros(0), SAMPLING_RATE_HZ, format="WAV", subtype="PCM_16")
    assert refusal(file.getvalue()) == "has no samples"


def test_a_wav_that_declares_gigabytes_is_refused() -> None:
    plain = written("WAV", "PCM_16")
    assert refusal(plain[:40] + struct.pack("<I", 0x7000_0000) + plain[44:]).startswith("ends in the middle")


def test_a_flac_that_declares_years_is_refused_and_takes_no_memory() -> None:
    plain = bytearray(written("FLAC", "PCM_16"))
    plain[21] |= 0x0F  # The upper four of the 36 bits that count the samples.
    assert refusal(bytes(plain), "a.flac").startswith("ends in the middle")


@pytest.mark.parametrize("coding", ["PCM_16", "PCM_24", "FLOAT"])
@pytest.mark.parametrize("length", [0, 0x7FFFF000, 2**31 - 1, 2**31, 2**32 - 37, 2**32 - 1])
def test_a_streamed_wav_of_unknown_length_is_decoded(coding: str, length: int) -> None:
    plain = written("WAV", coding)
    place = plain.index(b"data") + 4
    streamed = plain[:place] + struct.pack("<I", length) + plain[place + 4 :]
    np.testing.assert_array_equal(decode(streamed, name="a.wav"), decode(plain, name="a.wav"))


@pytest.mark.parametrize("coding", ["PCM_16", "FLOAT"])
@pytest.mark.parametrize("length", [0x7000_0000, 0x9000_0000, 0xF000_0000])
def test_a_length_above_2_gib_is_one_that_a_cut_file_does_not_have(coding: str, length: int) -> None:
    plain = written("WAV", coding)
    place = plain.index(b"data") + 4
    assert refusal(plain[:place] + struct.pack("<I", length) + plain[place + 4 :]).startswith("ends in the middle")


def test_a_wav_without_samples_may_have_other_chunks() -> None:
    empty = written("WAV", "PCM_16")[:40] + bytes(4)
    title = b"LIST" + struct.pack("<I", 2000) + b"INFO".ljust(2000)
    assert refusal(empty) == "has no samples"
    assert refusal(empty + title) == "has no samples by its header, and has 2052 bytes: store it again"


@pytest.mark.parametrize("coding", ["PCM_16", "PCM_24"])
def test_chunks_behind_samples_of_unknown_length_are_none(coding: str) -> None:
    plain = written("WAV", coding)
    place = plain.index(b"data") + 4
    # Samples that are like a chunk's name, and no chunk.
    plain = plain[: place + 64] + b"LIST" + plain[place + 68 :]
    streamed = plain[:place] + bytes(4) + plain[place + 4 :]
    more = b"LIST" + struct.pack("<I", 5) + b"INFO!\0" + b"id3 " + struct.pack("<I", 2000) + bytes(2000)
    for behind in (b"", more):
        np.testing.assert_array_equal(decode(streamed + behind, name="a.wav"), decode(plain, name="a.wav"))


def test_a_streamed_flac_of_unknown_length_is_decoded() -> None:
    plain = bytearray(written("FLAC", "PCM_16"))
    plain[21] &= 0xF0
    plain[22:26] = bytes(4)
    assert_is_the_tone(decode(bytes(plain), name="a.flac"), slack_s=1 / SAMPLING_RATE_HZ)


@pytest.mark.parametrize("rate_hz", [1_000, 1_092_676])
def test_an_absurd_rate_is_refused(rate_hz: int) -> None:
    plain = bytearray(written("WAV", "PCM_16"))
    plain[24:28] = struct.pack("<I", rate_hz)
    assert refusal(bytes(plain)) == f"a sampling rate of {rate_hz} Hz is outside 4000..384000 Hz"


@pytest.mark.parametrize(
    ("value", "reason"), [(np.nan, "not numbers"), (np.inf, "not numbers"), (20_000.0, "reach 20000")]
)
def test_float_samples_that_mean_nothing_are_refused(value: float, reason: str) -> None:
    file = io.BytesIO()
    samples = tone(SAMPLING_RATE_HZ)
    samples[7] = value
    soundfile.write(file, samples, SAMPLING_RATE_HZ, format="WAV", subtype="FLOAT")
    assert reason in refusal(file.getvalue())


def test_float_samples_a_little_over_full_scale_are_clipped() -> None:
    file = io.BytesIO()
    soundfile.write(file, tone(SAMPLING_RATE_HZ) * 4, SAMPLING_RATE_HZ, format="WAV", subtype="FLOAT")
    assert np.abs(decode(file.getvalue(), name="a.wav")).max() == 1


@pytest.mark.parametrize("name", ["a.flac", "a.aac"])
def test_more_samples_than_memory_should_hold_are_refused(name: str) -> None:
    content = written("FLAC", "PCM_16") if name == "a.flac" else written_with_av("adts", "aac")
    with pytest.raises(AudioError, match="more than 1000 samples: cut it into utterances"):
        decode(content, name=name, most_values=1000)


def test_a_film_without_sound_is_refused() -> None:
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as output:
        stream = output.add_stream("mpeg4", rate=10)
        stream.width = stream.height = 16
        output.mux([*stream.encode(av.VideoFrame(16, 16, "yuv420p")), *stream.encode(None)])
    assert refusal(file.getvalue(), "a.mp4") == "has no audio stream"


@given(st.data())
@settings(max_examples=examples(150), deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_damaged_files_give_samples_or_an_audio_error(data: st.DataObject) -> None:
    formats = [*SOUNDFILE_FORMATS, *AV_FORMATS]
    container, codec = data.draw(st.sampled_from(formats))
    make = written if (container, codec) in SOUNDFILE_FORMATS else written_with_av
    source = bytearray(make(container, codec))
    # Headers are where damage does the most, so half of it goes there.
    places = st.integers(0, len(source) - 1) | st.integers(0, 120)
    for place, value in data.draw(st.lists(st.tuples(places, st.integers(0, 255)), max_size=6)):
        source[place] = value
    cut = data.draw(st.none() | places)
    try:
        samples = decode(bytes(source[:cut]), name="a")
    except AudioError as error:
        assert str(error)
    else:
        assert len(samples) > 0
        assert np.isfinite(samples).all() and np.abs(samples).max() <= 1
