"""The processor of a run: a pretrained one, or one learned from its training text and kept in its folder."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from trainers.config.schema import ModelPart
from trainers.models.family import Family
from trainers.run_folder.layout import PROCESSOR, RunFolder


def settle_processor(family: Family, model: ModelPart, folder: RunFolder, texts: Sequence[str]) -> Any:
    """Opens the processor; a scratch model's is learned once, and written to the run folder for all ranks.

    Args:
        family: The model's family.
        model: The config's model part.
        folder: The run folder.
        texts: Transcripts of the training set.
    """
    if model.init == "pretrained":
        return family.open_processor(model, None)
    with tempfile.TemporaryDirectory(prefix="rayscribe-") as temporary:
        local = Path(temporary) / PROCESSOR
        if folder.storage.exists(f"{PROCESSOR}/config.json"):
            folder.storage.download_folder(PROCESSOR, local)
        else:
            family.write_description(local, texts, model)
            folder.storage.upload_folder(local, PROCESSOR, last="config.json")
        return family.open_processor(model, local)
