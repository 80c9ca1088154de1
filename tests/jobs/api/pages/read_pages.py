"""A page of the service, read, and what holds for each of them."""

import httpx

from tests.trainers.scoring.report.parsed_page import Page


def read_page(response: httpx.Response, status: int = 200) -> Page:
    """The page; it has no script and no style of its own, and its policy allows none."""
    assert response.status_code == status, response.text
    assert response.headers["content-type"].startswith("text/html")
    policy = dict(part.split(" ", 1) for part in response.headers["content-security-policy"].split("; "))
    assert policy["default-src"] == policy["base-uri"] == policy["frame-ancestors"] == "'none'"
    assert policy["script-src"] == policy["style-src"] == policy["connect-src"] == policy["form-action"] == "'self'"
    assert response.headers["cache-control"] == "no-store"
    page = Page(response.text)
    assert [script["src"] for script in page.all("script")] and "script" not in page.texts
    assert page.all("style") == []
    assert not [name for _, found in page.elements for name in found if name.startswith(("on", "style"))]
    sources = [found[name] or "" for _, found in page.elements for name in ("src", "href", "action") if name in found]
    assert all(source.startswith(("/ui/", "#")) for source in sources)
    ids = [found["id"] for _, found in page.elements if "id" in found]
    assert len(ids) == len({*ids})
    assert len(page.all("h1")) == len(page.all("main")) == 1
    assert len(page.texts.get("caption", ())) == len(page.all("table"))
    return page


def links(page: Page) -> set[str]:
    return {found["href"] or "" for found in page.all("a")}


def text_of(page: Page) -> str:
    """All texts, in no order."""
    return "\n".join(text for texts in page.texts.values() for text in texts)
