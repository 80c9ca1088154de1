"""What every page loads."""

from hashlib import sha256
from urllib.parse import urlsplit

import httpx

from jobs.api.server.pages.page_rendering import FILES, FOLDER, HTMX, HTMX_SHA256
from tests.jobs.api.pages.read_pages import read_page


def test_htmx_is_the_file_of_its_package_with_its_license() -> None:
    content = (FOLDER / HTMX).read_bytes()
    assert sha256(content).hexdigest() == HTMX_SHA256
    version = HTMX.removeprefix("htmx-").removesuffix(".min.js")
    assert f'this.version="{version}"'.encode() in content
    assert "Zero-Clause BSD" in (FOLDER / f"htmx-{version}.LICENSE").read_text(encoding="utf-8")


def test_each_file_is_there_without_a_token_and_is_what_pages_say(
    visitor: httpx.Client, anonymous: httpx.Client
) -> None:
    page = read_page(visitor.get("/ui/runs"))
    named = {found.get("href") or found.get("src") or "" for found in [*page.all("link"), *page.all("script")]}
    assert {urlsplit(url).path.rpartition("/")[2] for url in named} == {*FILES}
    for url in named:
        response = anonymous.get(url).raise_for_status()
        assert response.headers["cache-control"].endswith("immutable")
        assert url.endswith(f"?v={sha256(response.content).hexdigest()[:12]}")
    read_page(anonymous.get("/ui/static/..%2fpage_rendering.py"), 404)
    read_page(anonymous.get("/ui/static/htmx-4.0.1.LICENSE"), 404)
