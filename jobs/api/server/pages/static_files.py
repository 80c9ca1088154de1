"""What every page loads: the style, an icon, and htmx, by which pages follow the runs.

htmx is dist/htmx.min.js of its npm package htmx.org, version 4.0.1 (0BSD, htmx-4.0.1.LICENSE), byte for byte. It is
kept here, so that the wheel has it: whoever installs Rayscribe needs no npm and no build step, and no page loads from
elsewhere. Its hash is written down here, and browsers check it, too. For another version: `npm pack htmx.org`, which
checks the registry's hash of the package; then the file, its license and the two constants.
"""

import base64
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path

from fastapi import APIRouter, Response

from jobs.api.protocol import UI
from jobs.errors import NotFoundError
from trainers.scoring.report.rendering import CSS, TEMPLATES

STATIC = f"{UI}/static"
HTMX = "htmx-4.0.1.min.js"
HTMX_SHA256 = "a0abb04f2f45a1f89d1d4844023245537e5e6014c87b144553e0607b4cc32130"
FOLDER = Path(__file__).parent / "static"
# Each with the folder that it is in; pages look as reports do.
FILES = {CSS: TEMPLATES, "pages.css": FOLDER, "icon.svg": FOLDER, HTMX: FOLDER}
TYPES = {".css": "text/css", ".svg": "image/svg+xml", ".js": "text/javascript"}
# A URL has the hash of its content.
CACHE_CONTROL = "public, max-age=31536000, immutable"

router = APIRouter()


@dataclass(frozen=True)
class StaticFile:
    """A file, its URL, and what a browser checks it against."""

    content: bytes
    media_type: str
    url: str
    integrity: str


@cache
def static_files() -> dict[str, StaticFile]:
    """All files, by name."""
    found = {}
    for name, folder in FILES.items():
        content = (folder / name).read_bytes()
        digest = sha256(content)
        url = f"{STATIC}/{name}?v={digest.hexdigest()[:12]}"
        integrity = f"sha256-{base64.b64encode(digest.digest()).decode()}"
        found[name] = StaticFile(content, TYPES[Path(name).suffix], url, integrity)
    return found


@router.get("/static/{name}")
def static_file(name: str) -> Response:
    """Needs no token: the files are the same for every installation of a version."""
    found = static_files().get(name)
    if found is None:
        raise NotFoundError("there is no such file")
    return Response(found.content, media_type=found.media_type, headers={"Cache-Control": CACHE_CONTROL})
