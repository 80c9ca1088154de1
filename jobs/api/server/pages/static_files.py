"""Static files of every page: style sheet, icon, and htmx, which keeps pages up to date.

htmx is dist/htmx.min.js of its npm package htmx.org, version 4.0.1 (0BSD, htmx-4.0.1.LICENSE), byte for byte. The
wheel includes it, so that an installation needs no npm and no build step, and pages load nothing from elsewhere. Its
hash is a constant here, and browsers check it, too. To update: run `npm pack htmx.org`, which checks the registry's
hash of the package; then replace the file, its license and the two constants.
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
# File names with their folders; the pages share the style sheet of reports.
FILES = {CSS: TEMPLATES, "pages.css": FOLDER, "icon.svg": FOLDER, HTMX: FOLDER}
TYPES = {".css": "text/css", ".svg": "image/svg+xml", ".js": "text/javascript"}
# For good: each URL has the hash of its content.
CACHE_CONTROL = "public, max-age=31536000, immutable"

router = APIRouter()


@dataclass(frozen=True)
class StaticFile:
    """A file, its URL, and the hash against which browsers check it."""

    content: bytes
    media_type: str
    url: str
    integrity: str


@cache
def static_files() -> dict[str, StaticFile]:
    """Returns all files by name."""
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
    """Returns a file. Needs no token: the files are the same for every installation of a version."""
    found = static_files().get(name)
    if found is None:
        raise NotFoundError("there is no such file")
    return Response(found.content, media_type=found.media_type, headers={"Cache-Control": CACHE_CONTROL})
