"""Small models, and what serves them."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
import torch
from transformers import (
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2Processor,
)

from tests.web import WebServer, publish_repository, serving
from trainers.storage import RetryPolicy, hub_errors, web_files

HUB_ID = "somebody/speech"


@pytest.fixture(autouse=True)
def quick_and_apart(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A node of its own for each test, that tries again at once."""
    retries = RetryPolicy(attempts=4, first_delay_s=0.0)
    monkeypatch.setattr(web_files, "_RETRY", retries)
    monkeypatch.setattr(hub_errors, "HUB_RETRIES", retries)
    (tmp_path / "node").mkdir()
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "node"))


@pytest.fixture(scope="session")
def ctc_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ctc(tmp_path_factory.mktemp("sources") / "ctc")


def write_ctc(folder: Path) -> Path:
    """Writes a tiny wav2vec2 with its processor, as `save_pretrained` leaves them."""
    letters = ["[PAD]", "[UNK]", "|", *"abcdefghijklmnopqrstuvwxyz"]
    folder.mkdir()
    (folder / "vocab.json").write_text(str({token: number for number, token in enumerate(letters)}).replace("'", '"'))
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"), unk_token="[UNK]", pad_token="[PAD]")
    extractor = Wav2Vec2FeatureExtractor(return_attention_mask=True, do_normalize=True)
    torch.manual_seed(1)
    sizes: dict[str, Any] = {
        "hidden_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 16,
    }
    convolutions: dict[str, Any] = {
        "conv_dim": (8, 8),
        "conv_stride": (10, 16),
        "conv_kernel": (10, 16),
        "feat_extract_norm": "layer",
    }
    config = Wav2Vec2Config(
        vocab_size=len(letters), pad_token_id=0, num_conv_pos_embedding_groups=2, **sizes, **convolutions
    )
    Wav2Vec2ForCTC(config).save_pretrained(folder)
    Wav2Vec2Processor(extractor, tokenizer).save_pretrained(folder)
    return folder


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[WebServer]:
    """A Hub for huggingface_hub in this process, with a cache of its own."""
    with serving() as server:
        monkeypatch.setattr(huggingface_hub.constants, "ENDPOINT", server.url)
        template = server.url + "/{repo_id}/resolve/{revision}/{filename}"
        monkeypatch.setattr(huggingface_hub.constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path / "hub"))
        yield server


@pytest.fixture
def on_hub(hub: WebServer, ctc_folder: Path) -> str:
    """The commit of `HUB_ID`."""
    return publish_repository(hub, HUB_ID, ctc_folder)
