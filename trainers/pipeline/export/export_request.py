"""The export formats, and a user's request for some of them. Loads neither formats nor the packages that they need.

To add a format, write a file with its `Exporter`, and add a line to KNOWN_EXPORTS.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import TYPE_CHECKING

from trainers.config.storage_location import in_home, is_url
from trainers.errors import ConfigError

if TYPE_CHECKING:
    # Imports torch.
    from trainers.pipeline.export.exporter import Exporter

TOLERANCE = 0.5


@dataclass(frozen=True)
class KnownExport:
    """A format, before it is loaded.

    Attributes:
        implementation: `module:class` of its `Exporter`.
        packages: Extra packages that its converter and runtime need; their modules have the same names.
    """

    implementation: str
    packages: tuple[str, ...] = ()
    extra: str = ""

    @property
    def problem(self) -> str | None:
        """A message with a missing package and how to install it; None if all are installed."""
        missing = next((name for name in self.packages if find_spec(name) is None), None)
        if missing is None:
            return None
        return f"needs the package {missing}, which is not installed: pip install 'rayscribe[{self.extra}]'"

    def load(self) -> "Exporter":
        exporter: Exporter = resolve_name(self.implementation)()
        return exporter


_HERE = __package__
KNOWN_EXPORTS: Mapping[str, KnownExport] = {
    "hf": KnownExport(f"{_HERE}.exporter:HuggingFace"),
    "ctranslate2": KnownExport(f"{_HERE}.ctranslate2_exporter:CTranslate2", ("ctranslate2",), "ctranslate2"),
    "onnx": KnownExport(f"{_HERE}.graph_exporters:Onnx", ("onnx", "onnxscript", "onnxruntime"), "onnx"),
    "openvino": KnownExport(f"{_HERE}.graph_exporters:OpenVino", ("openvino",), "openvino"),
}


@dataclass(frozen=True)
class ExportRequest:
    """The arguments of `rayscribe export`.

    Attributes:
        formats: Names of KNOWN_EXPORTS, in the order in which they are made.
        output: A folder of this machine, which gets one folder per format.
        tolerance: Maximum absolute difference between the error rates of a format and the run. Percentage points.
    """

    formats: Sequence[str]
    output: str
    tolerance: float = TOLERANCE
    force: bool = False

    @property
    def folder(self) -> Path:
        return in_home(self.output).absolute()

    def exports(self) -> dict[str, KnownExport]:
        """Returns the formats by name, after checking what can be checked without the model.

        Raises:
            ConfigError: an argument is invalid, or a format lacks a package.
        """
        names = [*dict.fromkeys(self.formats)]
        if not names:
            raise ConfigError(f"--to is empty: name formats, with commas between them: {', '.join(KNOWN_EXPORTS)}")
        for name in names:
            if name not in KNOWN_EXPORTS:
                raise ConfigError(f"--to {name}: there is no such format: one of {', '.join(KNOWN_EXPORTS)}")
        if not 0 <= self.tolerance <= 100:
            raise ConfigError(f"--tolerance {self.tolerance:g}: give percentage points from 0 to 100")
        missing = [f"--to {name} {problem}" for name in names if (problem := KNOWN_EXPORTS[name].problem) is not None]
        if missing:
            raise ConfigError("\n".join(missing))
        self._check_output(names)
        return {name: KNOWN_EXPORTS[name] for name in names}

    def _check_output(self, names: Sequence[str]) -> None:
        if is_url(self.output):
            raise ConfigError(f"--output {self.output}: runtimes open files on a disk: name a folder of this machine")
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"--output {self.output}: is a file: name a folder")
        there = [name for name in names if (self.folder / name).exists()]
        if there and not self.force:
            raise ConfigError(
                f"--output {self.output}: already has {' and '.join(there)}: add --force to replace, or use another"
            )
