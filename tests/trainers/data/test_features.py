from functools import cache
from pathlib import Path

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from tests.trainers.synthetic import RATE_HZ, speechlike
from trainers.data.audio import decode
from trainers.data.batch_plan import BUCKET_EDGES_S
from trainers.data.features import LogMel, pad_samples
from trainers.errors import ConfigError

HOP = 160
# Measured 2e-6; features are of the order of 1.
TOGETHER_TOLERANCE = 1e-4
SIZES = [(1, 80), (3, 80), (3, 128), (30, 80), (30, 128)]
LENGTHS = (1, 2, 160, 199, 200, 201, 401, 1000, 4321, 15_999)
SPEECH = ("librispeech_mini/clips/*.flac", "fsdd/clips/*.wav", "odd_audio/clips/*.mp3")


@cache
def extractor(context_s: int, mels: int) -> WhisperFeatureExtractor:
    return WhisperFeatureExtractor(feature_size=mels, chunk_length=context_s)


def reference(samples: np.ndarray, context_s: int, mels: int) -> torch.Tensor:
    """What WhisperFeatureExtractor gives: (mels, frames of the full context)."""
    waveform = samples.astype(np.float32) / 32768
    extracted = extractor(context_s, mels)(waveform, sampling_rate=RATE_HZ, return_tensors="pt")
    features: torch.Tensor = extracted["input_features"][0]
    return features


def ours(samples: np.ndarray, context_s: int, mels: int, frames: int | None = None) -> torch.Tensor:
    whole = context_s * RATE_HZ // HOP
    log_mel = LogMel(extractor(context_s, mels))
    features: torch.Tensor = log_mel(torch.from_numpy(samples), whole if frames is None else frames)
    return features


@pytest.mark.parametrize(("context_s", "mels"), SIZES)
class TestSameAsTheReference:
    """To the last bit, on a CPU."""

    @pytest.mark.parametrize("length", LENGTHS)
    def test_a_short_clip(self, context_s: int, mels: int, length: int) -> None:
        samples = speechlike(1.0)[:length]
        assert torch.equal(ours(samples, context_s, mels), reference(samples, context_s, mels))

    @pytest.mark.parametrize("missing", [0, 1, 199, 201, 400, 401, 5000])
    def test_a_clip_near_the_whole_context(self, context_s: int, mels: int, missing: int) -> None:
        samples = speechlike(context_s)[: context_s * RATE_HZ - missing]
        assert torch.equal(ours(samples, context_s, mels), reference(samples, context_s, mels))

    @pytest.mark.parametrize(
        "samples",
        [
            np.zeros(7000, np.int16),
            np.ones(7000, np.int16),
            np.random.default_rng(0).integers(-1, 2, 7000).astype(np.int16),
            np.random.default_rng(0).integers(-32768, 32768, 7000).astype(np.int16),
            np.resize(np.array([32767, -32768], np.int16), 7000),
            np.concatenate([np.zeros(6000, np.int16), np.full(1000, 32767, np.int16)]),
        ],
        ids=["silence", "offset", "very quiet", "loud noise", "full scale", "click at the end"],
    )
    def test_an_odd_clip(self, context_s: int, mels: int, samples: np.ndarray) -> None:
        assert torch.equal(ours(samples, context_s, mels), reference(samples, context_s, mels))

    def test_a_bucket_is_the_reference_s_beginning(self, context_s: int, mels: int) -> None:
        samples = speechlike(0.43)
        whole = reference(samples, context_s, mels)
        log_mel = LogMel(extractor(context_s, mels))
        for edge_s in (edge_s for edge_s in BUCKET_EDGES_S if edge_s <= context_s):
            frames = log_mel.frames(edge_s)
            assert torch.equal(log_mel(torch.from_numpy(samples), frames), whole[:, :frames])


@pytest.mark.parametrize("pattern", SPEECH)
def test_recorded_speech_is_the_same_as_the_reference(speech_data: Path, pattern: str) -> None:
    paths = sorted(speech_data.glob(pattern))[:12]
    assert paths
    for path in paths:
        samples = np.rint(decode(path.read_bytes(), name=path.name) * 32767).astype(np.int16)
        assert torch.equal(ours(samples, 30, 80), reference(samples, 30, 80)), path.name


@pytest.mark.parametrize("edge_s", BUCKET_EDGES_S)
def test_a_bucket_has_an_even_number_of_frames_that_holds_its_clips(edge_s: float) -> None:
    frames = LogMel(extractor(30, 80)).frames(edge_s)
    assert frames % 2 == 0
    assert frames * HOP >= edge_s * RATE_HZ - 1e-6


def test_a_clip_is_the_same_in_any_company() -> None:
    clips = [speechlike(seconds, seed=seed) for seed, seconds in enumerate((0.3, 1.7, 0.9))]
    samples, lengths = pad_samples(clips)
    log_mel = LogMel(extractor(3, 80))
    for row, length, clip in zip(samples, lengths, clips, strict=True):
        assert torch.equal(log_mel(row[:length], 200), log_mel(torch.from_numpy(clip), 200))


@pytest.mark.parametrize(("context_s", "mels"), SIZES)
def test_clips_together_are_each_alone_up_to_rounding(context_s: int, mels: int) -> None:
    whole, short = speechlike(context_s), speechlike(0.8)
    odd = [np.zeros(7000, np.int16), np.ones(1, np.int16), np.resize(np.array([32767, -32768], np.int16), 9000)]
    log_mel = LogMel(extractor(context_s, mels))
    for clips in ([short, whole[:3000], *odd], [whole, *odd], [whole[:-201], short], [odd[1]]):
        given = [torch.from_numpy(clip) for clip in clips]
        for frames in (context_s * RATE_HZ // HOP, log_mel.frames(0.5 + max(len(clip) for clip in clips) / RATE_HZ)):
            together = log_mel(pad_samples(clips)[0], frames)
            assert together.shape == (len(clips), mels, frames)
            for found, clip in zip(together, given, strict=True):
                assert (found - log_mel(clip, frames)).abs().max() <= TOGETHER_TOLERANCE


def test_stacked_clips_end_in_zeros() -> None:
    samples, lengths = pad_samples([np.array([1, 2, 3], np.int16), np.array([4], np.int16)])
    assert samples.tolist() == [[1, 2, 3], [4, 0, 0]]
    assert lengths.tolist() == [3, 1]
    assert (samples.dtype, lengths.dtype) == (torch.int16, torch.int64)


def test_features_that_are_random_are_refused() -> None:
    with pytest.raises(ConfigError, match=r"set dither to 0\.0"):
        LogMel(WhisperFeatureExtractor(dither=0.1))


def test_nothing_of_it_is_saved() -> None:
    assert not LogMel(extractor(1, 80)).state_dict()


@pytest.mark.skipif(not torch.cuda.is_available(), reason="TF32 is a GPU's")
def test_a_model_in_tf32_hears_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cuda.matmul, "allow_tf32", True)
    log_mel = LogMel(extractor(3, 80)).to("cuda")
    found = log_mel(torch.from_numpy(speechlike(1.3)).to("cuda"), 300).cpu()
    torch.testing.assert_close(found, ours(speechlike(1.3), 3, 80), atol=1e-4, rtol=0)
