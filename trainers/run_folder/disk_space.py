"""Whether checkpoints fit: an estimate at the start of training, against what is free. Hours later it is too late."""

import shutil
from dataclasses import dataclass
from pathlib import Path

from trainers.config.parts.run_part import BYTES_PER_NUMBER
from trainers.config.wording import format_bytes

# On the node's own disk: one checkpoint is uploaded while the next is written.
STAGED_CHECKPOINTS = 2


@dataclass(frozen=True)
class DiskEstimate:
    """The space that checkpoints need, and what is free.

    Attributes:
        checkpoint_bytes: A checkpoint.
        staging: Folder on this node in which checkpoints are written.
        staging_free_bytes: Free there.
        kept: Most checkpoints that the run keeps, the one included that is on its way. None: all.
        storage: Folder of runs. None: a bucket.
        storage_free_bytes: Free there, the run's own checkpoints counted as free, since they are replaced.
        models_bytes: Complete models that a run with an adapter writes on either disk: the merged
            one, and where it has weights of its own, those.
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
        """Reads how much space the disks have.

        Checkpoints that the run has (`existing_bytes`) are replaced by later ones unless all are kept, and the one on
        this node (`fetched_bytes`) goes once it is loaded.
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
        """Which disk cannot hold what training will write: the folder, the need, what is free, and the fix."""
        staged = STAGED_CHECKPOINTS * self.checkpoint_bytes + self.models_bytes
        each = f"of about {format_bytes(self.checkpoint_bytes)}"
        if self.staging_free_bytes < staged:
            return (
                f"{self.staging}: {format_bytes(self.staging_free_bytes)} are free, and {STAGED_CHECKPOINTS} "
                f"checkpoints {each} are written there{self._models}: free {format_bytes(staged)}, or name "
                "a larger disk (TMPDIR)"
            )
        stored = (self.kept or 1) * self.checkpoint_bytes + self.models_bytes
        if self.storage is not None and self.storage_free_bytes < stored:
            return (
                f"{self.storage}: {format_bytes(self.storage_free_bytes)} are free, and the run keeps {self._count} "
                f"of its checkpoints, {each} each{self._models}: free {format_bytes(stored)}, lower "
                "checkpoint.num_to_keep, or take another run.storage_path"
            )
        return None

    @property
    def _models(self) -> str:
        return f", and {format_bytes(self.models_bytes)} of complete models" if self.models_bytes else ""

    @property
    def _count(self) -> str:
        return f"up to {self.kept}" if self.kept is not None else "all"


def checkpoint_bytes(stored: int, trained: int, *, sharded: bool = False) -> int:
    """Size of a checkpoint in bytes, by the numbers of its weights and of those that are trained.

    AdamW keeps two moments of these. Shards are the weights once more, and the optimizer's own copy of them.
    """
    if sharded:
        return BYTES_PER_NUMBER * (2 * stored + 3 * trained)
    return BYTES_PER_NUMBER * (stored + 2 * trained)
