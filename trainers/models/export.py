"""The best checkpoint as a folder that `from_pretrained` and `pipeline` open, with a model card."""

from pathlib import Path

from trainers.models.families import family_of_folder
from trainers.run_folder.checkpoints import TRAINING_STATE
from trainers.run_folder.layout import MODEL, RunFolder

NOT_EXPORTED = TRAINING_STATE | {"validation.json", "validation.jsonl"}


def export_model(folder: RunFolder, local: Path, card: str) -> None:
    """Writes model/ of a worker group's outputs, from the best checkpoint's files here, and its model card."""
    target = folder.storage.sub(MODEL)
    family_of_folder(local).export_processor(local)
    for name in sorted({str(path.relative_to(local)) for path in local.rglob("*") if path.is_file()} - NOT_EXPORTED):
        target.upload_file(local / name, name)
    target.write_bytes("README.md", card.encode())
