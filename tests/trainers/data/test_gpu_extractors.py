"""What is computed of a batch, on whatever device, against the extractors of transformers."""

from typing import Any

import numpy as np
import pytest
import torch
from transformers import SeamlessM4TFeatureExtractor, Wav2Vec2FeatureExtractor, WhisperFeatureExtractor

from tests.trainers.synthetic import RATE_HZ, speechlike
from trainers.data.features import LENGTHS, ExtractorFeatures, gpu_extractor

TOLERANCE = 1e-4
EXTRACTORS: dict[str, Any] = {
    "normalized samples": Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=True),
    "plain samples": Wav2Vec2FeatureExtractor(do_normalize=False),
    "pairs of mel frames": SeamlessM4TFeatureExtractor(padding_value=1),
}
# 561 samples are two frames, 720 and 880 three and four.
CLIPS = [speechlike(seconds, seed=seed) for seed, seconds in enumerate((0.3, 1.7, 2.9, 0.045, 561 / RATE_HZ, 0.055))]
LOUD = np.clip(10 * speechlike(0.6).astype(np.int32), -32768, 32767).astype(np.int16)
CLIPS += [np.zeros(7000, np.int16), LOUD]
CLIPS += [np.concatenate((np.zeros(4000, np.int16), speechlike(0.5), np.zeros(4000, np.int16)))]


def by_the_extractor(extractor: Any, edge_s: float | None) -> dict[str, torch.Tensor]:
    return ExtractorFeatures(extractor, masked=True).inputs([torch.from_numpy(clip) for clip in CLIPS], edge_s)


@pytest.mark.parametrize("name", EXTRACTORS)
@pytest.mark.parametrize("edge_s", [None, 4.0])
def test_a_batch_is_what_the_extractor_gives(name: str, edge_s: float | None) -> None:
    extractor, clips = EXTRACTORS[name], [torch.from_numpy(clip) for clip in CLIPS]
    together = ExtractorFeatures(extractor, masked=True)
    together._on_gpu = gpu_extractor(extractor)
    expected, found = by_the_extractor(extractor, edge_s), together.inputs(clips, edge_s)
    assert found.keys() == expected.keys()
    assert torch.equal(found[LENGTHS], expected[LENGTHS])
    assert torch.equal(found["attention_mask"], expected["attention_mask"])
    values = extractor.model_input_names[0]
    assert found[values].dtype == torch.float32
    assert found[values].shape == expected[values].shape
    assert (found[values] - expected[values]).abs().max() <= TOLERANCE


def test_an_extractor_that_is_not_known_stays_on_the_cpu() -> None:
    assert gpu_extractor(WhisperFeatureExtractor()) is None
    assert ExtractorFeatures(EXTRACTORS["plain samples"], masked=False).on_cpu
