"""Who sees the pages, and whose requests change something."""

from typing import NoReturn

import httpx
import pytest

from jobs.api.server.app import make_app
from jobs.api.server.pages.page_access import COOKIE, SIGN_IN
from jobs.errors import LedgerError
from jobs.ledger import Ledger
from jobs.ledger.tokens import Tokens
from jobs.model import RunState
from tests.jobs.api.backend_harness import BackendHarness, served
from tests.jobs.api.pages.conftest import browsing, signed_in
from tests.jobs.api.pages.read_pages import links, read_page, text_of

PAGES = (
    "/ui/runs",
    "/ui/runs/run-training?attempt=1",
    "/ui/logs/run-failed",
    "/ui/report/x",
    "/ui/usage",
    "/ui/nothing",
)


@pytest.mark.parametrize("path", PAGES)
def test_a_browser_without_a_token_is_asked_for_it_and_comes_back(anonymous: httpx.Client, path: str) -> None:
    response = anonymous.get(path)
    assert response.status_code == 303 and "cookie" not in response.headers
    page = read_page(anonymous.get(response.headers["location"]))
    assert {field["name"]: field.get("value") for field in page.all("input")} == {"next": path, "token": None}
    # The API's way to send a token is not that of pages, and the other way round.
    assert anonymous.get(path, headers={"Authorization": "Bearer rsk_x"}).status_code == 303


@pytest.mark.parametrize("path", ["/", "/ui", "/ui/"])
def test_the_first_page_is_the_list_of_runs(anonymous: httpx.Client, path: str) -> None:
    response = anonymous.get(path)
    assert (response.status_code, response.headers["location"]) == (303, "/ui/runs")


@pytest.mark.parametrize(("scheme", "is_secure"), [("http", False), ("https", True)])
def test_a_token_is_kept_in_a_cookie_that_no_script_reads(
    shared: tuple[BackendHarness, str], anonymous: httpx.Client, scheme: str, is_secure: bool
) -> None:
    origin = f"{scheme}://{anonymous.base_url.host}:{anonymous.base_url.port}"
    fields = {"token": f" {shared[0].token}\n", "next": "/ui/usage"}
    response = anonymous.post(SIGN_IN, data=fields, headers={"Origin": origin})
    assert (response.status_code, response.headers["location"]) == (303, "/ui/usage")
    pair, *attributes = response.headers["set-cookie"].split("; ")
    assert pair == f"{COOKIE}={shared[0].token}"
    assert {item.lower() for item in attributes if "age" not in item.lower()} == {
        "httponly",
        "samesite=strict",
        "path=/ui",
        *(["secure"] if is_secure else []),
    }
    anonymous.cookies.clear()


@pytest.mark.parametrize("token", ["", "rsk_unknown", "x" * 5000, "\x00", "ž"])
def test_an_unknown_token_opens_nothing(shared: tuple[BackendHarness, str], token: str) -> None:
    with browsing(shared[1]) as client:
        response = client.post(SIGN_IN, data={"token": token})
        assert "not known" in text_of(read_page(response, 401))
        assert "set-cookie" not in response.headers


@pytest.mark.parametrize("target", ["https://evil.example/", "//evil.example", "/ui/\\evil", "/v1/runs", "", "/ui/ž"])
def test_signing_in_leads_to_pages_of_the_service_only(shared: tuple[BackendHarness, str], target: str) -> None:
    with browsing(shared[1]) as client:
        response = client.post(SIGN_IN, data={"token": shared[0].token, "next": target})
        assert response.headers["location"] == "/ui/runs"


def test_the_api_takes_no_cookie(shared: tuple[BackendHarness, str], anonymous: httpx.Client) -> None:
    cookie = {"Cookie": f"{COOKIE}={shared[0].token}"}
    assert anonymous.get("/v1/runs", headers=cookie).status_code == 401
    assert anonymous.get("/ui/runs", headers=cookie).status_code == 200


def test_a_revoked_token_signs_out_and_has_an_open_page_loaded_again(changed: tuple[BackendHarness, str]) -> None:
    harness, url = changed
    with signed_in(url, harness.ledger.tokens.add("boris", 1.0)) as browser:
        assert browser.get("/ui/runs").status_code == 200
        harness.ledger.tokens.revoke("boris")
        assert browser.get("/ui/runs").status_code == 303
        response = browser.get("/ui/runs", headers={"HX-Request": "true"})
        assert (response.status_code, response.headers["hx-refresh"]) == (401, "true")


