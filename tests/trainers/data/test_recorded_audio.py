"""Real recorded speech, in every container, and recordings that are broken."""

import csv
from pathlib import Path

import numpy as np
import pytest

from trainers.data.audio import SAMPLING_RATE_HZ, decode
from trainers.errors import AudioError


def odd_rows(speech_data: Path) -> dict[str, dict[str, str]]:
    with (speech_data / "odd_audio" / "formats.csv").open(encoding="utf-8", newline="") as file:
        return {row["path"]: row for row in csv.DictReader(file)}


def test_recorded_speech_in_every_container_is_decoded_to_its_duration(speech_data: Path) -> None:
    decoded, refused = set(), {}
    for path, row in odd_rows(speech_data).items():
        try:
            samples = decode((speech_data / "odd_audio" / path).read_bytes(), name=path)
        except AudioError as error:
            refused[path] = str(error)
            continue
        decoded.add(row["container"])
        # AAC and WebM keep the encoder's padding of up to one frame at the end.
        slack_s = 0.024 if row["container"] in ("ADTS", "MP4", "WEBM") else 0.001
        assert abs(len(samples) / SAMPLING_RATE_HZ - float(row["duration"])) <= slack_s, path
        assert np.abs(samples).max() > 0.01, path
    assert list(refused) == ["clips/goforward_16k_s16le.raw"]
    assert "raw samples need a container" in refused["clips/goforward_16k_s16le.raw"]
    assert decoded == {"WAV", "WAVEX", "AIFF", "FLAC", "MP3", "OGG", "ADTS", "MP4", "WEBM", "NIST"}


@pytest.mark.parametrize(("speech", "slack_s"), [("count_", 0.0001), ("cold_", 0.0), ("sonnet_", 0.024)])
def test_the_same_speech_in_other_formats_has_the_same_duration(speech_data: Path, speech: str, slack_s: float) -> None:
    files = sorted((speech_data / "odd_audio" / "clips").glob(f"{speech}*"))
    durations_s = [len(decode(file.read_bytes(), name=file.name)) / SAMPLING_RATE_HZ for file in files]
    assert len(files) > 1
    assert max(durations_s) - min(durations_s) <= slack_s


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("zero_bytes.wav", "the file is empty (0 bytes)"),
        ("cut_in_header.wav", "No 'data' chunk"),
        ("no_samples_44k.wav", "has no samples"),
        ("no_samples_16k.wav", "has no samples"),
        ("bad_fmt_size.wav", "No 'data' chunk"),
        ("junk_chunk_size.wav", "No 'data' chunk"),
        ("absurd_rate.wav", "a sampling rate of 1092676 Hz is outside 4000..384000 Hz"),
        ("reader_quirk.flac", "not all of 396679 frames can be decoded (flac decoder lost sync)"),
    ],
)
def test_broken_recordings_are_refused_in_words(speech_data: Path, name: str, reason: str) -> None:
    with pytest.raises(AudioError) as caught:
        decode((speech_data / "odd_audio" / "broken" / name).read_bytes(), name=name)
    assert reason in str(caught.value)


def test_every_recorded_set_is_decoded(speech_data: Path) -> None:
    files = [
        *(speech_data / "librispeech_mini").rglob("*.flac"),
        *(speech_data / "ljspeech_mini").rglob("*.wav"),
    ]
    assert files
    for file in files:
        assert len(decode(file.read_bytes(), name=file.name)) > SAMPLING_RATE_HZ
