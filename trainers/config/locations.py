"""Where a config says that runs and prepared sets lie: absolute folders or URLs, in words. Touches no storage."""

from pathlib import Path

from trainers.config.schema import PREPARED, TrainConfig

RAY_DEFAULT_STORAGE = "~/ray_results"


def default_storage_path() -> str:
    """Where Ray keeps results when nothing is said."""
    return str(Path(RAY_DEFAULT_STORAGE).expanduser())


def storage_path_of(config: TrainConfig) -> str:
    """The absolute folder or URL under which run folders are made."""
    return (config.run.storage_path or default_storage_path()).rstrip("/")


def cache_url_of(config: TrainConfig) -> str:
    """Where prepared sets are kept."""
    return config.data.cache_dir or f"{storage_path_of(config)}/{PREPARED}"
