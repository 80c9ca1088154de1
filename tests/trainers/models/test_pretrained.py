"""Weights on the Hub: what may pass is tried again, and what will not is the config's."""

import errno
import logging
from types import SimpleNamespace
from typing import Any

import pytest
from huggingface_hub.utils._http import http_backoff
from transformers import PretrainedConfig, WhisperConfig

from tests.trainers.synthetic import config
from trainers.config.parts.model_part import ModelPart
from trainers.config.storage_location import StorageOptions
from trainers.data.sources.known_sources import open_sources
from trainers.errors import ConfigError, DataError, RayscribeError, StorageError
from trainers.models.families import family_of
from trainers.models.pretrained import open_named, refuse_other_sizes
from trainers.storage import RetryPolicy, hub_errors

HUB_ID = "somebody/whisper"


class HfHubHTTPError(OSError):
    """As huggingface_hub's, with the response that it is about."""

    def __init__(self, status: int) -> None:
        super().__init__(f"Client error '{status}' for url 'https://huggingface.co/…'")
        self.response = SimpleNamespace(status_code=status)


class TransportError(Exception):
    """httpx's base."""


class ConnectError(TransportError):
    """As httpx's."""


class OfflineModeIsEnabled(ConnectionError):
    """As huggingface_hub's."""


def wrapped(cause: Exception) -> OSError:
    """As transformers wraps what the Hub's library raises; seen with transformers 5.23 and huggingface_hub 2.4."""
    middle = FileNotFoundError("An error happened while trying to locate the file on the Hub")
    middle.__cause__ = cause
    outer = OSError("We couldn't connect to 'https://huggingface.co' to load the files")
    outer.__cause__ = middle
    return outer


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub_errors, "HUB_RETRIES", RetryPolicy(attempts=3, first_delay_s=0.0))


def pretrained() -> ModelPart:
    return config({"model": {"init": "pretrained", "name_or_path": HUB_ID, "language": "English"}}).model


def failing(monkeypatch: pytest.MonkeyPatch, *errors: Exception) -> list[str]:
    """Has the Hub fail in these ways, one after the other, then respond; gives back what it was asked for."""
    asked: list[str] = []

    def get_config_dict(name: str, **_: Any) -> tuple[dict[str, str], dict[str, str]]:
        asked.append(name)
        if len(asked) <= len(errors):
            raise errors[len(asked) - 1]
        return {"model_type": "whisper"}, {}

    monkeypatch.setattr(PretrainedConfig, "get_config_dict", get_config_dict)
    return asked


PASSING = [
    wrapped(HfHubHTTPError(429)),
    wrapped(HfHubHTTPError(503)),
    wrapped(ConnectError("[Errno -2] Name or service not known")),
    wrapped(TimeoutError("timed out")),
    OSError(errno.ESTALE, "Stale file handle"),
]


@pytest.mark.parametrize("error", PASSING, ids=str)
class TestHiccups:
    def test_one_is_tried_again(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        asked = failing(monkeypatch, error, error)
        assert family_of(pretrained()).name == "whisper"
        assert asked == [HUB_ID] * 3

    def test_one_that_stays_is_no_error_of_the_config(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        failing(monkeypatch, *[error] * 3)
        with pytest.raises(
            StorageError, match=r"cannot read model\.name_or_path: somebody/whisper: .* \(tried 3"
        ) as caught:
            family_of(pretrained())
        assert not caught.value.final, "workers are started anew"

    def test_a_data_set_is_read_again_too(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("datasets.load_dataset_builder", fail)
        source = {"data.train": None, "data.validation": None, "data.dataset": {"name": "somebody/speech"}}
        with pytest.raises(
            StorageError, match=r"cannot read data\.dataset: somebody/speech .*split train: .* \(tried 3"
        ):
            open_sources(config(source).data, storage_options=StorageOptions())


@pytest.mark.parametrize(
    "error",
    [
        wrapped(HfHubHTTPError(404)),
        wrapped(HfHubHTTPError(401)),
        wrapped(OfflineModeIsEnabled("HF_HUB_OFFLINE")),
        OSError("it has no config.json"),
        OSError(errno.EACCES, "Permission denied"),
        ValueError("unrecognized"),
    ],
    ids=str,
)
class TestFaults:
    def test_one_is_the_config_s_at_once(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        asked = failing(monkeypatch, error)
        with pytest.raises(ConfigError, match=r"model\.name_or_path: somebody/whisper cannot be opened"):
            family_of(pretrained())
        assert asked == [HUB_ID]

    def test_one_of_a_data_set_is_the_data_s(self, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
        def fail(*_: object, **__: object) -> None:
            raise error

        monkeypatch.setattr("datasets.load_dataset_builder", fail)
        source = {"data.train": None, "data.validation": None, "data.dataset": {"name": "somebody/speech"}}
        with pytest.raises(DataError):
            open_sources(config(source).data, storage_options=StorageOptions())


def test_the_exit_code_is_that_of_a_storage_which_a_service_tries_again() -> None:
    assert issubclass(StorageError, RayscribeError)
    assert StorageError.exit_code == 4


def test_of_a_hub_that_does_not_respond_there_is_one_line(
    capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    logger = logging.getLogger("huggingface_hub.utils._http")
    caplog.set_level(logging.WARNING)

    def ask() -> None:
        logger.warning("A key of the Hub is about to expire")
        http_backoff("GET", "http://127.0.0.1:1", max_retries=2, base_wait_time=0.0)

    with pytest.raises(StorageError, match=r"no connection .*a new model needs no weights: .*--model scratch"):
        open_named("model.name_or_path", "somebody/whisper", ask)
    shown = "model.name_or_path: somebody/whisper: the Hub does not respond; retrying for a minute or two"
    assert capsys.readouterr().out.splitlines() == [shown]
    assert {record.getMessage() for record in caplog.records} <= {"A key of the Hub is about to expire"}


@pytest.mark.parametrize("switched", [{"use_cache": False}, {"apply_spec_augment": True}])
def test_what_training_switches_is_no_size_of_a_checkpoint(switched: dict[str, Any]) -> None:
    refuse_other_sizes(WhisperConfig(**switched), WhisperConfig(), None)
    with pytest.raises(ConfigError, match="differs from the config's: d_model 64, not 32"):
        refuse_other_sizes(WhisperConfig(d_model=64, **switched), WhisperConfig(d_model=32), None)
