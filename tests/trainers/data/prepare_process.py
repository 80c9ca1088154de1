"""Prepares a manifest in a process of its own, and stops where it is told to until it may go on.

python -m tests.trainers.data.prepare_process <manifest> <cache> <endpoint or -> <shard to stop after, or end> <run>
Prints `stopped`, waits for a line, goes on and prints the URL of the set.
"""

import sys
from collections.abc import Iterator

import pyarrow as pa

from trainers.config.parts.data_part import DataPart
from trainers.config.storage_location import StorageOptions
from trainers.data.preparation import ShardTask, prepare
from trainers.data.sources.known_sources import open_sources


def main(manifest: str, cache_url: str, endpoint: str, stop: str, run: str) -> None:
    def runner(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        for number, block in enumerate(blocks):
            result = task(block)
            if stop == str(number):
                wait()
            yield result
        if stop == "end":
            wait()

    data = DataPart(train=manifest, validation="/nowhere.csv")
    s3_endpoint_url = None if endpoint == "-" else endpoint
    (source,) = open_sources(data, storage_options=StorageOptions(s3_endpoint_url), splits=("train",))
    made = prepare(
        source,
        data,
        cache_url=cache_url,
        storage_options=StorageOptions(s3_endpoint_url),
        run=run,
        runner=runner,
        log=lambda line: None,
    )
    print(made.url, flush=True)


def wait() -> None:
    print("stopped", flush=True)
    sys.stdin.readline()


if __name__ == "__main__":
    main(*sys.argv[1:])
