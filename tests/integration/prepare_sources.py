"""Prepares the training splits of several sources on the Ray at RAY_ADDRESS: python prepare_sources.py JSON.

The argument has, by name, a data part, the URL of a cache and the endpoint of S3; what was prepared is printed as JSON.
"""

import hashlib
import json
import sys
from typing import Any

from tests.trainers.synthetic import config
from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import prepare, run_on_ray
from trainers.data.prepared_set import PreparedSet, shard_name
from trainers.data.sources.known_sources import open_sources
from trainers.distributed.ray_connection import connected
from trainers.storage import open_storage


def prepared(data: DataPart, cache_url: str, options: StorageOptions) -> PreparedSet:
    cache = open_storage(cache_url, options)
    (source,) = open_sources(data, storage_options=options, splits=("train",), fingerprint_cache=cache)
    return prepare(
        source,
        data,
        cache_url=cache_url,
        storage_options=options,
        run="test",
        runner=run_on_ray,
        log=lambda line: None,
    )


def described(found: PreparedSet) -> dict[str, Any]:
    shards = sorted(set(found.index["shard"].to_pylist()))
    stored = [found.storage.read_bytes(shard_name(shard)) for shard in shards]
    return {
        "texts": found.index["text"].to_pylist(),
        "durations_s": found.index["duration_s"].to_pylist(),
        "quarantine": found.quarantine,
        "sha256": hashlib.sha256(b"".join(stored)).hexdigest(),
    }


if __name__ == "__main__":
    with connected(config({})):
        for name, (fields, cache_url, endpoint) in json.loads(sys.argv[1]).items():
            made = prepared(DataPart.model_validate(fields), cache_url, StorageOptions(endpoint))
            print(json.dumps({"name": name, **described(made)}), flush=True)
