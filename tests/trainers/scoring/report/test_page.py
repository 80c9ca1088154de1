"""The page of a run: what it shows, that it is one file that runs nothing, and that no text of others gets into it."""

import base64
import csv
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import soundfile
import yaml

from tests.trainers.prepared import prepared_train
from tests.trainers.run_folder.writers import begin, first_group, group_of
from tests.trainers.scoring.report.parsed_page import Page, check_page
from tests.trainers.synthetic import write_corpus
from trainers.errors import ConfigError
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import REPORT, RunFolder
from trainers.scoring.error_rate import score_texts
from trainers.scoring.normalizers import normalizer_named
from trainers.scoring.report import page
from trainers.scoring.report.page import report_html, worker_seconds, write_report
from trainers.storage import open_storage

HOSTILE = '<script>alert("x")</script>'
TEXTS = ["one two three", "four five six seven", f"eight {HOSTILE} & 'nine'", "ten"]
HYPOTHESES = ["one too three", "four five six seven", f"eight <img src=x onerror=alert(1)> & {HOSTILE}", ""]


def evaluated(folder: RunFolder, split: str, ids: Sequence[str]) -> None:
    normalize = normalizer_named("none")
    total, scores = score_texts(HYPOTHESES, TEXTS, normalize, ids=ids, durations_s=[0.5, 3.0, 7.5, 0.6])
    totals = {**total.to_json_dict(), "loss": 1.25, **normalize.to_json_dict()}
    folder.write_evaluation(split, totals, (score.to_json_dict() for score in scores))


def add_speakers(manifest: Path, speakers: Sequence[str]) -> Path:
    with manifest.open(newline="", encoding="utf-8") as file:
        header, *rows = csv.reader(file)
    with manifest.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow([*header, "speaker"])
        writer.writerows([*row, speaker] for row, speaker in zip(rows, speakers, strict=True))
    return manifest


@pytest.fixture
def run(tmp_path: Path) -> RunFolder:
    """A run in its second attempt, with two validations, whose newest checkpoint has a score."""
    manifest = write_corpus(tmp_path / "corpus", TEXTS, durations_s=[0.5, 3.0, 7.5, 0.6], name="validation")
    prepared = prepared_train(add_speakers(manifest, ["ann", "ann", "bob", "bob"]), str(tmp_path / "prepared"))
    folder = RunFolder(open_storage(str(tmp_path / "my <run>")))
    first_group(folder)
    folder.write_json("attempts/1/attempt.json", {"started": "2026-11-26T07:00:00+00:00", "host": "n1", "changes": []})
    ended = {"phase": "ENDED", "detail": f"LostNodeError: n1 {HOSTILE}", "step": 4, "at_s": 1795676400.0 + 3600}
    folder.write_json("attempts/1/status.json", ended)
    writer = group_of(begin(folder), "y")
    began = {"started": "2026-11-26T09:00:00+00:00", "host": "n2", "changes": ["scaling.num_workers: 1 → 2"]}
    folder.write_json("attempts/2/attempt.json", began)
    for step in range(1, 9):
        line = {"step": step, "attempt": 2, "loss": 6.0 / step, "learning_rate": 1e-3, "clips_per_s": 40.0}
        folder.storage.append_line(writer.group.metrics_key, json.dumps(line))
    for step in (4, 8):
        line = {"step": step, "attempt": 2, "eval_loss": 1.0, "eval_wer": 80.0 / step, "eval_cer": 40.0 / step}
        folder.storage.append_line(writer.group.metrics_key, json.dumps(line))
    checkpoint = {"name": "checkpoint-8-a2-y", "step": 8, "attempt": 2, "metrics": {}, "created": "x", "files": {}}
    writer.append(lambda _: {"kind": "checkpoint", "checkpoint": checkpoint, "removes": []})
    ids = prepared.index["id"].to_pylist()
    evaluated(folder.sub("scored"), "validation", ids)
    for name in ("validation.json", "validation.jsonl"):
        content = folder.storage.read_bytes(f"scored/evaluation/{name}")
        folder.storage.write_bytes(f"checkpoints/checkpoint-8-a2-y/{name}", content)
    config = {"run": {"name": "x"}, "model": {"language": "English"}, "scaling": {"use_gpu": True}}
    folder.storage.write_bytes("config.yaml", yaml.safe_dump(config).encode())
    folder.storage.write_bytes("overrides.yaml", yaml.safe_dump(["training.max_steps=8"]).encode())
    folder.write_json("environment.json", {"data": {"validation": prepared.key}, "packages": {"rayscribe": "0.1.0"}})
    left_out = [{"split": "train", "id": f"u{n}", "reason": f"u{n}: {n}.5 s is longer than 30 s"} for n in (31, 44, 50)]
    folder.write_jsonl("quarantine.jsonl", left_out)
    return folder


