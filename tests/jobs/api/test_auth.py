"""Who is let in, with tokens and without."""

import httpx
import pytest
from starlette.datastructures import Headers

from jobs.addresses import is_loopback
from jobs.api.server.app import make_app
from jobs.api.server.middleware import check_loopback, rejection_reason
from tests.jobs.api.backend_harness import BackendHarness, served
from trainers.errors import ConfigError

PATHS = ("/v1/runs", "/v1/runs/x/stop", "/v1/nothing", "/v1", "/docs", "/redoc", "/metrics", "/nothing", "/uii")


@pytest.mark.parametrize("path", PATHS)
@pytest.mark.parametrize(
    "header", [None, "Bearer", "Bearer rsk_unknown", "Basic YTpi", "rsk_unknown", "Bearer " + "x" * 9000]
)
def test_without_a_known_token_every_path_responds_with_401(
    anonymous: httpx.Client, path: str, header: str | None
) -> None:
    response = anonymous.get(path, headers={"Authorization": header} if header else {})
    assert response.status_code == 401
    assert response.headers["WWW-Authenticate"].startswith("Bearer")
    error = response.json()["error"]
    assert (error["type"], error["exit_code"]) == ("AuthError", 25)
    assert "RAYSCRIBE_TOKEN" in error["message"]


def test_the_description_is_public_since_it_is_the_same_everywhere(anonymous: httpx.Client) -> None:
    assert anonymous.get("/openapi.json").status_code == 200


def test_a_revoked_token_opens_nothing(http: httpx.Client, harness: BackendHarness) -> None:
    assert http.get("/v1/runs").status_code == 200
    harness.ledger.tokens.revoke("ana")
    assert http.get("/v1/runs").status_code == 401


def test_the_scheme_s_case_does_not_matter_and_a_query_holds_no_token(
    shared: tuple[BackendHarness, str], anonymous: httpx.Client
) -> None:
    harness = shared[0]
    assert anonymous.get("/v1/runs", headers={"Authorization": f"bearer {harness.token}"}).status_code == 200
    assert anonymous.get("/v1/runs", params={"token": harness.token}).status_code == 401


def test_a_body_is_not_read_without_a_token(anonymous: httpx.Client) -> None:
    assert anonymous.post("/v1/runs", content=b"x" * 5_000_000).status_code == 401


def test_without_tokens_a_program_on_this_machine_is_the_service_s_user(harness: BackendHarness) -> None:
    with (
        served(make_app(harness.backend, anonymous_user="owner")) as url,
        httpx.Client(base_url=url, timeout=30) as local,
    ):
        assert local.get("/v1/runs").status_code == 200
        assert local.post("/v1/runs/run-queued/stop").status_code == 200
        assert harness.ledger.events("run-queued")[-1].text.startswith("owner requested")
        for headers in ({"Host": "evil.example"}, {"Origin": "http://evil.example"}, {"Origin": "null"}):
            response = local.get("/v1/runs", headers=headers)
            assert response.status_code == 403
            assert response.json()["error"]["type"] == "AuthError"
        assert local.post("/v1/runs/run-retrying/stop", headers={"Sec-Fetch-Site": "cross-site"}).status_code == 403
    assert harness.ledger.run("run-retrying").state == "RETRYING"


@pytest.mark.parametrize(
    "host", ["127.0.0.1:8470", "localhost", "localhost:1", "[::1]:8470", "127.8.9.1", "LOCALHOST:80"]
)
def test_a_request_to_loopback_may_be_from_here(host: str) -> None:
    assert rejection_reason("POST", Headers({"host": host})) is None
    assert (
        rejection_reason("POST", Headers({"host": host, "origin": f"http://{host}", "sec-fetch-site": "same-origin"}))
        is None
    )


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"host": ""},
        {"host": "evil.example:8470"},
        {"host": "127.0.0.1.evil.example"},
        {"host": "127.0.0.1@evil.example"},
        {"host": "192.168.0.1"},
        {"host": "[::1"},
        {"host": "0.0.0.0:8470"},
        {"host": "127.0.0.1:8470", "origin": "http://127.0.0.1:9999"},
        {"host": "127.0.0.1:8470", "origin": "https://127.0.0.1:8470"},
        {"host": "127.0.0.1:8470", "origin": "http://localhost:8470"},
        {"host": "127.0.0.1:8470", "sec-fetch-site": "cross-site"},
        {"host": "127.0.0.1:8470", "sec-fetch-site": "same-site"},
    ],
)
def test_a_request_that_a_page_may_have_sent_is_refused(headers: dict[str, str]) -> None:
    assert rejection_reason("POST", Headers(headers)) is not None


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "10.0.0.1", "example.org", "", "2130706433"])
def test_no_tokens_are_possible_on_loopback_only(host: str) -> None:
    assert not is_loopback(host)
    with pytest.raises(ConfigError, match="--no-auth"):
        check_loopback(host)
