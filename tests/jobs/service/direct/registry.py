"""Runs without a queue that tests register, and their folders."""

from dataclasses import replace
from pathlib import Path
from typing import Any

from tests.trainers.run_folder.writers import begin, group_of, staged
from tests.trainers.synthetic import config
from trainers.distributed.machine import process_name
from trainers.run_folder import layout
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.checkpoints import RetentionPolicy, upload_staged
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.run_register import Registered
from trainers.storage import open_storage


def register(storage_path: Path, name: str = "sr", **fields: Any) -> Registered:
    """Has a run in this user's list that was started at 1000 s; by default its driver has been killed."""
    url = f"{storage_path}/{name}"
    content = config({"run": {"name": name, "storage_path": str(storage_path)}}).model_dump(mode="json")
    process = f"{process_name().rpartition('/')[0]}/1"
    known = Registered(url=url, config=content, process=process, started_s=1000.0, created_s=1000.0, folder="")
    known = replace(known, **fields)
    known.write()
    return known


def train(known: Registered, tmp_path: Path, wer: float = 12.5) -> str:
    """Has a first attempt of a run train to step 3, and say so; gives the name of its checkpoint."""
    folder = RunFolder(open_storage(known.url))
    driver = begin(folder)
    driver.own.write_json(layout.ATTEMPT, layout.describe_start())
    path = staged(tmp_path / "staging", 3, wer)
    upload_staged(path, group_of(driver, "x"), RetentionPolicy(None, "eval_wer"))
    with StatusWriter(folder, 1) as status:
        status.update(Phase.TRAINING, step=3, max_steps=8, wer=wer)
    return path.name
