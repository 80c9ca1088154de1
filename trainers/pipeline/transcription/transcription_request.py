"""A request to transcribe, and its config, which is that of the run that trained the model, with overrides.

Imports no torch.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any

from trainers.config.loader import build_config
from trainers.config.locations import make_paths_absolute
from trainers.config.overrides import apply_overrides, parse_override
from trainers.config.parts.part import DECODE_FIELDS, ConfigScope
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions, in_home, is_url
from trainers.errors import ConfigError
from trainers.pipeline.transcription.transcript import FORMATS
from trainers.run_folder.layout import CONFIG, RunFolder
from trainers.storage import open_storage

# Parts of a run's recipe that determine how its model transcribes; the rest is for training.
KEPT: Mapping[str, Sequence[str] | None] = {
    "model": None,
    "decode": None,
    "run": tuple(StorageOptions.__dataclass_fields__),
    "training": ("per_device_eval_batch_size", "bf16", "fp16"),
    "data": ("normalizer", "do_normalize_eval"),
}
# Extension of a file; has only letters, so that a folder's name may end with a version or a date.
_FILE_ENDING = re.compile(r"\.[a-z]{2,5}")


@dataclass(frozen=True)
class TranscriptionRequest:
    """The arguments of `rayscribe transcribe` and `rayscribe.transcribe`.

    Attributes:
        model: A run folder, a folder or URL of a model, or a Hub id.
        inputs: Recordings, folders of recordings, or one manifest.
        out: A file for a single recording, a file of JSON lines for any number, or a folder or URL of a bucket; None to
            print or return the transcripts.
        format: One of FORMATS; None for the format of the file's extension, else jsonl for a folder and txt to print.
        max_segment_s: Maximum length of a segment; None for the model's longest input, at most USUAL_SEGMENT_S. Shorter
            recordings are recognized in one piece, as in scoring.
        pause_s: Length above which a pause separates two segments.
        ray: True to use Ray, False not to; None to use it for a manifest with output to a folder, or with an address.
        address: Address of a Ray cluster; None to start a Ray here.
        num_workers: Number of processes on Ray; None for as many as fit on the cluster.
        json: True to print one JSON document per line, for programs.
    """

    model: str
    inputs: Sequence[str]
    sets: Sequence[str] = ()
    out: str | None = None
    format: str | None = None
    max_segment_s: float | None = None
    pause_s: float = 0.5
    words: bool = True
    ray: bool | None = None
    address: str | None = None
    num_workers: int | None = None
    json: bool = False

    def check(self) -> None:
        """Raises ConfigError for arguments that contradict each other."""
        if not self.inputs:
            raise ConfigError("FILES is missing: name recordings, folders of them, or a manifest")
        if self.format is not None and self.format not in FORMATS:
            raise ConfigError(f"--format {self.format}: one of {', '.join(FORMATS)}")
        if self.out is not None:
            self._check_out(self.out, self.file_format)
        if self.pause_s <= 0:
            raise ConfigError(f"--pause-s {self.pause_s:g}: give seconds above 0")
        for option, value in (("--max-segment-s", self.max_segment_s), ("--num-workers", self.num_workers)):
            if value is not None and value < 1:
                raise ConfigError(f"{option} {value:g}: give at least 1")
        if self.folder is None and (self.ray or self.address is not None or self.num_workers is not None):
            raise ConfigError("--address and --num-workers are for Ray, whose nodes write to a folder: set --out to it")
        if self.folder is None and self.json:
            raise ConfigError("--json reports on writing to a folder: set --out to it, or use --format jsonl")

    def _check_out(self, out: str, file_format: str | None) -> None:
        path = in_home(out).absolute()
        if file_format is None:
            # Refuses a name that looks like a file of another format, unless such a folder exists.
            ending = PurePosixPath(out.rpartition("/")[2]).suffix.lower()
            if _FILE_ENDING.fullmatch(ending) and (is_url(out) or not path.is_dir()):
                raise ConfigError(
                    f"--out {out}: transcripts are written as {', '.join(FORMATS)}, and not as {ending[1:]}: name a "
                    f"file that ends in one of them, or a folder ({out}/)"
                )
            return
        is_other = self.format not in (None, file_format)
        refused = {
            f" is a .{file_format} file, and --format is {self.format}: keep one of them": is_other,
            ": in a bucket, name a folder, which has a file for each recording": is_url(out),
            ": there is no such folder: create it, or use another": not path.parent.is_dir(),
            ": already exists: use another file, or delete it": path.exists() and not progress_of(path).exists(),
        }
        if reason := next((text for text, holds in refused.items() if holds), None):
            raise ConfigError(f"--out {out}{reason}")

    def check_count(self, recordings: int) -> None:
        """Raises ConfigError for several recordings if `out` is a file for only one."""
        if self.file_format not in (None, "jsonl") and recordings > 1:
            raise ConfigError(
                f"--out {self.out} is one file, and there are {recordings} recordings: name a folder, or "
                "a .jsonl file, which has a line for each"
            )

    @property
    def file_format(self) -> str | None:
        """The format by the extension of `out`; None if `out` is a folder or missing."""
        ending = (self.out or "").rpartition(".")[2].lower()
        return ending if self.out is not None and "." in self.out and ending in FORMATS else None

    @property
    def folder(self) -> str | None:
        """The output folder or URL; None if `out` is a file or missing."""
        if self.out is None or self.file_format is not None:
            return None
        return self.out.rstrip("/") if is_url(self.out) else str(in_home(self.out).absolute())

    @property
    def chosen_format(self) -> str:
        return self.format or self.file_format or ("txt" if self.out is None else "jsonl")


def progress_of(path: Path) -> Path:
    """Returns the path of the progress file from which an unfinished file can be continued."""
    return path.with_name(f".{path.name}.progress")


def transcription_config(request: TranscriptionRequest) -> TrainConfig:
    """Returns the config of the model's run or, without a run, the defaults; both with the overrides."""
    sets = [parse_override(text) for text in request.sets]
    options = StorageOptions.of(apply_overrides({}, sets).get("run", {}))
    content = _of_run(request.model, options)
    if content is None:
        content = {"model": {"name_or_path": request.model}}
    if content.get("training", {}).get("fp16"):
        # A recipe with fp16 requires use_gpu; when transcribing, fp16 has no effect without a GPU.
        content["scaling"] = {"use_gpu": True}
    content = {"data": {}, **apply_overrides(content, sets)}
    content["run"] = {**content.get("run", {}), "storage_path": request.folder}
    config = build_config(content, origin=request.model, scope=ConfigScope(DECODE_FIELDS, trains=False))
    return make_paths_absolute(config, Path.cwd())


def _of_run(model: str, options: StorageOptions) -> dict[str, Any] | None:
    """Returns the KEPT fields of a run's config; None if the model is not a run folder."""
    path = in_home(model)
    if not is_url(model) and not path.is_dir():
        return None
    storage = open_storage(model.rstrip("/") if is_url(model) else str(path.resolve()), options)
    config = RunFolder(storage).read_yaml(CONFIG)
    if config is None:
        return None
    return {
        part: {name: value for name, value in config[part].items() if names is None or name in names}
        for part, names in KEPT.items()
        if part in config
    }
