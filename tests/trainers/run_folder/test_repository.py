"""What is found before training of a token, a name and the rights for it."""

import huggingface_hub.constants
import pytest

from tests.hub import READING, TOKEN, Fault, Hub, Repository
from trainers.config.parts.run_part import HubPart
from trainers.errors import ConfigError, StorageError
from trainers.run_folder.hub_push import repository_of


@pytest.mark.parametrize(("model_id", "found"), [(None, "ana/sr"), ("mine", "ana/mine"), ("lab/sr", "lab/sr")])
def test_a_name_without_an_owner_is_the_account_s(taking_hub: Hub, model_id: str | None, found: str) -> None:
    repository = repository_of(HubPart(model_id=model_id), "sr", make=True)
    assert (repository.id, repository.url) == (found, f"{taking_hub.url}/{found}")
    assert taking_hub.repositories.keys() == {found}
    assert repository_of(HubPart(model_id=model_id), "sr", make=True) == repository, "one that is there is taken"


@pytest.mark.parametrize(
    ("token", "message"),
    [
        ("", "there is no token of the Hub: set HF_TOKEN where this runs"),
        ("hf_wrong", "does not accept the token, which is wrong or has expired: set HF_TOKEN"),
        (READING, "the token of ana only reads: give one that may write"),
        ("hf_two words", r"the token of the Hub \(not shown\) has characters"),
        ("hf_žeton", r"the token of the Hub \(not shown\) has characters"),
    ],
)
def test_a_token_that_cannot_push_is_said_and_not_shown(
    taking_hub: Hub, monkeypatch: pytest.MonkeyPatch, token: str, message: str
) -> None:
    monkeypatch.setenv("HF_TOKEN", token)
    monkeypatch.setattr(huggingface_hub.constants, "HF_TOKEN_PATH", "/nowhere/token")
    with pytest.raises(ConfigError, match=message) as caught:
        repository_of(HubPart(), "sr", make=True)
    assert not token or token not in str(caught.value)
    assert taking_hub.repositories == {}


@pytest.mark.parametrize("make", [True, False], ids=["makes it", "only asks"])
@pytest.mark.parametrize("is_there", [True, False])
def test_a_name_of_somebody_else_is_refused(taking_hub: Hub, make: bool, is_there: bool) -> None:
    if is_there:
        taking_hub.repositories["other/sr"] = Repository({"config.json": b"theirs"})
    with pytest.raises(ConfigError, match=r"hub\.model_id: other/sr: the token of ana may not .*hub\.model_id=OWNER"):
        repository_of(HubPart(model_id="other/sr"), "sr", make=make)


def test_who_only_asks_makes_nothing(taking_hub: Hub) -> None:
    assert repository_of(HubPart(), "sr", make=False).id == "ana/sr"
    assert taking_hub.repositories == {}


def test_a_name_that_the_hub_does_not_have_is_the_config_s(taking_hub: Hub) -> None:
    with pytest.raises(
        ConfigError, match=r"hub\.model_id is null, and run\.name a--b is not a valid name on the Hub: give"
    ):
        repository_of(HubPart(), "a--b", make=True)


def test_a_hub_that_is_down_is_a_storage_s_error_and_an_offline_process_the_config_s(
    taking_hub: Hub, monkeypatch: pytest.MonkeyPatch
) -> None:
    taking_hub.faults.append(Fault("whoami", 502, times=1000))
    with pytest.raises(StorageError, match=r"the Hub responds with status 502 \(tried 2 times\); try again later"):
        repository_of(HubPart(), "sr", make=True)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    with pytest.raises(ConfigError, match=r"HF_HUB_OFFLINE forbids to ask the Hub: unset it, or set hub\.push: false"):
        repository_of(HubPart(), "sr", make=True)


def test_what_a_server_repeats_of_the_token_is_not_shown(taking_hub: Hub) -> None:
    taking_hub.faults.append(Fault("repos/create", 418))
    with pytest.raises(ConfigError, match=r"refuses it .*not with Bearer …") as caught:
        repository_of(HubPart(), "sr", make=True)
    assert TOKEN not in str(caught.value)
