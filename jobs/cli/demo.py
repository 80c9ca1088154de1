"""`make demo`: starts Ray on this machine, submits the smallest recipe as a job, and follows it to its end."""

import os
import secrets
import shlex
import sys
from pathlib import Path

from trainers.distributed.local_ray import local_ray

RECIPE = "jobs/specs/whisper_micro.yaml"
LOGICAL_CPUS = 4


def main() -> int:
    """Runs the demo; returns the job's exit code."""
    repository = Path(__file__).resolve().parents[2]
    # A new token, known to this process and to the Ray that it starts; Ray reads it when it is imported.
    token = secrets.token_hex(32)
    os.environ |= {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": token}
    runs = repository / "runs"
    os.environ |= {"RAYSCRIBE_HOME": str(runs / ".rayscribe")}
    os.environ.pop("RAYSCRIBE_SERVICE", None)
    from jobs.cli import main as rayscribe  # noqa: PLC0415
    from jobs.clusters.ray_jobs import RayJobs  # noqa: PLC0415

    with local_ray(num_cpus=LOGICAL_CPUS, environment=os.environ) as ray:
        RayJobs.when_ready(ray.dashboard)
        command = ["submit", RECIPE, "--set", f"run.storage_path={runs}", "--address", ray.dashboard, "--follow"]
        # It ends with this Ray.
        print(
            f"dashboard: {ray.dashboard}, which asks for the token {token}\n$ {shlex.join(['rayscribe', *command])}",
            flush=True,
        )
        os.chdir(repository)
        return rayscribe(command)


if __name__ == "__main__":
    sys.exit(main())
