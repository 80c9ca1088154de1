"""OpenAI's own checkpoints of Whisper, against a network of OpenAI's modules."""

from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import GenerationConfig, WhisperForConditionalGeneration, WhisperProcessor

from tests.trainers.models.sources.openai_whisper import DIMS, Whisper, write_checkpoint
from tests.trainers.synthetic import config
from tests.web import WebServer
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError, StorageError
from trainers.models.families import resolve_model
from trainers.models.sources.opened_model import open_sources, pin_sources
from trainers.models.sources.source_reader import SourceReader
from trainers.storage import sha256_of


@pytest.fixture(scope="module")
def network() -> Whisper:
    torch.manual_seed(3)
    return Whisper().eval()


@pytest.fixture(scope="module")
def checkpoint(network: Whisper, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(tmp_path_factory.mktemp("openai") / "tiny.pt", network)


def wanted(source: object, tokenizer: Path | None, **changes: Any) -> TrainConfig:
    model = {"name_or_path": str(source), "language": "Serbian", "allow_pickle": True, **changes}
    return config({"model": model | ({"tokenizer_name": str(tokenizer)} if tokenizer is not None else {})})


def opened(recipe: TrainConfig) -> Path:
    folder = open_sources(recipe, pin_sources(recipe), weights=True).folder
    assert folder is not None
    return folder


def test_what_is_converted_gives_the_same_outputs(checkpoint: Path, network: Whisper) -> None:
    recipe = wanted(checkpoint, None)
    folder = SourceReader.of(recipe).folder(pin_sources(recipe)["name_or_path"], weights=True)
    converted = WhisperForConditionalGeneration.from_pretrained(folder).eval()
    mel, tokens = torch.randn(2, 80, 3000), torch.tensor([[50258, 50303, 50359, 50363, 100], [50258, 1, 2, 3, 4]])
    with torch.no_grad():
        ours, theirs = converted(input_features=mel, decoder_input_ids=tokens).logits, network(mel, tokens)
    torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-4)
    assert float(theirs.std()) > 0.1


@pytest.mark.integration
def test_it_has_the_tokens_of_its_tokenizer_and_generates_as_the_hub_s_does(
    checkpoint: Path, hub_whisper: Path
) -> None:
    folder = opened(wanted(checkpoint, hub_whisper))
    ours, theirs = GenerationConfig.from_pretrained(folder), GenerationConfig.from_pretrained(hub_whisper)
    ids = ("bos_token_id", "eos_token_id", "pad_token_id", "decoder_start_token_id", "no_timestamps_token_id")
    tables = ("prev_sot_token_id", "begin_suppress_tokens", "is_multilingual", "lang_to_id", "task_to_id")
    for name in (*ids, *tables, "max_length", "return_timestamps"):
        assert getattr(ours, name) == getattr(theirs, name), name
    assert set(ours.suppress_tokens) >= set(theirs.suppress_tokens)
    tokenizer, wanted_one = (WhisperProcessor.from_pretrained(each).tokenizer for each in (folder, hub_whisper))
    assert tokenizer("Добар дан").input_ids == wanted_one("Добар дан").input_ids


@pytest.mark.integration
def test_it_is_trained_as_any_other_whisper(checkpoint: Path, hub_whisper: Path) -> None:
    recipe = wanted(checkpoint, hub_whisper)
    found = open_sources(recipe, pin_sources(recipe), weights=True)
    resolved, family = resolve_model(recipe, found)
    recognizer = family.load_recognizer(found.applied_to(resolved.model), None, seed=1)
    assert recognizer.notes == ()
    assert recognizer.limits.context_s == 30
    assert found.is_own


@pytest.mark.integration
def test_it_may_lie_at_a_url(checkpoint: Path, web: WebServer, hub_whisper: Path) -> None:
    url = web.publish("/models/tiny.pt", checkpoint.read_bytes())
    recipe = wanted(f"{url}#sha256={sha256_of(checkpoint)}", hub_whisper)
    assert (opened(recipe) / "model.safetensors").exists()
    assert web.gets("/models/tiny.pt") == [None]


def test_without_a_tokenizer_it_says_which_one(checkpoint: Path) -> None:
    with pytest.raises(ConfigError, match=r"holds no tokenizer, .* set model\.tokenizer_name: openai/whisper-tiny"):
        opened(wanted(checkpoint, None))


@pytest.mark.integration
def test_where_pickles_are_not_allowed_it_is_not_read(checkpoint: Path, hub_whisper: Path) -> None:
    with pytest.raises(ConfigError, match=r"tiny\.pt: is a pickled checkpoint, .* set model\.allow_pickle: true"):
        opened(wanted(checkpoint, hub_whisper, allow_pickle=False))


class Exploit:
    """What a pickle runs when it is opened without care."""

    def __reduce__(self) -> tuple[Any, tuple[str]]:
        return (exec, ("raise SystemExit('it was run')",))


def test_code_in_it_is_never_run(tmp_path: Path, network: Whisper) -> None:
    torch.save({"dims": Exploit(), "model_state_dict": network.state_dict()}, tmp_path / "evil.pt")
    with pytest.raises(ConfigError, match=r"evil\.pt: holds more than weights"):
        opened(wanted(tmp_path / "evil.pt", None))


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"dims": {**DIMS, "n_text_layer": 3}}, r"model\.decoder\.layers\.2\..* is missing or of another size"),
        ({"dims": {**DIMS, "n_vocab": 51_864}}, r"embed_tokens\.weight is missing or of another size"),
        ({"dims": {"n_mels": 80}}, "has no dims and model_state_dict"),
        ({"model_state_dict": None}, "has no dims and model_state_dict"),
    ],
)
def test_what_is_none_of_openai_s_is_refused(
    tmp_path: Path, network: Whisper, change: dict[str, Any], message: str
) -> None:
    torch.save({"dims": dict(DIMS), "model_state_dict": network.state_dict(), **change}, tmp_path / "odd.pt")
    with pytest.raises(ConfigError, match=message):
        opened(wanted(tmp_path / "odd.pt", None))


def test_one_with_a_changed_bit_is_not_converted(tmp_path: Path, checkpoint: Path) -> None:
    data = bytearray(checkpoint.read_bytes())
    # Most of it is weights, of which torch takes any.
    data[len(data) // 2] ^= 1
    (tmp_path / "changed.pt").write_bytes(data)
    with pytest.raises(StorageError, match=r"changed\.pt: is damaged \(Bad CRC-32"):
        opened(wanted(tmp_path / "changed.pt", None))


def test_one_that_is_cut_is_not_converted(tmp_path: Path, checkpoint: Path) -> None:
    (tmp_path / "cut.pt").write_bytes(checkpoint.read_bytes()[:-1000])
    with pytest.raises((ConfigError, StorageError)):
        opened(wanted(tmp_path / "cut.pt", None))
