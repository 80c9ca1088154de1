import csv
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import soundfile

from trainers.config.parts.data_part import DemoPart
from trainers.data.sources import demo_corpus
from trainers.data.sources.data_source import SPLITS
from trainers.data.sources.demo_corpus import make_demo_corpus, plan_corpus
from trainers.errors import DataError

SMALL = DemoPart(train_utterances=44, validation_utterances=6, test_utterances=8)


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    pytest.importorskip("espeakng_loader")
    return make_demo_corpus(tmp_path_factory.mktemp("demo") / "corpus", SMALL)


def rows_of(manifest: Path) -> list[dict[str, str]]:
    with manifest.open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def files_of(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def test_plan_is_the_same_for_the_same_options_only() -> None:
    assert plan_corpus(SMALL) == plan_corpus(SMALL)
    assert plan_corpus(SMALL) != plan_corpus(SMALL.model_copy(update={"seed": 1}))


def test_default_plan_holds_out_speakers_and_word_sequences() -> None:
    options = DemoPart()
    plan = plan_corpus(options)
    speakers, texts = (
        {split: {getattr(utterance, field) for utterance in plan if utterance.split == split} for split in SPLITS}
        for field in ("speaker", "text")
    )
    for by_split in (speakers, texts):
        assert by_split["test"].isdisjoint(by_split["train"] | by_split["validation"])
        assert by_split["validation"].isdisjoint(by_split["train"])
    assert len(texts["test"]) == options.test_utterances
    assert len(texts["validation"]) == options.validation_utterances
    assert len({utterance.id for utterance in plan}) == len(plan) == 1500 + 100 + 150
    assert speakers == {split: set(names) for split, names in demo_corpus.SPEAKERS.items()}


def test_every_held_out_word_is_in_training() -> None:
    plan = plan_corpus(DemoPart())
    assert {word for u in plan if u.split == "train" for word in u.text.split()} == set(demo_corpus.WORDS)


@pytest.mark.integration
def test_manifests_list_every_clip_with_its_duration(corpus: dict[str, Path]) -> None:
    assert list(corpus) == ["train", "validation", "test"]
    for split, manifest in corpus.items():
        rows = rows_of(manifest)
        assert len(rows) == getattr(SMALL, f"{split}_utterances")
        for row in rows:
            clip = soundfile.info(manifest.parent / row["path"])
            assert (clip.samplerate, clip.channels, clip.subtype) == (demo_corpus.SAMPLING_RATE_HZ, 1, "PCM_16")
            assert float(row["duration"]) == clip.frames / clip.samplerate
            assert 0.3 < float(row["duration"]) < 2.5


def test_manifests_say_what_was_planned(corpus: dict[str, Path]) -> None:
    written = [(row["id"], row["text"], row["speaker"]) for path in corpus.values() for row in rows_of(path)]
    assert written == [(u.id, u.text, u.speaker) for u in plan_corpus(SMALL)]


def test_clips_are_loud_unclipped_and_all_different(corpus: dict[str, Path]) -> None:
    clips = [
        soundfile.read(path.parent / row["path"], dtype="float32")[0]
        for path in corpus.values()
        for row in rows_of(path)
    ]
    assert all(np.sqrt(np.mean(clip**2)) > 0.02 for clip in clips)
    assert len({clip.tobytes() for clip in clips}) == len(clips)


@pytest.mark.integration
def test_same_options_give_the_same_bytes_in_any_working_directory(
    corpus: dict[str, Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Anybody may have put it there, as in /tmp.
    (tmp_path / "trainers").mkdir()
    (tmp_path / "trainers/__init__.py").write_text("raise SystemExit(7)")
    monkeypatch.chdir(tmp_path)
    again = make_demo_corpus(tmp_path / "elsewhere", SMALL)
    assert files_of(again["train"].parent) == files_of(corpus["train"].parent)


def test_a_finished_folder_is_reused(corpus: dict[str, Path], monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*arguments: object) -> None:
        raise AssertionError("the corpus was made again")

    monkeypatch.setattr(demo_corpus, "_write_in_fresh_process", refuse)
    assert make_demo_corpus(corpus["train"].parent, SMALL) == corpus


def test_makers_at_the_same_time_leave_one_whole_corpus(corpus: dict[str, Path], tmp_path: Path) -> None:
    folder = tmp_path / "shared"
    with ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda _: make_demo_corpus(folder, SMALL), range(3)))
    assert results == [{split: folder / f"{split}.csv" for split in SPLITS}] * 3
    assert files_of(folder) == files_of(corpus["train"].parent)
    assert [path for path in tmp_path.iterdir() if path.suffix != ".lock"] == [folder]


@pytest.mark.integration
def test_a_folder_that_was_emptied_is_filled_again(corpus: dict[str, Path], tmp_path: Path) -> None:
    (tmp_path / "emptied").mkdir()
    again = make_demo_corpus(tmp_path / "emptied", SMALL)
    assert again["test"].read_bytes() == corpus["test"].read_bytes()


def test_without_espeak_the_error_says_what_to_install(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(demo_corpus, "espeakng_loader", None)
    with pytest.raises(DataError, match=r"pip install 'rayscribe\[demo\]'"):
        make_demo_corpus(tmp_path / "corpus", SMALL)


def test_a_voice_that_does_not_exist_fails_and_leaves_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    pytest.importorskip("espeakng_loader")
    # The plan is made again in the child, so the wrong voice has to be put there.
    script = (
        "import sys; from pathlib import Path; from trainers.data.sources import demo_corpus; "
        "demo_corpus.ACCENTS = ('xx-nowhere',); demo_corpus.write_corpus(Path(sys.argv[1]), demo_corpus.DemoPart())"
    )
    real_run = subprocess.run
    monkeypatch.setattr(
        subprocess,
        "run",
        lambda command, **options: real_run([sys.executable, "-c", script, command[4]], **options),
    )
    with pytest.raises(DataError, match=r"could not be spoken: .*does not know the voice 'xx-nowhere\+m1'"):
        make_demo_corpus(tmp_path / "corpus", SMALL)
    assert [path.suffix for path in tmp_path.iterdir()] == [".lock"]


def test_the_corpus_needs_no_heavy_library() -> None:
    script = "import sys, trainers.data.sources.demo_corpus; assert not {'torch', 'datasets', 'ray'} & set(sys.modules)"
    subprocess.run([sys.executable, "-c", script], check=True)
