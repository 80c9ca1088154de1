"""Runs that have finished with a tiny model, whose test set it recognizes without an error."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tests.trainers.run_folder.writers import begin, group_of
from tests.trainers.synthetic import config, write_corpus
from trainers.config.locations import cache_url_of
from trainers.config.parts.decode_part import GenerationPart
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.experiment import resolve_fields
from trainers.pipeline.splits import prepare_all
from trainers.run_folder.journal import publish
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage

# The longest bucket, which is the full context; and shorter ones, which a Whisper recognizes otherwise at that.
FULL_S, SHORT_S = (2.85, 2.9, 2.95, 3.0), (0.4, 0.6, 0.9, 1.3)


def finished_run(
    storage: Path,
    model: Path,
    changes: Mapping[str, Any] | None = None,
    durations_s: Sequence[float] = FULL_S,
) -> RunFolder:
    """A run with a score of 0%: what the model writes of each clip is the clip's transcript."""
    texts = ["one"] * len(durations_s)
    decodes_by_token = isinstance(config(changes).decode, GenerationPart)
    own = {"decode.max_length": 12} if decodes_by_token else {}
    for name in ("first", "test"):
        manifest = write_corpus(storage / "speech", texts, durations_s=durations_s, name=name)
        content = {"run.name": "tiny", "run.storage_path": str(storage), "data.test": str(manifest)}
        wanted = config({**own, "data.normalizer": "none", **(changes or {}), **content})
        scored = evaluate(wanted, LocalEngine(), model=str(model), split="test")
        rows = [json.loads(line) for line in Path(scored.folder, "evaluation/test.jsonl").read_text().splitlines()]
        texts = [row["hypothesis"] for row in rows]
    assert scored.totals["wer"] == 0 and all(texts), texts
    folder = RunFolder(open_storage(str(storage / "tiny")))
    driver = begin(folder)
    outputs = folder.sub(group_of(driver, "g1").group.outputs)
    outputs.storage.upload_folder(model, "model")
    outputs.storage.upload_folder(Path(scored.folder) / "evaluation", "evaluation")
    files = [entry.key for entry in outputs.storage.list_files()]
    result = {
        "test_data": prepare_all(wanted, LocalEngine(), ("test",))["test"].key,
        **{"test": dict(scored.totals), "max_steps": 10, "num_train_epochs": None, "decode": {}},
    }
    folder.write_request(resolve_fields(wanted, cache_url_of(wanted), None), [])
    name = outputs.storage.url().removeprefix(f"{folder.url}/")
    entry = {"kind": "finished", "attempt": driver.attempt, "outputs": name, "files": files, "result": result}
    driver.journal.append(lambda _: entry)
    publish(folder, driver.journal)
    return folder
