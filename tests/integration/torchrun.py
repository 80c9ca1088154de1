"""Runs of strategy_process on the ranks of torchrun, on this machine."""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from tests.integration.forked_process import REPOSITORY


def run_in_ranks(
    processes: int, starts: Sequence[dict[str, Any]], *, timeout_s: float, **environment: str
) -> tuple[int, str]:
    """Runs them one after the other; exit code, and what the ranks said."""
    torchrun = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
    done = subprocess.run(
        [sys.executable, *torchrun, "-m", "tests.integration.strategy_process", json.dumps(starts)],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1", **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout_s,
        check=False,
    )
    return done.returncode, done.stdout
