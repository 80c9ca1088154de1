"""A page of HTML, read, and what holds for each page that Rayscribe writes."""

from html.parser import HTMLParser

VOID = {"meta", "br", "img", "link", "input", "hr"}


class Page(HTMLParser):
    """Elements with their attributes, and the text of each kind of element."""

    def __init__(self, html: str):
        super().__init__()
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.texts: dict[str, list[str]] = {}
        self._open: list[str] = []
        self.feed(html)
        assert self._open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self._open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_endtag(self, tag: str) -> None:
        assert self._open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self._open and data.strip():
            self.texts.setdefault(self._open[-1], []).append(" ".join(data.split()))

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]


def check_page(html: str) -> None:
    """It is one file that runs no script and fetches nothing; each table has a caption, each section its heading."""
    parsed = Page(html)
    assert parsed.all("script") == parsed.all("link") == parsed.all("iframe") == parsed.all("img") == []
    assert not [name for _, attributes in parsed.elements for name in attributes if name.startswith("on")]
    sources = [
        value
        for _, attributes in parsed.elements
        for key in ("src", "href", "xlink:href")
        if (value := attributes.get(key)) is not None
    ]
    assert all(source.startswith(("#", "data:audio/flac;base64,")) for source in sources)
    policy = next(found for found in parsed.all("meta") if found.get("http-equiv") == "Content-Security-Policy")
    assert "default-src 'none'" in (policy["content"] or "")
    assert len(parsed.texts["caption"]) == len(parsed.all("table")) > 0
    ids = [found["id"] for _, found in parsed.elements if "id" in found]
    assert len(ids) == len({*ids})
    assert all(found["aria-labelledby"] in ids for found in parsed.all("section"))
    assert all((found["href"] or "")[1:] in ids for found in parsed.all("a"))
