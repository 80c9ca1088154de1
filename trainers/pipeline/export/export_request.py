"""A user's request to export a model. Light: loads none of the formats."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from trainers.config.storage_location import in_home, is_url
from trainers.errors import ConfigError
from trainers.pipeline.export.known_exports import KNOWN_EXPORTS, LEFT_TO_OTHERS, KnownExport

TOLERANCE = 0.5


@dataclass(frozen=True)
class ExportRequest:
    """The arguments of `rayscribe export`.

    Attributes:
        formats: Names of KNOWN_EXPORTS, in the order in which they are made.
        output: A folder of this machine, which gets a folder of each format.
        tolerance: Maximum difference between the error rates of a format and the run, either way. Percentage points.
        force: True to replace existing folders of formats.
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
            ConfigError: names formats that cannot be exported here.
        """
        names = [*dict.fromkeys(self.formats)]
        if not names:
            raise ConfigError(f"--to is empty: name formats, with commas between them: {', '.join(KNOWN_EXPORTS)}")
        for name in names:
            if name in LEFT_TO_OTHERS:
                raise ConfigError(f"--to {name}: {LEFT_TO_OTHERS[name]}")
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
            raise ConfigError(f"--output {self.output}: runtimes open files of a disk: name a folder of this machine")
        if self.folder.exists() and not self.folder.is_dir():
            raise ConfigError(f"--output {self.output}: is a file: name a folder")
        there = [name for name in names if (self.folder / name).exists()]
        if there and not self.force:
            raise ConfigError(
                f"--output {self.output}: {' and '.join(there)} {'is' if len(there) == 1 else 'are'} there already: "
                "add --force to replace, or name another folder"
            )