def texts_of(html: str) -> dict[str, list[str]]:
    return Page(html).texts


def test_the_page_is_one_file_that_runs_no_script_and_fetches_nothing(run: RunFolder) -> None:
    check_page(report_html(run))


def test_texts_of_others_are_escaped(run: RunFolder) -> None:
    html = report_html(run)
    assert HOSTILE not in html and "<img" not in html and "my <run>" not in html
    texts = texts_of(html)
    assert texts["h1"] == ["my <run>"]
    assert any(HOSTILE in text for text in texts["ins"])
    assert any(HOSTILE in text for text in texts["td"])


def test_scores_slices_and_the_worst_utterances_are_shown_with_their_recordings(run: RunFolder, tmp_path: Path) -> None:
    html = report_html(run)
    parsed = Page(html)
    assert "Score on validation" in parsed.texts["h2"]
    assert [text for text in parsed.texts["h3"] if text.startswith("By")] == ["By duration", "By speaker"]
    assert {"0 to 2 s", "2 to 5 s", "5 to 10 s", "ann", "bob", "WER", "CER"} <= {*parsed.texts["th"]}
    assert parsed.texts["del"][-1] == "two" and "too" in parsed.texts["ins"]
    # One of each utterance with an error; the bytes are those of the prepared set.
    audio = parsed.all("audio")
    assert len(audio) == 3
    for found, duration_s in zip(audio, (7.5, 0.6, 0.5), strict=True):
        flac = base64.b64decode((found["src"] or "").partition(",")[2])
        (tmp_path / "x.flac").write_bytes(flac)
        assert soundfile.info(tmp_path / "x.flac").duration == pytest.approx(duration_s)


def test_the_headline_and_the_table_have_both_scores_of_a_model_with_a_short_context(run: RunFolder) -> None:
    assert "WER on validation" in texts_of(report_html(run))["dt"]
    key = "checkpoints/checkpoint-8-a2-y/validation.json"
    full = {"context_s": 30.0, "wer": 61.5, "cer": 40.25, "ser": 75.0}
    run.write_json(key, {**(run.read_json(key) or {}), "full_context": full})
    texts = texts_of(report_html(run))
    assert {"WER on validation, short context", "WER on validation, full context"} <= {*texts["dt"]}
    assert "WER on validation" not in texts["dt"]
    assert texts["dd"][2:5][:2] == ["61.50%", "padded to 30 s"]
    assert {"Short context", "Full context (30 s)"} <= {*texts["th"]}
    assert {"61.50%", "40.25%"} <= {*texts["td"]}


def test_a_score_of_a_beam_search_is_told_from_the_best_paths(run: RunFolder) -> None:
    assert "beam search" not in report_html(run)
    key = "checkpoints/checkpoint-8-a2-y/validation.json"
    run.write_json(key, {**(run.read_json(key) or {}), "best_path": {"wer": 97.5, "cer": 40.25, "ser": 99.0}})
    told = "By a beam search (decode). The model's best path, which scores during training use, has WER 97.50%, CER"
    assert told in report_html(run)


def test_scores_are_sliced_by_columns_of_the_manifest(run: RunFolder) -> None:
    Journal(run).append(lambda _: {"kind": "prepared", "attempt": 2, "processor": None})
    ids = [f"validation/{number:03d}.wav" for number in range(4)]
    accents = [{"accent": HOSTILE}, {"accent": "B"}, {}, {"accent": "B"}]
    rows = ({"split": "validation", "id": id, "values": of_id} for id, of_id in zip(ids, accents, strict=True))
    run.write_jsonl("attempts/2/slices.jsonl", rows)
    html = report_html(run)
    check_page(html)
    parsed = Page(html)
    assert "By accent" in parsed.texts["h3"] and "Accent" in parsed.texts["th"]
    assert {HOSTILE, "B", "not known"} <= {*parsed.texts["th"]}


