"""A run to look at, and a recipe's content to change."""

from typing import Any

from jobs.model import Gang, Run
from trainers.config.schema import TrainConfig

CONTENT: dict[str, Any] = {
    "run": {"name": "sr", "storage_path": "/mnt/runs"},
    "data": {"train": "/data/train.csv", "validation": "/data/valid.csv"},
    "model": {"name_or_path": "openai/whisper-small", "language": "Serbian"},
    "training": {"max_steps": 4000},
    "scaling": {"num_workers": 2, "use_gpu": True, "resources_per_worker": {"CPU": 4, "GPU": 1}},
}


def sample_run(**fields: Any) -> Run:
    """A run of two GPU workers, queued; any field may be given."""
    config = {**TrainConfig.model_validate(CONTENT).model_dump(mode="json"), "job": {}}
    values: dict[str, Any] = {
        "id": "sr",
        "uid": "0" * 32,
        "user": "ana",
        "queue": "default",
        "priority": 0,
        "address": "http://127.0.0.1:8265",
        "config": config,
        "package": "ab" * 32,
        "gang": Gang(num_workers=2, resources_per_worker={"CPU": 4.0, "GPU": 1.0}, extra={"CPU": 1.0}),
        "tags": [],
        "depends_on": [],
        "max_retries": 3,
        "run_folder": "/mnt/runs/sr",
        "submitted_s": 1000.0,
        "queued_s": 1000.0,
        "updated_s": 1000.0,
    }
    return Run(**{**values, **fields})
