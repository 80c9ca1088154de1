"""Features that are computed on the device, against those of transformers' extractors."""

import numpy as np
import pytest
import torch
from transformers import Wav2Vec2FeatureExtractor, WhisperFeatureExtractor

from tests.gpu.device import NAME
from tests.trainers.synthetic import RATE_HZ, speechlike
from trainers.data.features import LENGTHS, ExtractorFeatures, LogMel

TOLERANCE = 1e-4
CLIPS = [speechlike(seconds, seed=seed) for seed, seconds in enumerate((0.3, 1.7, 2.9, 0.01))]
CLIPS += [np.zeros(7000, np.int16), np.resize(np.array([32767, -32768], np.int16), 9000), np.ones(1, np.int16)]


def on_device(clips: list[np.ndarray]) -> list[torch.Tensor]:
    return [torch.from_numpy(clip).to(NAME) for clip in clips]


@pytest.mark.parametrize(("context_s", "mels"), [(3, 80), (30, 80), (30, 128)])
@pytest.mark.parametrize("edge_s", [3.0, 30.0])
@pytest.mark.parametrize("tf32", [False, True])
def test_log_mel_is_the_extractor_s(context_s: int, mels: int, edge_s: float, tf32: bool, exact: None) -> None:
    torch.backends.cuda.matmul.allow_tf32 = tf32
    extractor = WhisperFeatureExtractor(feature_size=mels, chunk_length=context_s)
    edge_s = min(edge_s, context_s)
    log_mel = LogMel(extractor).to(NAME)
    found = log_mel.inputs(on_device(CLIPS), edge_s)["input_features"]
    assert found.device.type == NAME
    waveforms = [clip.astype(np.float32) / 32768 for clip in CLIPS]
    whole = extractor(waveforms, sampling_rate=RATE_HZ, return_tensors="pt")["input_features"]
    assert (found.cpu() - whole[:, :, : log_mel.frames(edge_s)]).abs().max() <= TOLERANCE


def test_samples_of_a_ctc_model_are_the_extractor_s() -> None:
    extractor = Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=True)
    found = ExtractorFeatures(extractor, masked=True).to(NAME).inputs(on_device(CLIPS[:3]), 3.0)
    for clip, values, length in zip(CLIPS, found["input_values"], found[LENGTHS], strict=False):
        expected = extractor(clip.astype(np.float32) / 32768, sampling_rate=RATE_HZ, return_tensors="pt").input_values
        assert int(length) == len(clip)
        assert (values[: len(clip)].cpu() - expected[0]).abs().max() <= TOLERANCE
        assert not values[len(clip) :].any()
