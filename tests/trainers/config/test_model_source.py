"""Sources of models as recipes write them."""

from pathlib import Path

import pytest

from tests.trainers.synthetic import config
from trainers.config.locations import make_paths_absolute
from trainers.config.parts.model_source import ModelSource, SourceKind
from trainers.errors import ConfigError

SHA256 = "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected", "shown"),
    [
        ("openai/whisper-tiny", ModelSource(SourceKind.HUB, "openai/whisper-tiny"), "openai/whisper-tiny"),
        ("gpt2@refs/pr/3", ModelSource(SourceKind.HUB, "gpt2", "refs/pr/3"), "gpt2@refs/pr/3"),
        ("/models/a@b", ModelSource(SourceKind.PATH, "/models/a@b"), "/models/a@b"),
        ("./tiny.pt", ModelSource(SourceKind.PATH, "./tiny.pt"), "./tiny.pt"),
        ("s3://bucket/a/", ModelSource(SourceKind.STORAGE, "s3://bucket/a"), "s3://bucket/a"),
        ("run:first-1.2", ModelSource(SourceKind.RUN, "first-1.2"), "run:first-1.2"),
        ("https://a.b/m.zip", ModelSource(SourceKind.HTTPS, "https://a.b/m.zip"), "https://a.b/m.zip"),
        (
            f"https://a.b/m.zip?key=secret#sha256={SHA256.upper()}",
            ModelSource(SourceKind.HTTPS, "https://a.b/m.zip?key=secret", sha256=SHA256),
            "https://a.b/m.zip",
        ),
    ],
)
def test_one_is_taken_apart(text: str, expected: ModelSource, shown: str) -> None:
    assert ModelSource.parse(text) == expected
    assert expected.text == shown
    assert config({"model": {"name_or_path": text}}).model.name_or_path == text


@pytest.mark.parametrize("field", ["name_or_path", "tokenizer_name", "feature_extractor_name", "encoder", "decoder"])
@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("http://a.b/secret.zip", "http:// is not supported: give a Hub id, e.g. openai/whisper-tiny, https://"),
        ("ftp://a.b/secret.zip", "ftp:// is not supported: give a Hub id"),
        ("https://user:secret@a.b/m.zip", "without a user name or password"),
        ("https:///secret.zip", "give an https:// URL with a host"),
        ("https://a.b/secret.zip#md5=00", "#sha256=<64 hex digits>"),
        ("https://a.b/secret.zip#sha256=00", "#sha256=<64 hex digits>"),
        ("run:../secret", "must precede the name of a run"),
        ("run:", "must precede the name of a run"),
        ("secret/model@", "append the revision to its Hub id"),
    ],
)
def test_what_is_wrong_with_one_is_said_without_it(field: str, text: str, message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config({"model": {"name_or_path": "a/b", field: text}})
    assert f"model.{field}: " in str(caught.value)
    assert message in str(caught.value)
    assert "secret" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("a/b@v1", "name_or_path names the revision v1, and revision is v2: keep one of them"),
        ("s3://bucket/a", "name_or_path is not a Hub id, so it has no revisions"),
        ("run:first", "name_or_path is not a Hub id, so it has no revisions"),
    ],
)
def test_a_revision_is_one_of_the_hub_and_said_once(name: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        config({"model": {"name_or_path": name, "revision": "v2"}})


def test_what_is_on_a_disk_is_made_absolute_and_all_else_is_left(tmp_path: Path) -> None:
    (tmp_path / "words").mkdir()
    (tmp_path / "tiny.pt").write_bytes(b"")
    model = {"name_or_path": "tiny.pt", "tokenizer_name": "words", "feature_extractor_name": "run:first"}
    made = make_paths_absolute(config({"model": model}), tmp_path).model
    assert made.name_or_path == str(tmp_path / "tiny.pt")
    assert made.tokenizer_name == str(tmp_path / "words")
    assert made.feature_extractor_name == "run:first"
