"""The layout of a run folder. Imports no torch.

journal/00000001.json …       the run's history; readers ignore files that it does not name, see `journal`
checkpoints/<name>/           of all attempts; counts once the journal names it, see `checkpoints`
checkpoints/base-<hash>/      base weights of an adapter, if they are the run's own, see `checkpoints.BASE`
attempts/<k>/                 files that only attempt <k> writes:
    ray/<run>-a<k>/               Ray Train's own folder, with pointer.json for each checkpoint that Ray keeps
    attempt.json                  when and where it began
    config.yaml overrides.yaml environment.json experiment.json quarantine.jsonl
    slices.jsonl                  values of scored clips in `data.slice_columns`: split, id, values
    base-<group>/                 evaluation/ of the weights that the run begins with
    segments-<group>.jsonl        timed segments of training clips, see `training.base.timed_labels`
    processor/                    a new model's description: tokenizer, extractor, sizes
    metrics-<group>.jsonl         a line for each report of a worker group, during training
    outputs-<group>/              model/, evaluation/, metrics.jsonl, result.json; for a script its files/
    outputs/                      small files of a script so far

At the root for people: copies of files that the journal names (hard links on a disk), see `journal.publish`:
config.yaml overrides.yaml environment.json experiment.json quarantine.jsonl     of the newest prepared attempt
model/                        the best model, ready for from_pretrained; model/adapter/ if an adapter is merged into it
evaluation/<split>.json .jsonl            and <split>_full_context, for a model that is trained at a shorter context
evaluation/decoding.json      settings of a search, if chosen on the validation set
base/evaluation/              scores of the weights that the run began with, in the same files
metrics.jsonl                 each loss and score once, over all attempts; written at the run's end
result.json                   written last
report.html                   the page of the run, see `scoring.report`

Written by the newest worker group from the metrics that count, see `training.trackers`:
tensorboard/ wandb/           TensorBoard's events; an offline run of W&B
"""

import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import yaml

from trainers.config.loader import to_yaml
from trainers.config.locations import storage_path_of
from trainers.config.parts.conditions import FULL_CONTEXT
from trainers.config.schema import AnyConfig
from trainers.config.strict_loading import YamlError, load_yaml
from trainers.distributed.machine import process_name
from trainers.errors import DataError
from trainers.storage import Storage, open_storage
from trainers.storage.json_files import to_json, to_jsonl

ATTEMPT = "attempt.json"
CONFIG = "config.yaml"
OVERRIDES = "overrides.yaml"
ENVIRONMENT = "environment.json"
EXPERIMENT = "experiment.json"
METRICS = "metrics.jsonl"
QUARANTINE = "quarantine.jsonl"
SLICES = "slices.jsonl"
RESULT = "result.json"
REPORT = "report.html"
JOURNAL = "journal"
PROCESSOR = "processor"
CHECKPOINTS = "checkpoints"
ATTEMPTS = "attempts"
RAY = "ray"
POINTER = "pointer.json"
EVALUATION = "evaluation"
# Next to the scores: the settings of the search, if they were chosen on the validation set.
DECODING = "decoding.json"
# Has an evaluation/ of its own: of the weights that the run began with.
BASE = "base"
MODEL = "model"
TENSORBOARD = "tensorboard"
WANDB = "wandb"

# Packages whose versions determine the result, and should be the same on all nodes.
PACKAGES = ("ray", "torch", "transformers", "datasets", "accelerate", "peft", "soundfile", "soxr", "jiwer", "rayscribe")


@dataclass(frozen=True)
class RunFolder:
    """A run folder in a storage."""

    storage: Storage

    @classmethod
    def of(cls, config: AnyConfig) -> "RunFolder":
        assert config.run.name is not None
        url = f"{storage_path_of(config)}/{config.run.name}"
        return cls(open_storage(url, config.run.storage_options))

    @property
    def url(self) -> str:
        """Absolute path or URL."""
        return self.storage.url()

    @property
    def name(self) -> str:
        return self.url.rpartition("/")[2]

    def ray_run_name(self, attempt: int) -> str:
        """Returns the name of an attempt's Ray Train run, and of its folder below attempts/<k>/ray."""
        return f"{self.name}-a{attempt}"

    def read_json(self, key: str) -> Any | None:
        """Returns the content of a JSON file; None if it does not exist."""
        return json.loads(self.storage.read_bytes(key)) if self.storage.exists(key) else None

    def read_yaml(self, key: str) -> Any | None:
        """Returns the content of a YAML file; None if it does not exist. Raises DataError if it is not YAML."""
        if not self.storage.exists(key):
            return None
        try:
            return load_yaml(self.storage.read_bytes(key).decode())
        except (YamlError, UnicodeDecodeError) as error:
            raise DataError(f"{self.storage.url(key)}: {error}") from None

    def write_json(self, key: str, content: Any) -> None:
        """Writes a JSON file; raises ScoringError if a number is not finite."""
        self.storage.write_bytes(key, (to_json(content, self.storage.url(key), indent=2) + "\n").encode())

    def write_jsonl(self, key: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes rows as JSON lines; raises as `write_json`."""
        self.storage.write_bytes(key, to_jsonl(rows, self.storage.url(key)).encode())

    def write_request(self, config: AnyConfig, overrides: Sequence[str]) -> None:
        self.storage.write_bytes(CONFIG, to_yaml(config).encode())
        self.storage.write_bytes(OVERRIDES, yaml.safe_dump(list(overrides), allow_unicode=True).encode())

    def sub(self, prefix: str) -> "RunFolder":
        """Returns a subfolder with the same layout, such as an attempt's own, or the outputs of a worker group."""
        return RunFolder(self.storage.sub(prefix))

    def write_evaluation(self, split: str, totals: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
        self.write_jsonl(f"{EVALUATION}/{split}.jsonl", rows)
        self.write_json(f"{EVALUATION}/{split}.json", totals)


def at_full_context(split: str) -> str:
    """Returns the name of a split's scores at the model's full context, next to those at a shorter one."""
    return f"{split}{FULL_CONTEXT}"


def now() -> str:
    """Returns the current time as ISO 8601, in UTC."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def seconds_of(at: str) -> float:
    """Converts a time of `now` to seconds since 1970."""
    return datetime.fromisoformat(at).timestamp()


def describe_start() -> dict[str, Any]:
    """Returns the content of attempt.json: when and where an attempt begins, and in which process."""
    return {"started": now(), "host": platform.node(), "process": process_name(), "python": sys.version.split()[0]}


def describe_environment(data_keys: Mapping[str, str]) -> dict[str, Any]:
    """Returns the content of environment.json: versions, machine, git revision, and hashes of the prepared data."""
    return {
        "started": now(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "git_revision": _git_revision(),
        "packages": {name: version_of(name) for name in PACKAGES},
        "data": dict(data_keys),
    }


def version_of(package: str) -> str | None:
    """Returns the version of a package; None if not installed, as for Rayscribe itself if its code was uploaded."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        result = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return result.stdout.strip() or None