def test_recordings_are_left_out_beyond_what_a_page_may_have(run: RunFolder, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(page, "MAX_AUDIO_BYTES", 40_000)
    assert len(Page(report_html(run)).all("audio")) == 2


def test_curves_attempts_quarantine_and_config_are_shown(run: RunFolder) -> None:
    parsed = Page(report_html(run))
    drawings = [str(found["aria-label"]) for found in parsed.all("svg")]
    assert any(
        text.startswith("Loss, nats per label: training from 6 at step 1 to 0.75 at step 8") for text in drawings
    )
    assert any("WER from 20 at step 4 to 10 at step 8" in text for text in drawings)
    cells = parsed.texts["td"]
    assert f"LostNodeError: n1 {HOSTILE}" in cells
    assert "changed: scaling.num_workers: 1 → 2" in cells
    # An hour of one worker.
    assert "1.00" in cells
    assert "…: … s is longer than … s" in cells and "u31" in cells
    assert "training.max_steps=8" in parsed.texts["code"]
    assert any("use_gpu: true" in text for text in parsed.texts["pre"])


def test_each_group_of_an_attempt_counts_with_its_workers_and_its_time() -> None:
    # Two hours of eight workers from the attempt's beginning on, then one of two.
    groups = [(600.0, 8), (7200.0, 2)]
    assert worker_seconds(groups, 0.0, 10_800.0) == 2 * 3600 * 8 + 3600 * 2
    assert worker_seconds(groups[:1], 0.0, 3600.0) == 3600 * 8


def test_attempts_have_a_cost_where_a_price_is_given(run: RunFolder) -> None:
    assert "Cost" not in Page(report_html(run)).texts["th"]
    scaling = {"use_gpu": True, "resources_per_worker": {"GPU": 4}, "price_per_gpu_hour": 2.5}
    run.storage.write_bytes("config.yaml", yaml.safe_dump({"run": {"name": "x"}, "scaling": scaling}).encode())
    parsed = Page(report_html(run))
    assert "Cost" in parsed.texts["th"] and "Cost" in parsed.texts["dt"]
    # An hour of one worker with four GPUs; of the second attempt nothing is known yet.
    assert {"4.00", "10.00"} <= {*parsed.texts["td"]} and "at 2.5 per GPU-hour" in parsed.texts["dd"]
    assert "at 3 per GPU-hour" in Page(report_html(run, 3.0)).texts["dd"]


def test_a_finished_run_shows_the_scores_of_its_result(run: RunFolder) -> None:
    journal = Journal(run)
    ids = ["a", "b", "c", "d"]
    evaluated(run.sub("attempts/2/outputs-y"), "test", ids)
    entry = {"kind": "finished", "attempt": 2, "outputs": "attempts/2/outputs-y", "files": []}
    result: dict[str, Any] = {"best_checkpoint": "checkpoint-8-a2-y", "best_step": 8, "finished": "2026"}
    journal.append(lambda _: {**entry, "result": result})
    write_report(run)
    texts = texts_of(run.storage.read_bytes(REPORT).decode())
    assert "Score on test" in texts["h2"] and "the best checkpoint is of step 8" in texts["dd"]
    # Nothing is known of the test set's clips here.
    assert "By speaker" not in texts["h3"]


def test_an_empty_folder_has_no_page(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no run has begun here"):
        report_html(RunFolder(open_storage(str(tmp_path / "empty"))))


def test_a_run_that_has_only_begun_has_a_page(tmp_path: Path) -> None:
    folder = RunFolder(open_storage(str(tmp_path / "begun")))
    begin(folder)
    texts = texts_of(report_html(folder))
    assert texts["h2"] == ["Data", "Attempts", "Config"]


def test_the_audio_that_is_trained_on_is_without_the_clips_that_were_left_out(run: RunFolder) -> None:
    environment: Any = run.read_json("environment.json")
    run.write_json("environment.json", {**environment, "data": {"train": environment["data"]["validation"]}})
    rows = [{"split": "train", "id": "validation/002.wav", "reason": "longer than 5 s (the model)"}]
    run.write_jsonl("quarantine.jsonl", [*rows, {**rows[0], "split": "validation", "id": "validation/001.wav"}])
    texts = [text for found in texts_of(report_html(run)).values() for text in found]
    assert "3 clips" in texts and "4 clips" not in texts
