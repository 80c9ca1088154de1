"""A hook of mkdocs: links that lead out of docs/, to files of the repository, lead to the repository's page of them."""

import posixpath
import re
from typing import Any

LINK = re.compile(r"(?<=\]\()\.\./[^)\s]+")


def on_page_markdown(markdown: str, page: Any, config: Any, **_: Any) -> str:
    """Rewrites the links of a page; those to other pages stay."""

    def rewritten(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(page.file.src_uri), link[0]))
        outside = target.startswith("../")
        return f"{config.repo_url.rstrip('/')}/blob/main/{target.removeprefix('../')}" if outside else link[0]

    return LINK.sub(rewritten, markdown)
