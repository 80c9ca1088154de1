"""The package store: the working directory of each run, as a zip that was created at submission."""

import re
from pathlib import Path

from jobs.errors import NotFoundError
from jobs.model import Run
from runtime_env.own_code import own_code
from runtime_env.package import has_entry, import_package, pack, verify
from trainers.errors import ConfigError


class PackageStore:
    """Zips by their SHA-256 in one folder, so that a later retry runs the code that was submitted."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._own_code = ""

    def path(self, sha256: str) -> Path:
        """Returns the path of a package, even if it is missing; raises ConfigError for a text that is not a SHA-256."""
        if re.fullmatch(r"[0-9a-f]{64}", sha256) is None:
            raise ConfigError(f"package {sha256[:80]!r} is not a SHA-256: 64 hexadecimal digits")
        return self.folder / f"{sha256}.zip"

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def verified_path(self, sha256: str) -> Path:
        """Returns the path of a package, after checking its bytes.

        Raises:
            NotFoundError: the package is not in the store.
            ConfigError: the package is damaged.
        """
        path = self.path(sha256)
        if not path.is_file():
            raise NotFoundError(
                f"package {sha256} is no longer in the service's store: submit the run again under another name"
            )
        verify(path, sha256)
        return path

    def has_entry(self, sha256: str) -> bool:
        """Returns True if a package of the store has a task.py that starts a training."""
        return has_entry(self.path(sha256))

    def put_own_code(self) -> str:
        """Stores Rayscribe's running code unless it is stored; returns its SHA-256.

        Reads the code once, since the code of a process does not change.
        """
        if not self._own_code or not self.has(self._own_code):
            self._own_code = pack(own_code(), self.folder, needed=None).sha256
        return self._own_code

    def code_of(self, run: Run) -> str | None:
        """Returns the zip of a run's code, see `verified_path`; None if the run uses the code in its package."""
        return None if run.code is None else str(self.verified_path(run.code))

    def put(self, sha256: str, upload: Path) -> None:
        """Stores an uploaded zip, after checking its hash, its size and every name in it; see `import_package`."""
        import_package(upload, self.path(sha256))
