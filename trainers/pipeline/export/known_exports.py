"""The export formats. To add one: a file with its `Exporter`, and a line here.

Imports neither the formats nor the packages that they need.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pkgutil import resolve_name
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    # Imports torch.
    from trainers.pipeline.export.exporter import Exporter


@dataclass(frozen=True)
class KnownExport:
    """A format, before it is loaded.

    Attributes:
        implementation: `module:class` of its `Exporter`.
        packages: Packages that its converter and runtime need, besides the dependencies; modules have the same names.
        extra: The extra of Rayscribe with these packages.
    """

    implementation: str
    packages: tuple[str, ...] = ()
    extra: str = ""

    @property
    def problem(self) -> str | None:
        """A missing package and how to install it; None if all are installed."""
        missing = next((name for name in self.packages if find_spec(name) is None), None)
        if missing is None:
            return None
        return f"needs the package {missing}, which is not installed: pip install 'rayscribe[{self.extra}]'"

    def load(self) -> "Exporter":
        exporter: Exporter = resolve_name(self.implementation)()
        return exporter


_HERE = __package__
KNOWN_EXPORTS: Mapping[str, KnownExport] = {
    "hf": KnownExport(f"{_HERE}.hf_exporter:HuggingFace"),
    "ctranslate2": KnownExport(f"{_HERE}.ctranslate2_exporter:CTranslate2", ("ctranslate2",), "ctranslate2"),
    "onnx": KnownExport(f"{_HERE}.graph_exporters:Onnx", ("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "openvino": KnownExport(f"{_HERE}.graph_exporters:OpenVino", ("openvino",), "openvino"),
}
# Requested formats without a converter in any package index.
LEFT_TO_OTHERS: Mapping[str, str] = {
    "ggml": (
        "the converter of whisper.cpp is a script of its repository (models/convert-h5-to-ggml.py), which no package "
        "has: export to hf, and run that script on the folder"
    ),
}
