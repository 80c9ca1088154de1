"""Files of trackers that have no server, in the run folder. Derived: each worker group writes them anew, complete."""

from dataclasses import dataclass, field
from pathlib import Path
from shutil import rmtree

from trainers.config.storage_location import is_url
from trainers.run_folder.layout import TENSORBOARD, WANDB, RunFolder


@dataclass(frozen=True)
class TrackerFiles:
    """Folders of trackers: in the run folder itself, or where that is in a bucket, below `staging` until uploaded."""

    folder: RunFolder
    staging: Path
    _replaced: set[str] = field(default_factory=set)

    @property
    def root(self) -> Path:
        """Where the folders are made."""
        return self.staging if is_url(self.folder.url) else Path(self.folder.url)

    def renew(self, name: str) -> Path:
        """An empty folder, in place of that of the groups before."""
        made = self.root / name
        rmtree(made, ignore_errors=True)
        made.mkdir(parents=True)
        return made

    def upload(self) -> None:
        """Copies the folders to a bucket, the first time in place of those of the groups before.

        Raises:
            StorageError: the storage does not accept it.
        """
        for name in (TENSORBOARD, WANDB):
            local = self.staging / name
            if local.is_dir():
                if name not in self._replaced:
                    self.folder.storage.delete_tree(name)
                    self._replaced.add(name)
                self.folder.storage.upload_folder(local, name)
