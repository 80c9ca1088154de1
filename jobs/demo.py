"""`make demo`: starts Ray on this machine, submits the smallest recipe as a job, and shows it to its end."""

import os
import sys
from pathlib import Path

import ray

from jobs.ray_jobs import RayJobs

RECIPE = "jobs/specs/whisper_micro.yaml"
LOGICAL_CPUS = 4


def main() -> int:
    """Runs the demo; the exit code is the job's own."""
    repository = Path(__file__).resolve().parents[1]
    # The job's `python` is the one that runs this.
    os.environ["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    context = ray.init(num_cpus=LOGICAL_CPUS, include_dashboard=True, log_to_driver=False)
    try:
        dashboard = f"http://{context.dashboard_url}"
        print(f"dashboard: {dashboard}", flush=True)
        jobs = RayJobs(dashboard)
        entrypoint = f"python task.py --config {RECIPE} --set run.storage_path={repository / 'runs'}"
        submission_id = jobs.submit(entrypoint, {"working_dir": str(repository)})
        print(f"submitted: {submission_id}: {entrypoint}", flush=True)
        try:
            end = jobs.follow(submission_id, lambda text: print(text, end="", flush=True))
        except KeyboardInterrupt:
            jobs.stop(submission_id)
            return 130
    finally:
        ray.shutdown()
    if not end.succeeded:
        print(f"the job failed: {end.message}", file=sys.stderr)
    return end.exit_code


if __name__ == "__main__":
    sys.exit(main())
