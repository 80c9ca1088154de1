"""Exports a model as transformers opens it: the run's own folder `model/`."""

import shutil
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path

import torch

from trainers.models.families import family_of_folder
from trainers.models.recognizer import Recognizer
from trainers.pipeline.export.exporter import Source


class HuggingFace:
    """transformers' own format, run by transformers' `generate`."""

    def refusal(self, source: Source) -> str | None:
        return None

    def convert(self, source: Source, folder: Path) -> None:
        shutil.copytree(source.folder, folder, dirs_exist_ok=True)

    def open(self, folder: Path, source: Source) -> "_Opened":
        recognizer = family_of_folder(folder).open_exported(folder)
        recognizer.model.eval()
        return _Opened(replace(source, recognizer=recognizer))


class _Opened:
    def __init__(self, source: Source):
        self._recognizer: Recognizer = source.recognizer
        self._decoding = source.decoding

    def recognize(self, inputs: Mapping[str, torch.Tensor], label: Sequence[int]) -> str:
        (found,) = self._recognizer.recognize(inputs, [label], self._decoding)
        return found.text
