"""Exports to ONNX and OpenVINO: graphs traced by transformers' exporters, run by ONNX Runtime and by OpenVINO.

A CTC model is one graph from samples or mel frames to logits, which transformers' `ExportedModel` opens; the processor
is stored next to it. Whisper would need two graphs, one for a decoder step with cached keys and values. With
transformers 5.23, a trained model then repeats itself in ONNX Runtime, and OpenVINO aborts.
"""

import logging
import sys
import warnings
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, ClassVar

import torch
from transformers import AutoConfig, AutoTokenizer

from trainers.data.features import LENGTHS
from trainers.models.families import family_of_folder
from trainers.pipeline.export.exporter import Runtime, Source

# Sizes of the traced input, above 1, since a graph that is traced with a size of 1 accepts only that size.
TRACED_CLIPS, TRACED_SAMPLES = 2, 16_000


class _Graphs:
    """A format of transformers' exporters."""

    # `module:class` of the exporter and of its config.
    exporter: ClassVar[str]
    config: ClassVar[str]

    def refusal(self, source: Source) -> str | None:
        return source.refusal_unless("ctc", "CTC models")

    def convert(self, source: Source, folder: Path) -> None:
        exporter, config = resolve_name(self.exporter)(), resolve_name(self.config)(dynamic=True)
        # The original network, since a recognizer's changes for speed must not be traced.
        auto_class = family_of_folder(source.folder).auto_class(AutoConfig.from_pretrained(source.folder))
        network = auto_class.from_pretrained(source.folder, dtype=torch.float32)
        network.eval()
        clips = [torch.zeros(TRACED_SAMPLES, dtype=torch.int16)] * TRACED_CLIPS
        inputs = source.recognizer.new_features().inputs(clips, None)
        with _quiet():
            exporter.export(network, _as_processors_give(inputs), config).save_pretrained(folder)
        source.recognizer.processor.save_pretrained(folder)

    def open(self, folder: Path, source: Source) -> Runtime:
        exported = resolve_name("transformers.exporters:ExportedModel").from_pretrained(folder, device="cpu")
        return _Ctc(exported, AutoTokenizer.from_pretrained(folder))


class Onnx(_Graphs):
    """ONNX, run by ONNX Runtime."""

    exporter = "transformers.exporters:OnnxExporter"
    config = "transformers.exporters:OnnxConfig"


class OpenVino(_Graphs):
    """OpenVINO's format, run by OpenVINO."""

    exporter = "transformers.exporters:OpenVINOExporter"
    config = "transformers.exporters:OpenVINOConfig"

    def __init__(self) -> None:
        """Disables OpenVINO's telemetry.

        OpenVINO reports conversions from a forked process, which inherits our SIGTERM handler. Without a network, this
        process would wait for it forever. If the package openvino_telemetry is missing, OpenVINO uses a stub.
        """
        sys.modules["openvino_telemetry"] = None  # type: ignore[assignment]


def _as_processors_give(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Returns inputs as transformers' processors make them, with int32 masks, since a graph requires traced dtypes."""
    given = {name: value for name, value in inputs.items() if name != LENGTHS}
    return given | {name: value.to(torch.int32) for name, value in given.items() if name == "attention_mask"}


@contextmanager
def _quiet() -> Iterator[None]:
    """Silences torch's warnings, which are about operators that our models do not have."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        logging.disable(logging.WARNING)
        try:
            yield
        finally:
            logging.disable(logging.NOTSET)


class _Ctc:
    """Greedy CTC decoding."""

    def __init__(self, exported: Any, tokenizer: Any):
        self._exported, self._tokenizer = exported, tokenizer

    def recognize(self, inputs: Mapping[str, torch.Tensor], label: Sequence[int]) -> str:
        path = self._exported(**_as_processors_give(inputs)).logits[0].argmax(dim=-1)
        text: str = self._tokenizer.decode(path.tolist())
        return text.strip()
