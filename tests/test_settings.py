import pytest

from tests import settings


@pytest.mark.parametrize("value", [None, ""])
def test_an_empty_variable_counts_as_unset(value: str | None, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("RAYSCRIBE_TEST_DATA", "RAYSCRIBE_TEST_PROFILE"):
        monkeypatch.delenv(name, raising=False)
        if value is not None:
            monkeypatch.setenv(name, value)
    assert settings.speech_data() == settings.DEFAULT_SPEECH_DATA
    assert settings.examples(300) == 300


def test_the_quick_profile_tries_fewer_examples_but_some(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSCRIBE_TEST_PROFILE", "quick")
    assert settings.examples(300) == 30
    assert settings.examples(2) == 1