def test_signing_out_deletes_the_cookie(shared: tuple[BackendHarness, str]) -> None:
    with signed_in(shared[1], shared[0].token) as browser:
        assert browser.post("/ui/sign-out").headers["location"] == SIGN_IN
        assert COOKIE not in browser.cookies
        assert browser.get("/ui/runs").status_code == 303


@pytest.mark.parametrize(
    "headers",
    [
        {},
        {"Origin": "null"},
        {"Origin": "http://evil.example"},
        {"Origin": "http://127.0.0.1:1"},
        {"Origin": "http://["},
        {"Origin": "OWN", "Sec-Fetch-Site": "cross-site"},
        {"Origin": "OWN", "Sec-Fetch-Site": "same-site"},
        {"Origin": "OWN", "Sec-Fetch-Site": "none"},
    ],
)
def test_a_request_that_another_site_s_page_may_have_sent_changes_nothing(
    shared: tuple[BackendHarness, str], headers: dict[str, str]
) -> None:
    harness, url = shared
    sent = {name: url if value == "OWN" else value for name, value in headers.items()}
    with httpx.Client(base_url=url, cookies={COOKIE: harness.token}, timeout=30) as client:
        for path in ("/ui/stop/run-training", "/ui/resume/run-failed", SIGN_IN, "/ui/sign-out"):
            assert "does not come from a page of this service" in text_of(
                read_page(client.post(path, headers=sent), 403)
            )
    assert harness.ledger.run("run-training").stop_requested_s is None
    assert harness.ledger.run("run-failed").state == "FAILED"


@pytest.mark.parametrize("headers", [{"Origin": "OWN"}, {"Sec-Fetch-Site": "same-origin"}])
def test_a_request_of_an_own_page_is_known_with_tls_and_without(
    changed: tuple[BackendHarness, str], headers: dict[str, str]
) -> None:
    harness, url = changed
    name = f"known-by-{''.join(headers)}"
    harness.add_in_state(name, RunState.TRAINING)
    sent = {name: url if value == "OWN" else value for name, value in headers.items()}
    response = httpx.post(f"{url}/ui/stop/{name}", headers=sent, cookies={COOKIE: harness.token}, timeout=30)
    assert response.status_code == 303
    assert harness.ledger.run(name).stop_requested_s is not None


def test_a_link_in_a_chat_is_opened_by_a_second_request_that_brings_the_cookie(anonymous: httpx.Client) -> None:
    response = anonymous.get("/ui/runs?state=ended", headers={"Sec-Fetch-Site": "cross-site"})
    page = read_page(response)
    (refresh,) = (found["content"] for found in page.all("meta") if "http-equiv" in found)
    assert refresh == "0;url=/ui/runs?state=ended"
    assert links(page) >= {"/ui/runs?state=ended"}


def test_a_database_that_does_not_respond_is_said_without_its_place(
    visitor: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def gone(*_: object, **__: object) -> NoReturn:
        raise LedgerError("the ledger sqlite:////srv/secret.db does not respond")

    for method, path in ((Ledger, "runs"), (Tokens, "user_of")):
        monkeypatch.setattr(method, path, gone)
        shown = text_of(read_page(visitor.get("/ui/runs"), 503))
        assert "database does not respond" in shown and "secret" not in shown


def test_an_error_of_the_service_is_a_page_without_its_text(
    visitor: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(*_: object, **__: object) -> NoReturn:
        raise ValueError("secret")

    monkeypatch.setattr(Ledger, "runs", broken)
    shown = text_of(read_page(visitor.get("/ui/runs"), 500))
    assert "internal error" in shown and "secret" not in shown


def test_without_tokens_the_pages_are_for_this_machine(harness: BackendHarness) -> None:
    with served(make_app(harness.backend, anonymous_user="owner")) as url, browsing(url) as client:
        page = read_page(client.get("/ui/runs"))
        assert "owner" in text_of(page) and "Sign out" not in text_of(page)
        harness.add("of-owner")
        assert client.post("/ui/stop/of-owner").status_code == 303
        assert harness.ledger.events("of-owner")[-1].text.startswith("owner requested")
        assert client.get("/ui/runs", headers={"Host": "evil.example"}).status_code == 403
