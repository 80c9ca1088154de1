"""Addresses of clusters: which texts are some, and what messages show of the others."""

import pytest

from jobs.addresses import is_cluster_address
from jobs.api.server.process import served_addresses
from trainers.config.storage_location import without_password
from trainers.errors import ConfigError


@pytest.mark.parametrize(
    "text", ["http://a:8265", "https://ray.example.org/x", "http://[::1]:8265", "cluster://speech"]
)
def test_a_dashboard_or_a_cluster_by_name_is_served(text: str) -> None:
    assert is_cluster_address(text)
    assert served_addresses([f"{text}/"]) == [text]


@pytest.mark.parametrize(
    "text",
    [
        "nonsense",
        "a:8265",
        "http://",
        "http://a:99999",
        "http://a b",
        "cluster://",
        "cluster://a/b",
        "ftp://a",
        "http://[",
    ],
)
def test_nonsense_is_refused_with_the_form(text: str) -> None:
    with pytest.raises(ConfigError, match=r"--address .*: write the URL of a cluster's dashboard, without credentials"):
        served_addresses([text])


@pytest.mark.parametrize(
    ("url", "shown"),
    [
        ("http://ana:secret@a:8265", "http://…@a:8265"),
        ("http://ana:se/cr@et@a", "http://…@a"),
        ("ana:secret@a", "…@a"),
        ("http://a?token=secret", "http://a"),
        ("http://a:8265", "http://a:8265"),
    ],
)
def test_no_password_is_shown(url: str, shown: str) -> None:
    assert without_password(url) == shown
    if "secret" in url and "@" in url:
        with pytest.raises(ConfigError) as raised:
            served_addresses([url])
        assert "secret" not in str(raised.value)
