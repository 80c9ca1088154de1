"""Skips all of the suite where there is no GPU; what its tests share."""

from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from tests.gpu import device
from tests.trainers.synthetic import write_corpus

HERE = Path(__file__).parent
TEXTS = ("one two", "three", "two two one", "four", "five three one", "one", "two four", "three five", "four one two")
SPLITS = {"train": 0, "validation": 1, "test": 2}


def pytest_collection_modifyitems(items: Sequence[pytest.Item]) -> None:
    reason = device.missing()
    for item in items:
        if reason is not None and item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Tones of 0.4 to 2.8 s with transcripts, in three splits."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, first in SPLITS.items():
        texts = [TEXTS[(first + number) % len(TEXTS)] for number in range(12)]
        write_corpus(folder, texts, durations_s=[0.4 + 0.2 * number for number in range(12)], name=name)
    return folder


@pytest.fixture
def exact() -> Iterator[None]:
    """Within it no product of float32 is made in TF32."""
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32
    matmul.allow_tf32 = cudnn.allow_tf32 = False
    yield
    matmul.allow_tf32, cudnn.allow_tf32 = before
