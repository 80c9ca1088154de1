"""Six languages from speech to score: tiny new models on synthesized speech, their counts held against jiwer's."""

import json
import multiprocessing
import unicodedata
from collections.abc import Mapping
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path
from typing import Any

import jiwer
import pytest
from typer.testing import CliRunner

from jobs.cli.app import app
from tests.trainers.synthetic import add_languages, config, write_recording, write_rows
from trainers.config.schema import TrainConfig
from trainers.data.sources.demo_corpus import SAMPLING_RATE_HZ, DemoUtterance, synthesize
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.fit import fit
from trainers.scoring.normalizers import normalizer_named
from trainers.scoring.ranking import ranking_rate

# Of each language its voice, and sentences with what whitespace separates in them, counted by hand.
SPOKEN: Mapping[str, tuple[str, tuple[tuple[str, int], ...]]] = {
    "Hindi": ("hi", (("मेरी बहन की किताब।", 4), ("घर में पानी है!", 4), ("मेरा भाई कहाँ है?", 4))),
    "Thai": ("th", (("กินน้ำกันเถอะ", 1), ("วันนี้อากาศร้อน", 1), ("แม่ไปตลาด แล้ว", 2))),
    "Arabic": ("ar", (("كَتَبَ الوَلَدُ،", 2), ("كُتِبَ الدَّرْسُ.", 2), ("أَيْنَ البَيْتُ؟", 2))),
    "Chinese": ("cmn", (("今天天气很好。", 1), ("我们去公园！", 1), ("你好吗？", 1))),
    "Vietnamese": ("vi", (("Hôm nay trời đẹp.", 4), ("Tôi uống nước.", 3), ("Mẹ đi chợ rồi!", 4))),
    "Serbian": ("sr", (("Ђак је вредан.", 3), ("Где је кућа?", 3), ("Шљива, њива!", 2))),
}


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder for each language, with its clips and one manifest of the sentences in NFD."""
    folder = tmp_path_factory.mktemp("spoken")
    # espeak-ng wants a process of its own.
    with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as process:
        process.submit(speak, folder).result()
    return folder


def speak(folder: Path) -> None:
    """Writes all clips and manifests."""
    planned = [
        (language, DemoUtterance(f"{language}-{number}", "train", text, voice, "m1", 200, 50))
        for language, (voice, sentences) in SPOKEN.items()
        for number, (text, _) in enumerate(sentences)
    ]
    clips = synthesize(utterance for _, utterance in planned)
    rows: dict[str, list[tuple[str, str]]] = {language: [] for language in SPOKEN}
    for (language, utterance), samples in zip(planned, clips, strict=True):
        path = write_recording(folder / language / f"{utterance.id}.wav", samples, SAMPLING_RATE_HZ)
        rows[language].append((path.name, unicodedata.normalize("NFD", utterance.text)))
    for language, found in rows.items():
        for split in ("train", "validation", "test"):
            write_rows(folder / language / f"{split}.csv", found)


def config_of(manifests: Path, language: str, folder: Path) -> TrainConfig:
    """Of a run that learns its few sentences half by heart."""
    changes: dict[str, Any] = {
        "run.name": "small",
        "run.storage_path": str(folder),
        "data": {split: str(manifests / f"{split}.csv") for split in ("train", "validation", "test")},
        "data.normalizer": "basic",
        "model.language": language,
        "model.d_model": 48,
        "model.attention_heads": 4,
        "training.max_steps": 40,
        "training.save_steps": 40,
        "training.per_device_train_batch_size": 3,
        "training.learning_rate": 4e-3,
        "decode.max_length": 24,
        "training.report_to": [],
    }
    return config(changes)


# With combining marks, without spaces, and with neither; each of the others is like one of these.
FIRST = ("Hindi", "Thai", "Serbian")
LATER = [pytest.param(language, marks=pytest.mark.long) for language in SPOKEN if language not in FIRST]


@pytest.mark.parametrize("language", [*FIRST, *LATER])
def test_a_language_is_scored_right_from_its_speech_on(language: str, corpora: Path, tmp_path: Path) -> None:
    result = fit(config_of(corpora / language, language, tmp_path), LocalEngine())
    totals, evaluation = result.totals, tmp_path / "small/evaluation/test.jsonl"
    lines = [json.loads(line) for line in evaluation.read_bytes().splitlines()]
    basic = normalizer_named("basic")
    said, heard = ([basic(line[key]) for line in lines] for key in ("reference", "hypothesis"))
    assert totals["words"] == sum(count for _, count in SPOKEN[language][1]) == sum(len(text.split()) for text in said)
    assert all(unicodedata.is_normalized("NFC", text) for text in said)
    assert counts_of(totals) == counts_by_jiwer(said, heard)
    assert totals["ser"] == pytest.approx(100 * sum(a != b for a, b in zip(said, heard, strict=True)) / len(said))
    assert totals["characters"] - totals["character_deletions"] > 0, "it has heard something"
    assert (totals["normalizer"], totals["normalizer_version"]) == ("basic", basic.version)
    assert all(line["avg_logprob"] < 0 for line in lines)
    unspaced = language in ("Thai", "Chinese")
    assert ranking_rate(language) == ("cer" if unspaced else "wer")
    assert result.headline.startswith("CER" if unspaced else "WER")
    assert ("is written without spaces" in result.headline) == unspaced
    assert counts_of(scored_again(evaluation, corpora / language / "test.csv", tmp_path)) == counts_of(totals)


def test_each_language_of_a_set_is_trained_and_scored_as_its_own(corpora: Path, tmp_path: Path) -> None:
    spoken = {"Hindi": "", "Serbian": "sr-RS"}
    rows = [
        (str(corpora / language / f"{language}-{number}.wav"), text)
        for language in spoken
        for number, (text, _) in enumerate(SPOKEN[language][1])
    ]
    for split in ("train", "validation", "test"):
        add_languages(write_rows(tmp_path / f"{split}.csv", rows), [spoken[path.split("/")[-2]] for path, _ in rows])
    both = config_of(tmp_path, "Hindi", tmp_path)
    result = fit(both, LocalEngine())
    languages = result.totals["languages"]
    words = {code: sum(count for _, count in SPOKEN[name][1]) for code, name in (("hi", "Hindi"), ("sr", "Serbian"))}
    assert {code: score["words"] for code, score in languages.items()} == words
    for count in ("scored", "words", "insertions", "deletions", "substitutions", "characters", "sentence_errors"):
        assert sum(score[count] for score in languages.values()) == result.totals[count]
    lines = [json.loads(line) for line in (tmp_path / "small/evaluation/test.jsonl").read_text().splitlines()]
    assert [line["language"] for line in lines] == ["hi"] * 3 + ["sr"] * 3
    assert "hi: WER" in result.headline and "; sr: WER" in result.headline
    # Whatever clips are generated together.
    alone = both.model_copy(update={"training": both.training.model_copy(update={"per_device_eval_batch_size": 1})})
    again = evaluate(alone, LocalEngine(), model=str(tmp_path / "small"), split="test")
    assert again.totals["languages"] == languages


def counts_of(totals: Mapping[str, Any]) -> list[Any]:
    """The counts and rates of a score that jiwer has too."""
    edits = ("insertions", "deletions", "substitutions")
    rates = [pytest.approx(totals["wer"]), pytest.approx(totals["cer"])]
    return [*(totals[prefix + edit] for prefix in ("", "character_") for edit in edits), *rates]


def counts_by_jiwer(said: list[str], heard: list[str]) -> list[Any]:
    """The same by jiwer, over the whole set at once."""
    words, characters = jiwer.process_words(said, heard), jiwer.process_characters(said, heard)
    edits = [(each.insertions, each.deletions, each.substitutions) for each in (words, characters)]
    return [*edits[0], *edits[1], 100 * words.wer, 100 * characters.cer]


def scored_again(evaluation: Path, manifest: Path, folder: Path) -> dict[str, Any]:
    """`rayscribe score` of the hypotheses against the manifest's own texts, which are NFD."""
    lines = manifest.read_text(encoding="utf-8").splitlines()[1:]
    said = folder / "said.trn"
    said.write_text("".join(f"{text} ({path})\n" for path, _, text in (line.partition(",") for line in lines)))
    result = CliRunner().invoke(app, ["score", str(evaluation), "--reference", str(said), "--json"])
    assert result.exit_code == 0, result.output
    total: dict[str, Any] = json.loads(result.output)["total"]
    return total
