"""The part of the Hugging Face Hub's API that `datasets` reads a data set by, over HTTP: python hub_server.py FOLDER.

Serves a folder as the data set me/set at a free port, the first line of its output; each request is a line more.
"""

import json
import re
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

REVISION = "0" * 40
_API, _FILES = "/api/datasets/me/set", "/datasets/me/set/resolve/"
# Of the revision, or of the branch that it is the newest of.
_TREE = re.compile(rf"{_API}/tree/({REVISION}|main)/?")


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    folder: Path

    def do_GET(self) -> None:
        path = unquote(urlsplit(self.path).path)
        print(self.command, path, flush=True)
        if (tree := _TREE.match(path)) is not None:
            self._tree(self.folder / path[tree.end() :])
        elif path.startswith(_API):
            files = [{"rfilename": str(each.relative_to(self.folder))} for each in self.folder.rglob("*.*")]
            self._json({"id": "me/set", "sha": REVISION, "private": False, "tags": [], "siblings": files})
        elif path.startswith(_FILES):
            self._file(self.folder / path.removeprefix(_FILES).partition("/")[2])
        else:
            self._answer(404, b"{}")

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Says nothing on the error output."""

    def _tree(self, folder: Path) -> None:
        if not folder.is_dir():
            return self._answer(404, b"{}", {"X-Error-Code": "EntryNotFound"})
        found = folder.rglob("*") if "recursive=true" in self.path.lower() else folder.iterdir()
        return self._json([self._entry(path) for path in sorted(found)])

    def _entry(self, path: Path) -> dict[str, Any]:
        kind = "directory" if path.is_dir() else "file"
        return {"type": kind, "oid": "1" * 40, "size": path.stat().st_size, "path": str(path.relative_to(self.folder))}

    def _file(self, path: Path) -> None:
        if not path.is_file():
            return self._answer(404, b"", {"X-Error-Code": "EntryNotFound"})
        content, headers = path.read_bytes(), {"ETag": f'"{"1" * 40}"', "X-Repo-Commit": REVISION}
        first, _, last = self.headers.get("Range", "").removeprefix("bytes=").partition("-")
        if not first:
            return self._answer(200, content, headers)
        end = min(int(last) + 1, len(content)) if last else len(content)
        headers["Content-Range"] = f"bytes {first}-{end - 1}/{len(content)}"
        return self._answer(206, content[int(first) : end], headers)

    def _json(self, content: Any) -> None:
        self._answer(200, json.dumps(content).encode(), {"Content-Type": "application/json"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


if __name__ == "__main__":
    Handler.folder = Path(sys.argv[1])
    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(server.server_address[1], flush=True)
    server.serve_forever()
