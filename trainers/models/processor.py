"""Opens the processor of a run: a pretrained one, or one learned from its training text and stored in its folder."""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainers.config.parts.model_part import ModelPart
from trainers.errors import ResumeError
from trainers.models.family import Family
from trainers.run_folder.checkpoints import description_of, fetch
from trainers.run_folder.journal import Checkpoint
from trainers.run_folder.layout import PROCESSOR, RunFolder
from trainers.storage import Storage, sha256_of

_SUMS = "SHA256.json"


def resolve_processor(
    family: Family[Any],
    model: ModelPart,
    folder: RunFolder,
    texts: Sequence[str],
    origin: tuple[Storage, Checkpoint] | None = None,
) -> Any:
    """Opens the processor; a run's own is learned or copied once, and written to its folder for all ranks.

    A new run may start from the checkpoint `origin`, given with its storage.
    """
    written = folder.storage.exists(f"{PROCESSOR}/config.json")
    if origin is None and not written and not family.learns_processor(model):
        return family.open_processor(model, None)
    with tempfile.TemporaryDirectory(prefix="rayscribe-") as temporary:
        local = Path(temporary) / PROCESSOR
        if written:
            fetch_processor(folder.storage, PROCESSOR, local)
        else:
            if origin is not None:
                fetch(origin[0], description_of(origin[1]), Path(temporary) / "origin")
                family.adopt_description(Path(temporary) / "origin", local, model)
            else:
                family.write_description(local, texts, model)
            files = [path for path in sorted(local.rglob("*")) if path.is_file()]
            sums = {path.relative_to(local).as_posix(): sha256_of(path) for path in files}
            (local / _SUMS).write_text(json.dumps(sums, indent=1))
            folder.storage.upload_folder(local, PROCESSOR, last="config.json")
            (local / _SUMS).unlink()
        return family.open_processor(model, local)


def fetch_processor(storage: Storage, prefix: str, local: Path) -> None:
    """Downloads a run's own processor; raises ResumeError if a file is missing or changed."""
    storage.download_folder(prefix, local)
    try:
        sums = dict(json.loads((local / _SUMS).read_bytes()))
    except (OSError, ValueError, TypeError):
        sums = {_SUMS: ""}
    for name, sha256 in sums.items():
        if not (local / name).is_file() or sha256_of(local / name) != sha256:
            raise ResumeError(
                f"{storage.url(prefix)}/{name}: is missing or damaged; put it back from a copy, or give the run "
                "another name"
            )
    (local / _SUMS).unlink(missing_ok=True)
