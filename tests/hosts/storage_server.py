"""The S3 of a test host on which other hosts keep their runs: `python -m tests.hosts.storage_server ADDRESS`.

It prints each request as a line of JSON, [method, path, status], in the order in which they took effect.
"""

import json
import signal
import sys

from tests.s3 import s3_service

PORT = 9000


def main(address: str) -> None:
    """Serves until it is killed."""

    def show(method: str, path: str, status: int) -> None:
        print(json.dumps([method, path, status]), flush=True)

    with s3_service(address, PORT, seen=show):
        signal.pause()


if __name__ == "__main__":
    main(sys.argv[1])
