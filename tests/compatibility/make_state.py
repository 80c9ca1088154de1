"""Writes what a version leaves on disk: a finished run, its prepared sets, and a ledger.

At a release, `python -m tests.compatibility.make_state tests/compatibility/v1.2.3`; the folder is committed and never
written again, and `test_earlier_versions.py` tries every one of them with the present code.
"""

import json
import sys
from pathlib import Path
from typing import Any

import yaml

from jobs.ledger import Ledger
from jobs.model import AttemptState, Cause, Progress, RunState
from tests.jobs.ledger.builders import add, make_attempt, move_to
from tests.trainers.synthetic import content, write_corpus
from trainers.main import main

STEPS = 4
SPLITS = {"train": 12, "validation": 4, "test": 4}
TEXTS = ("red", "green", "left right", "up and down")


def recipe(folder: Path, **changes: Any) -> dict[str, Any]:
    """Returns the recipe of the run whose state lies in a folder; changes are by dotted names."""
    return content(
        {
            "run.name": "kept",
            "run.storage_path": str(folder / "runs"),
            "data": {split: str(folder / "speech" / f"{split}.csv") for split in SPLITS},
            "data.cache_dir": str(folder / "prepared"),
            "training.max_steps": STEPS,
            "training.save_steps": 2,
            "training.eval_steps": 2,
            "training.per_device_train_batch_size": 4,
            "training.report_to": [],
            "decode.max_length": 8,
            **changes,
        }
    )


def write_run(folder: Path) -> None:
    """Trains a tiny model on tones, in this process."""
    for split, count in SPLITS.items():
        texts = [TEXTS[number % len(TEXTS)] for number in range(count)]
        write_corpus(folder / "speech", texts, durations_s=[0.3 + 0.05 * (n % 5) for n in range(count)], name=split)
    written = folder / "recipe.yaml"
    written.write_text(yaml.safe_dump(recipe(folder)))
    assert main(["--config", str(written), "--no-ray"]) == 0
    written.unlink()
    # Pages are for people: no version reads them.
    for page in folder.rglob("report.html"):
        page.unlink()


def write_ledger(folder: Path) -> None:
    """Writes a ledger with a run of each kind of end and one that waits, and, as JSON, what is to be read from it."""
    ledger = Ledger.open(f"sqlite:///{folder / 'ledger.db'}")
    progress = Progress(phase="training", step=20, max_steps=600, loss=1.5, wer=40.0, wers=(60.0, 40.0), best_wer=40.0)
    ends = {
        RunState.SUCCEEDED: (Cause.SUCCEEDED, 0),
        RunState.FAILED: (Cause.USER_ERROR, 2),
        RunState.STOPPED: (Cause.STOPPED, 143),
    }
    for state, (cause, code) in ends.items():
        run = move_to(ledger, add(ledger, state.lower(), tags=["dutch", "small"]), RunState.SETTING_UP)
        with ledger.write() as writer:
            writer.open_attempt(make_attempt(run.id, resume_from="checkpoint-20-a1-0123abcd"))
            done = {"state": AttemptState.ENDED, "cause": cause, "exit_code": code, "ended_s": 5600.0, "last_step": 20}
            writer.change_attempt(run.id, 1, submitted_s=2001.0, message="its end", **done)
        run = move_to(ledger, ledger.run(run.id), RunState.TRAINING, progress=progress)
        move_to(ledger, run, state, exit_code=code, ended_s=5600.0, reason="its end")
    add(ledger, "waits", depends_on=["succeeded"], priority=5, queue="night")
    ledger.tokens.add("ana", 1000.0)
    (folder / "ledger.json").write_text(json.dumps(read_ledger(ledger), indent=1))
    ledger.close()


def read_ledger(ledger: Ledger) -> dict[str, Any]:
    """Returns all that a ledger tells of its runs, attempts, events, tokens and usage."""
    runs = ledger.runs().runs
    return {
        "runs": [run.model_dump(mode="json") for run in runs],
        "attempts": [attempt.model_dump(mode="json") for run in runs for attempt in ledger.attempts(run.id)],
        "events": [event.model_dump(mode="json") for event in ledger.events(None)],
        "tokens": [token.model_dump(mode="json") for token in ledger.tokens.all()],
        "usage": [usage.model_dump(mode="json") for usage in ledger.usage.hours("run", now_s=9999.0)],
    }


if __name__ == "__main__":
    target = Path(sys.argv[1]).absolute()
    target.mkdir()
    write_run(target)
    write_ledger(target)
