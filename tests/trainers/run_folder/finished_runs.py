"""Run folders whose journal names a model, of made-up files."""

from collections.abc import Mapping
from typing import Any

from tests.trainers.run_folder.writers import begin, group_of
from trainers.run_folder.hub_push import PLACE
from trainers.run_folder.layout import RunFolder
from trainers.scoring.error_rate import score_texts
from trainers.scoring.normalizers import normalizer_named

CARD = f"---\nlanguage: sr\n---\n\n# sr\n\npipeline(model={PLACE!r})\n"
MODEL = {
    "README.md": CARD.encode(),
    "config.json": b'{"model_type": "whisper"}',
    "model.safetensors": bytes(range(256)) * 2000,
    "adapter/adapter_model.safetensors": bytes(range(256)) * 3000,
}


def finish(
    folder: RunFolder, model: Mapping[str, bytes] = MODEL, verdict: Mapping[str, Any] | None = None
) -> RunFolder:
    """Gives a run, which may be new, a next attempt with this model, and its verdict on the validation set."""
    outputs = group_of(driver := begin(folder), f"g{driver.attempt}").group.outputs
    for name, content in model.items():
        folder.storage.write_bytes(f"{outputs}/model/{name}", content)
    normalize = normalizer_named("none")
    total, _ = score_texts(["one too", "three"], ["one two", "three"], normalize)
    folder.sub(outputs).write_json("evaluation/validation.json", {**total.to_json_dict(), **normalize.to_json_dict()})
    result: dict[str, Any] = {
        "best_step": 10,
        "test": None,
        "max_steps": 10,
        "num_train_epochs": None,
        "test_data": None,
        "decode": {},
        "verdicts": {"validation": verdict} if verdict is not None else {},
    }
    files = ["evaluation/validation.json", *(f"model/{name}" for name in model)]
    entry = {"kind": "finished", "attempt": driver.attempt, "outputs": outputs, "files": files, "result": result}
    driver.journal.append(lambda _: entry)
    return folder
