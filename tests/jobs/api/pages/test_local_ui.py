"""rayscribe ui: the pages of this user's runs, for one browser of this machine."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import quote, urlsplit

import pytest

from jobs.api.server.app import ui_app
from jobs.api.server.pages.page_access import COOKIE, SIGN_IN, access_by_link
from jobs.service.standalone import open_local
from tests.jobs.api.backend_harness import served
from tests.jobs.api.pages.conftest import browsing
from tests.jobs.api.pages.read_pages import links, read_page, text_of
from tests.jobs.ledger.builders import TIMEOUT_S, make_run
from tests.jobs.service.direct.registry import register, train
from tests.test_architecture import ROOT


@pytest.fixture
def url_and_token(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[tuple[str, str]]:
    """The pages of a home with a run of the ledger, and one without a queue that was killed."""
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))
    train(register(tmp_path), tmp_path)
    access, token = access_by_link("ana")
    with open_local() as local:
        run = make_run("queued", run_folder=f"{tmp_path}/queued")
        local.ledger.requests.add_run(run, text="submitted by ana")
        with served(ui_app(local, access)) as url:
            yield url, token


def test_the_link_is_good_for_one_browser(url_and_token: tuple[str, str]) -> None:
    url, token = url_and_token
    with browsing(url) as client:
        response = client.get(SIGN_IN, params={"token": token})
        assert token not in response.text and "/ui/runs" in links(read_page(response))
        assert COOKIE in client.cookies and client.get("/ui/runs").status_code == 200
    with browsing(url) as other:
        assert "opened before" in text_of(read_page(other.get(SIGN_IN, params={"token": token}), 401))
        assert other.get("/ui/runs").status_code == 303
        sign_in = read_page(other.get(SIGN_IN))
        assert "rayscribe ui" in text_of(sign_in) and not {"ana", "Sign out", "Runs"} & {*text_of(sign_in).split("\n")}
        for cookie in (token, "x", "ž"):
            response = other.get("/ui/runs", headers=[(b"Cookie", f"{COOKIE}={cookie}".encode())])
            assert response.status_code == 303
        assert other.get(SIGN_IN, headers={"Host": "evil.example"}).status_code == 403
        # There is no API.
        assert "There is no such page." in text_of(read_page(other.get("/v1/runs"), 404))


def test_all_runs_of_the_user_are_shown_and_can_be_stopped(url_and_token: tuple[str, str], tmp_path: Path) -> None:
    url, token = url_and_token
    with browsing(url) as client:
        client.get(SIGN_IN, params={"token": token})
        page = read_page(client.get("/ui/runs"))
        own, queued = (f"/ui/runs/{quote(f'{tmp_path}/{name}', safe='')}" for name in ("sr", "queued"))
        assert {own, queued} <= links(page)
        shown = read_page(client.get(own))
        assert "its driver was killed at step 3/8" in text_of(shown) and "without a queue" in text_of(shown)
        assert not [link for link in links(shown) if "/stop/" in link or "/resume/" in link]
        response = client.post(queued.replace("/runs/", "/stop/"))
        assert (response.status_code, response.headers["location"]) == (303, queued)
        assert "stopped" in read_page(client.get(queued)).texts["span"]
        assert "rayscribe resume" in text_of(read_page(client.post(own.replace("/runs/", "/resume/")), 409))
        read_page(client.get("/ui/usage"))


@pytest.mark.integration
def test_the_command_prints_the_link_and_ends_with_ctrl_c(tmp_path: Path) -> None:
    command = [sys.executable, "-c", "import sys; from jobs.cli import main; sys.exit(main())", "ui", "--port", "0"]
    environment = {**os.environ, "RAYSCRIBE_HOME": str(tmp_path), "PYTHONUNBUFFERED": "1"}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment, cwd=ROOT) as process:
        timer = threading.Timer(TIMEOUT_S, process.kill)
        timer.start()
        try:
            assert process.stdout is not None
            link = process.stdout.readline().partition("your runs: ")[2].strip()
            with browsing(f"http://{urlsplit(link).netloc}") as client:
                client.get(link).raise_for_status()
                read_page(client.get("/ui/runs"))
            process.send_signal(signal.SIGINT)
            assert process.wait(TIMEOUT_S) == 0
        finally:
            timer.cancel()
            process.kill()
