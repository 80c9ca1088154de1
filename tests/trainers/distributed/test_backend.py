import pytest

from trainers.distributed.session import LocalSession, refuse_unavailable
from trainers.errors import ConfigError


@pytest.mark.parametrize("backend", ["nothing", "cpu:gloo,cuda:nothing"])
def test_a_backend_that_torch_does_not_have_is_refused(backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "2", "LOCAL_RANK": "0"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(ConfigError, match=f"scaling.backend: {backend}: .* has no backend nothing; set it to auto"):
        LocalSession.of_this_process(backend)


@pytest.mark.parametrize("backend", ["gloo", "cpu:gloo"])
def test_one_that_it_has_is_taken(backend: str) -> None:
    refuse_unavailable(backend)
