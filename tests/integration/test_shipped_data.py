"""`data.ship` on a real Ray: jobs that read from their packages what the machine that submitted them has no more."""

import shlex
import shutil
import tempfile
import time
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path

import pytest

from jobs.clusters.ray_jobs import RayJobs
from jobs.submission.assemble import collect_bundle, pack_bundle, run_request_of
from jobs.submission.job_spec import load_spec
from jobs.submission.ray_request import SubmitRequest, build_request
from jobs.submission.run_request import run_of
from tests.integration.driver_process import RayHead
from tests.integration.ray_cluster import ray_cluster
from tests.integration.training_trees import SPLITS

TIMEOUT_S = 300.0
PREPARE = shlex.join(["python", "task.py", "--verb", "prepare"])


def request_of(name: str, tree: Path, corpus: Path, address: str) -> SubmitRequest:
    """The request for a short run of a repository that ships a corpus, with its package on disk."""
    folder = tree.parent
    sets = ["data.ship=true", *(f"data.{split}={corpus}/{split}.csv" for split, _ in SPLITS), f"run.name={name}"]
    sets += [f"run.storage_path={folder}/runs", *(f"training.{each}_steps=2" for each in ("max", "save", "eval"))]
    spec = load_spec(tree / "recipe.yaml", sets, here=tree, environment={}, now=datetime.now(UTC))
    bundle = collect_bundle(spec)
    package = pack_bundle(bundle, folder / "packages")
    run_request = run_request_of(spec, bundle, package.sha256)
    run = run_of(run_request, uid=name, user="ana", address_of=lambda _: address, now_s=0.0)
    return build_request(run, 1, package=str(package.path), resume="")


def output_of(jobs: RayJobs, request: SubmitRequest) -> str:
    """Runs a job that succeeds; gives what it printed."""
    jobs.submit(request)
    end = time.monotonic() + TIMEOUT_S
    while not (job_info := jobs.job_info(request.submission_id)).ended:
        assert time.monotonic() < end, f"{request.submission_id} has not ended in {TIMEOUT_S} s"
        time.sleep(0.2)
    output = jobs.log(request.submission_id, 0, 10_000_000).decode()
    assert job_info.status == "SUCCEEDED", output
    return output


@pytest.mark.long
def test_a_job_prepares_what_was_shipped_and_another_one_finds_it_prepared(
    ray_head: RayHead, training_tree: Path, tones: Path, tmp_path: Path
) -> None:
    corpus = Path(shutil.copytree(tones, tmp_path / "laptop"))
    first = request_of("shipped", training_tree, corpus, ray_head.dashboard)
    (training_tree / "notes.txt").write_text("another package\n")
    again = request_of("shipped-again", training_tree, corpus, ray_head.dashboard)
    shutil.rmtree(corpus)
    jobs = RayJobs(ray_head.dashboard)
    output = output_of(jobs, replace(first, entrypoint=PREPARE))
    for split, count in SPLITS:
        assert f"{split}: {count} rows · {count} prepared" in output
    output = output_of(jobs, replace(again, entrypoint=PREPARE))
    for split, count in SPLITS:
        assert f"prepare {split}: already prepared, {count} clips" in output


@pytest.mark.long
def test_a_node_with_a_temporary_folder_of_its_own_reads_what_was_shipped(
    training_tree: Path, tones: Path, tmp_path: Path
) -> None:
    corpus = Path(shutil.copytree(tones, tmp_path / "laptop"))
    # All tasks run on the second node; the driver, which names the files, on the first.
    with (
        tempfile.TemporaryDirectory(prefix="rs-", dir="/tmp", ignore_cleanup_errors=True) as folder,
        ray_cluster(num_cpus=0) as (cluster, head),
    ):
        cluster.add_node(num_cpus=4, temp_dir=folder)
        request = request_of("shipped-far", training_tree, corpus, head.dashboard)
        shutil.rmtree(corpus)
        output = output_of(RayJobs(head.dashboard), request)
        assert "on test (6 utterances)" in output.strip().splitlines()[-1]
        assert list(Path(folder).glob("*/runtime_resources/working_dir_files/_ray_pkg_*/rayscribe-data/*.wav"))
    for split, count in SPLITS:
        assert f"{split} {count} of {count} clips" in output
