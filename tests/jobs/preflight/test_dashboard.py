import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]


@pytest.mark.integration
def test_ray_s_private_function_still_gives_the_header_of_its_own_clients() -> None:
    # In a process of its own: Ray reads its environment once.
    script = "from jobs.clusters.ray_private import token_headers; print(token_headers())"
    environment = {**os.environ, "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "a-token"}
    result = subprocess.run(
        [sys.executable, "-c", script],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
        timeout=120,
    )
    assert "'Bearer a-token'" in result.stdout
