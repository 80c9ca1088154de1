"""The processor of a run: a pretrained one, or one learned from its training text and kept in its folder."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from transformers import WhisperConfig

from trainers.config.schema import ModelPart, TrainConfig
from trainers.models.whisper import load_processor, write_scratch_description
from trainers.run_folder.layout import PROCESSOR, RunFolder


def settle_processor(config: TrainConfig, folder: RunFolder, texts: Sequence[str]) -> Any:
    """Opens the processor; a scratch model's is learned once, and written to the run folder for all ranks.

    Args:
        config: The config.
        folder: The run folder.
        texts: Transcripts of the training set.
    """
    if config.model.init == "pretrained":
        return load_processor(config.model, None)
    with tempfile.TemporaryDirectory(prefix="rayscribe-") as temporary:
        local = Path(temporary) / PROCESSOR
        if folder.storage.exists(f"{PROCESSOR}/config.json"):
            folder.storage.download_folder(PROCESSOR, local)
        else:
            write_scratch_description(local, texts, config.model)
            folder.storage.upload_folder(local, PROCESSOR, last="config.json")
        return load_processor(config.model, local)


def context_and_labels(model: ModelPart, processor: Any) -> tuple[float, int]:
    """Seconds of the model's longest input, and the most label tokens that its decoder holds."""
    if model.init == "scratch":
        most = model.max_label_tokens
    else:
        most = int(
            WhisperConfig.from_pretrained(
                str(model.name_or_path), revision=model.revision or "main"
            ).max_target_positions
        )
    return float(processor.feature_extractor.chunk_length), most
