"""The package store: the working directory of each run, as a zip that was made when it was submitted."""

import re
from pathlib import Path

from jobs.errors import NotFoundError
from jobs.model import Run
from runtime_env.own_code import own_code
from runtime_env.package import has_entry, import_package, pack, verify
from trainers.errors import ConfigError


class PackageStore:
    """Zips by their SHA-256 in one folder. A retry next week runs the code that was submitted today."""

    def __init__(self, folder: Path):
        self.folder = folder
        self._own_code = ""

    def path(self, sha256: str) -> Path:
        """Where a package is, or would be; ConfigError for what is no SHA-256, so that no other file can be named."""
        if re.fullmatch(r"[0-9a-f]{64}", sha256) is None:
            raise ConfigError(f"package {sha256[:80]!r} is not a SHA-256: 64 hexadecimal digits")
        return self.folder / f"{sha256}.zip"

    def has(self, sha256: str) -> bool:
        return self.path(sha256).is_file()

    def verified_path(self, sha256: str) -> Path:
        """The path of a package whose bytes were checked.

        Raises:
            NotFoundError: it is not in the store.
            ConfigError: it is damaged.
        """
        path = self.path(sha256)
        if not path.is_file():
            raise NotFoundError(
                f"package {sha256} is no longer in the service's store: submit the run again under another name"
            )
        verify(path, sha256)
        return path

    def has_entry(self, sha256: str) -> bool:
        """Whether a package of the store has a task.py for a training to start with."""
        return has_entry(self.path(sha256))

    def put_own_code(self) -> str:
        """Stores the code that runs here, and gives its SHA-256; the same code is there only once.

        It is read once, as the code of a process does not change.
        """
        if not self._own_code or not self.has(self._own_code):
            self._own_code = pack(own_code(), self.folder, needed=None).sha256
        return self._own_code

    def code_of(self, run: Run) -> str | None:
        """The zip of the code that a run starts with, checked; None: it has that in its package.

        Raises:
            NotFoundError: it is not in the store.
            ConfigError: it is damaged.
        """
        sha256 = run.code
        if sha256 is None and run.config.get("trainer") == "script":
            # It was submitted to a version that sent what it had.
            sha256 = self.put_own_code()
        return None if sha256 is None else str(self.verified_path(sha256))

    def put(self, sha256: str, upload: Path) -> None:
        """Stores an uploaded zip, after checking its hash, its size and every name in it; see `import_package`."""
        import_package(upload, self.path(sha256))
