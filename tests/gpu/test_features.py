"""Features that are computed on the device, against those of transformers' extractors."""

import numpy as np
import pytest
import torch
from transformers import WhisperFeatureExtractor

from tests.gpu.device import NAME, ON_GPU
from tests.trainers.data.test_gpu_extractors import CLIPS as CTC_CLIPS
from tests.trainers.data.test_gpu_extractors import EXTRACTORS
from tests.trainers.synthetic import RATE_HZ, speechlike
from trainers.data.features import ExtractorFeatures, LogMel

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


@pytest.mark.parametrize("name", EXTRACTORS)
def test_the_input_of_a_ctc_model_is_the_extractor_s(name: str, exact: None) -> None:
    extractor, clips = EXTRACTORS[name], [torch.from_numpy(clip) for clip in CTC_CLIPS]
    features = ExtractorFeatures(extractor, masked=True).to(NAME)
    assert features.on_cpu != ON_GPU
    found, expected = (
        features.inputs(on_device(CTC_CLIPS), 4.0),
        ExtractorFeatures(extractor, masked=True).inputs(clips, 4.0),
    )
    assert all(values.device.type == NAME for values in found.values())
    assert found.keys() == expected.keys()
    assert all((values.cpu() - expected[key]).abs().max() <= TOLERANCE for key, values in found.items())
