"""The layout of a run folder, in one place. Imports no torch.

config.yaml overrides.yaml environment.json experiment.json
metrics.jsonl   quarantine.jsonl   result.json
processor/                    a new model's description: tokenizer, extractor, sizes
checkpoints/<name>/           over all attempts, each whole once it has MANIFEST.json
attempts/<k>/                 Ray Train's own folder of each attempt, and its TensorBoard events
evaluation/<split>.json .jsonl
model/                        the best model, ready for from_pretrained
"""

import json
import platform
import subprocess
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import yaml

from trainers.config import TrainConfig
from trainers.config_file import to_yaml
from trainers.storage import Storage, open_storage

CONFIG = "config.yaml"
OVERRIDES = "overrides.yaml"
ENVIRONMENT = "environment.json"
EXPERIMENT = "experiment.json"
METRICS = "metrics.jsonl"
QUARANTINE = "quarantine.jsonl"
RESULT = "result.json"
PROCESSOR = "processor"
CHECKPOINTS = "checkpoints"
ATTEMPTS = "attempts"
EVALUATION = "evaluation"
MODEL = "model"

RAY_DEFAULT_STORAGE = "~/ray_results"
REPORTED_PACKAGES = (
    "ray",
    "torch",
    "transformers",
    "datasets",
    "accelerate",
    "soundfile",
    "soxr",
    "jiwer",
    "rayscribe",
)


def default_storage_path() -> str:
    """Where Ray keeps results when nothing is said."""
    return str(Path(RAY_DEFAULT_STORAGE).expanduser())


def storage_path_of(config: TrainConfig) -> str:
    """The absolute folder or URL under which run folders are made."""
    return (config.run.storage_path or default_storage_path()).rstrip("/")


def cache_url_of(config: TrainConfig) -> str:
    """Where prepared sets are kept."""
    return config.data.cache_dir or f"{storage_path_of(config)}/prepared"


@dataclass(frozen=True)
class RunFolder:
    """A run folder, by its storage."""

    storage: Storage

    @classmethod
    def of(cls, config: TrainConfig) -> "RunFolder":
        """The folder of the config's run, which must have a name."""
        assert config.run.name is not None
        url = f"{storage_path_of(config)}/{config.run.name}"
        return cls(open_storage(url, s3_endpoint_url=config.run.s3_endpoint_url))

    @property
    def url(self) -> str:
        """Absolute path or s3:// URL."""
        return self.storage.url()

    def read_json(self, key: str) -> Any | None:
        """The content of a JSON file, None where it is not there."""
        return json.loads(self.storage.read_bytes(key)) if self.storage.exists(key) else None

    def write_json(self, key: str, content: Any) -> None:
        """Writes a JSON file whole."""
        self.storage.write_bytes(key, (json.dumps(content, indent=2, ensure_ascii=False) + "\n").encode())

    def write_jsonl(self, key: str, rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes one line of JSON a row."""
        self.storage.write_bytes(key, jsonl(rows))

    def write_request(self, config: TrainConfig, overrides: Sequence[str]) -> None:
        """Writes what was asked, what was changed on the command line, and where it runs."""
        self.storage.write_bytes(CONFIG, to_yaml(config).encode())
        self.storage.write_bytes(OVERRIDES, yaml.safe_dump(list(overrides), allow_unicode=True).encode())

    def open_attempt(self) -> int:
        """Claims the next free attempt number; of drivers that race, each gets its own."""
        number = 1
        content = json.dumps({"started": now(), "host": platform.node(), "python": sys.version.split()[0]}).encode()
        while not self.storage.create_exclusive(f"{ATTEMPTS}/{number}/attempt.json", content):
            number += 1
        return number

    def write_evaluation(self, split: str, totals: Mapping[str, Any], rows: Iterable[Mapping[str, Any]]) -> None:
        """Writes evaluation/<split>.jsonl, then evaluation/<split>.json."""
        self.write_jsonl(f"{EVALUATION}/{split}.jsonl", rows)
        self.write_json(f"{EVALUATION}/{split}.json", totals)


def jsonl(rows: Iterable[Mapping[str, Any]]) -> bytes:
    """Renders one line of JSON a row."""
    return "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows).encode()


def now() -> str:
    """The time as ISO 8601, UTC, to the second."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def describe_environment(data_keys: Mapping[str, str]) -> dict[str, Any]:
    """Versions, machine, git revision, and the hashes of the prepared data."""
    return {
        "started": now(),
        "python": sys.version.split()[0],
        "platform": platform.platform(),
        "machine": platform.machine(),
        "git_revision": _git_revision(),
        "packages": {name: _version(name) for name in REPORTED_PACKAGES},
        "data": dict(data_keys),
    }


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git_revision() -> str | None:
    command = ["git", "describe", "--always", "--dirty", "--abbrev=40"]
    try:
        answer = subprocess.run(command, capture_output=True, text=True, check=False, timeout=10)
    except (OSError, subprocess.TimeoutExpired):
        return None
    return answer.stdout.strip() or None
