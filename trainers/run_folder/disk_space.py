"""Estimates at the start of training whether checkpoints fit on the disks, instead of failing hours later."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from trainers.config.parts.run_part import BYTES_PER_NUMBER
from trainers.config.wording import format_bytes

# Number of checkpoints on the node's own disk, since one is uploaded while the next is written.
STAGED_CHECKPOINTS = 2


@dataclass(frozen=True)
class DiskEstimate:
    """The space that checkpoints need, and the free space.

    Attributes:
        staging: Folder on this node in which checkpoints are written.
        staging_free_bytes: Free space there.
        kept: Maximum number of checkpoints that the run keeps, including the one being uploaded; None for all.
        storage: Folder of runs; None for a bucket.
        storage_free_bytes: Free space there, including the run's own checkpoints, since they are replaced.
        models_bytes: Size of the complete models that a run writes to each disk besides checkpoints: with an adapter,
            the merged model, and the base weights if these are the run's own; and those among which it chooses at its
            end.
    """

    checkpoint_bytes: int
    staging: str
    staging_free_bytes: int
    kept: int | None
    storage: str | None = None
    storage_free_bytes: int = 0
    models_bytes: int = 0

    @classmethod
    def of(
        cls,
        checkpoint_bytes: int,
        staging: Path,
        num_to_keep: int | None,
        storage: str | None,
        *,
        existing_bytes: int,
        fetched_bytes: int,
        models_bytes: int = 0,
    ) -> "DiskEstimate":
        """Reads the free space of the disks.

        Existing checkpoints are replaced unless all are kept; the fetched checkpoint is deleted after it is loaded.
        """
        kept = num_to_keep + 2 if num_to_keep is not None else None
        replaced = existing_bytes if kept is not None else 0
        stored_free = shutil.disk_usage(storage).free + replaced if storage is not None else 0
        staging_free = shutil.disk_usage(staging).free + fetched_bytes
        return cls(checkpoint_bytes, str(staging), staging_free, kept, storage, stored_free, models_bytes)

    @property
    def line(self) -> str:
        parts = [
            f"a checkpoint takes about {format_bytes(self.checkpoint_bytes)}",
            f"up to {STAGED_CHECKPOINTS} in {self.staging} ({format_bytes(self.staging_free_bytes)} free)",
        ]
        if self.storage is not None:
            parts.append(f"{self._count} in {self.storage} ({format_bytes(self.storage_free_bytes)} free)")
        return "disk: " + " · ".join(parts) + self._models

    @property
    def problem(self) -> str | None:
        """A message about a disk that is too small, with the fix; None if the checkpoints fit on both disks."""
        staged = STAGED_CHECKPOINTS * self.checkpoint_bytes + self.models_bytes
        each = f"of about {format_bytes(self.checkpoint_bytes)}"
        if self.staging_free_bytes < staged:
            return (
                f"{self.staging}: {format_bytes(self.staging_free_bytes)} are free, and {STAGED_CHECKPOINTS} "
                f"checkpoints {each} are written there{self._models}: free {format_bytes(staged)}, or use "
                "a larger disk (TMPDIR)"
            )
        stored = (self.kept or 1) * self.checkpoint_bytes + self.models_bytes
        if self.storage is not None and self.storage_free_bytes < stored:
            return (
                f"{self.storage}: {format_bytes(self.storage_free_bytes)} are free, and the run keeps {self._count} "
                f"of its checkpoints, {each} each{self._models}: free {format_bytes(stored)}, lower "
                "checkpoint.num_to_keep, or use another run.storage_path"
            )
        return None

    @property
    def _models(self) -> str:
        return f", and {format_bytes(self.models_bytes)} of complete models" if self.models_bytes else ""

    @property
    def _count(self) -> str:
        return f"up to {self.kept}" if self.kept is not None else "all"


def checkpoint_bytes(stored: int, trained: int, *, sharded: bool = False) -> int:
    """Returns the size of a checkpoint in bytes, by its number of stored weights and of trained weights.

    AdamW keeps two moments of each trained weight. Shards contain the weights again, and the optimizer's copy of them.
    """
    if sharded:
        return BYTES_PER_NUMBER * (2 * stored + 3 * trained)
    return BYTES_PER_NUMBER * (stored + 2 * trained)
