"""Recipes that are written, compared with golden files; each is a config that trains.

`REGENERATE_GOLDEN=1 pytest tests/jobs/recipes/test_new_recipe.py` rewrites them; review the difference.
"""

import json
import os
import posixpath
import tomllib
from pathlib import Path

import numpy as np
import pytest
import yaml

from jobs.recipes.found_machine import Gpu, Machine
from jobs.recipes.found_speech import Columns, FoundSpeech, FoundSplit, find_speech
from jobs.recipes.new_recipe import DOCS, NewRecipe, Wishes, new_recipe, read_given_model, run_name
from jobs.recipes.speech_facts import MeasuredSpeech, language_of, measure
from tests.trainers.synthetic import write_corpus
from trainers.config.loader import build_config
from trainers.config.unused_fields import refuse_unused_fields
from trainers.errors import ConfigError, DataError

GOLDEN = Path(__file__).parent / "golden"
ROOT = Path(__file__).parents[3]
LAPTOP = Machine(8, 16 * 2**30)
SERVER = Machine(64, 512 * 2**30, (Gpu("NVIDIA A100", 80 * 2**30, has_bfloat16=True),) * 4)
WORDS = "the cat sat on the mat and it was a good day for him to walk with you in that old town of ours"
TEXTS = [" ".join(WORDS.split()[start : start + 5]) for start in range(18)]


@pytest.fixture
def manifest(tmp_path: Path) -> Path:
    """A manifest of 18 clips, in a folder below that of the recipe."""
    return write_corpus(tmp_path / "speech", TEXTS, durations_s=[1.0, 1.5, 2.0] * 6, name="all")


def made(
    source: object, machine: Machine, out: Path, *, model: str | None = None, language: str | None = None
) -> NewRecipe:
    found = find_speech(str(source), Columns(), print)
    given = read_given_model(model) if model is not None else None
    return new_recipe(found, measure(found, print), machine, Wishes(out, language, given))


def common_voice(folder: Path, *, clips: int) -> Path:
    """A Common Voice of which nothing is read but its tables."""
    for number, table in enumerate(("train", "dev", "test")):
        rows = [f"{table}{n}\tcommon_voice_sr_{number}{n}.mp3\t{table} {n}" for n in range(clips)]
        (folder / "clips").mkdir(parents=True, exist_ok=True)
        text = "\n".join(["client_id\tpath\tsentence", *rows, ""])
        (folder / f"{table}.tsv").write_text(text, encoding="utf-8")
    return folder


def rows_of(made: NewRecipe, split: str) -> list[dict[str, str]]:
    [text] = [text for path, text in made.texts.items() if path.name == f"{split}.jsonl"]
    return [json.loads(line) for line in text.splitlines()]


def as_golden(name: str, recipe: NewRecipe) -> None:
    """Compares with a golden file, and builds the config."""
    text = recipe.texts[recipe.recipe]
    config = build_config(yaml.safe_load(text), origin=name, environment={})
    refuse_unused_fields(config)
    golden = GOLDEN / f"{name}.yaml"
    if os.environ.get("REGENERATE_GOLDEN"):
        golden.write_text(text, encoding="utf-8")
    assert text == golden.read_text(encoding="utf-8")


def test_on_a_laptop_a_tiny_model_is_tuned_at_a_short_context(manifest: Path, tmp_path: Path) -> None:
    recipe = made(manifest, LAPTOP, tmp_path / "sr.yaml")
    as_golden("laptop", recipe)
    assert [path.relative_to(tmp_path) for path in recipe.texts] == [
        Path("sr.yaml"),
        *(Path(f"sr-manifests/{split}.jsonl") for split in ("train", "validation", "test")),
    ]
    rows = {split: rows_of(recipe, split) for split in ("train", "validation", "test")}
    assert sorted(row["text"] for split in rows.values() for row in split) == sorted(TEXTS)
    paths = {posixpath.normpath(tmp_path / "sr-manifests" / row["path"]) for split in rows.values() for row in split}
    assert paths == {str(path) for path in tmp_path.rglob("*.wav")}
    assert recipe.run_folder == "~/ray_results/sr"
    assert recipe.messages[-1].startswith(
        "weights: the first training downloads them from the Hub (151.0 MB); a new model"
    )
    assert recipe.messages[0] == f"{manifest}: a manifest, 18 clips, 27 s, of up to 2.0 s"


def test_on_a_server_each_gpu_has_a_worker(manifest: Path, tmp_path: Path) -> None:
    as_golden("server", made(manifest, SERVER, tmp_path / "sr.yaml"))


def test_the_documentation_that_a_recipe_names_is_the_project_s() -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["urls"]["Documentation"] == DOCS
    assert (ROOT / "docs/configuration.md").is_file()


def test_a_new_model_is_made_where_it_is_asked_for(manifest: Path, tmp_path: Path) -> None:
    recipe = made(manifest, LAPTOP, tmp_path / "sr.yaml", model="scratch")
    as_golden("scratch", recipe)
    assert recipe.messages[-1].startswith("model: a new model")


def test_splits_that_the_data_has_are_named_as_they_are(tmp_path: Path) -> None:
    speech = tmp_path / "speech"
    for split in ("train", "valid", "test"):
        write_corpus(speech, [f"{split} {text}" for text in TEXTS[:6]], durations_s=[1.0] * 6, name=split)
    recipe = made(speech, SERVER, tmp_path / "sr.yaml")
    as_golden("own_splits", recipe)
    assert [*recipe.texts] == [tmp_path / "sr.yaml"]


def test_the_encoding_and_quoting_of_tables_that_a_recipe_names_are_in_it(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        table = write_corpus(tmp_path, [f"{split} é {text}" for text in TEXTS[:6]], durations_s=[1.0] * 6, name=split)
        table.write_text(table.read_text(encoding="utf-8"), encoding="latin-1")
    for source, expected in ((tmp_path, "latin-1"), (tmp_path / "train.csv", None)):
        found = find_speech(str(source), Columns(), print, "latin-1", "none")
        recipe = new_recipe(found, measure(found, print), SERVER, Wishes(tmp_path / "sr.yaml", "French"))
        data = yaml.safe_load(recipe.texts[recipe.recipe])["data"]
        # Manifests that are written are JSON lines in UTF-8.
        assert (data.get("encoding"), len(recipe.texts)) == (expected, 1 if expected else 4)
        assert data.get("quoting") == ("none" if expected else None)


def found_without_recordings(source: Path, clips: int) -> tuple[FoundSpeech, MeasuredSpeech]:
    """Common Voice whose recordings are as long as others would be."""
    found = find_speech(str(common_voice(source, clips=clips)), Columns(), print)
    rows = {
        name: [{**row, "folder": ""} for row in split.source.table.to_pylist()] for name, split in found.splits.items()
    }
    return found, MeasuredSpeech(rows, np.full(clips, 5.2))


def test_common_voice_is_named_as_it_is_where_a_machine_takes_all_of_it(tmp_path: Path) -> None:
    found, measured = found_without_recordings(tmp_path / "sr", 200)
    recipe = new_recipe(found, measured, SERVER, Wishes(tmp_path / "sr.yaml"))
    as_golden("common_voice", recipe)
    assert recipe.messages[1] == "language: sr, by the names of its clips"


def test_a_laptop_takes_some_clips_of_a_large_corpus(tmp_path: Path) -> None:
    found, measured = found_without_recordings(tmp_path / "sr", 3000)
    recipe = new_recipe(found, measured, LAPTOP, Wishes(tmp_path / "sr.yaml"))
    assert {split: len(rows_of(recipe, split)) for split in ("train", "validation", "test")} == {
        "train": 2400,
        "validation": 100,
        "test": 100,
    }
    assert "train: 2,400 of 3,000 clips are used, so that this machine needs only minutes" in recipe.messages


def test_a_test_set_that_is_missing_is_drawn_from_train(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        write_corpus(tmp_path / "speech", [f"{split} {text}" for text in TEXTS], durations_s=[1.0] * 18, name=split)
    recipe = made(tmp_path / "speech", SERVER, tmp_path / "sr.yaml")
    counts = {split: len(rows_of(recipe, split)) for split in ("train", "validation", "test")}
    assert counts["validation"] == 18
    assert (counts["train"] + counts["test"], counts["test"] > 0) == (18, True)


def test_speakers_and_texts_that_splits_share_are_told(tmp_path: Path) -> None:
    for split in ("train", "valid", "test"):
        manifest = write_corpus(tmp_path / "speech", TEXTS[:3], durations_s=[1.0] * 3, name=split)
        rows = [f"{split}/{n:03d}.wav,{text},ana,en" for n, text in enumerate(TEXTS[:3])]
        manifest.write_text("\n".join(["path,text,speaker,language", *rows, ""]), encoding="utf-8")
    said = made(tmp_path / "speech", SERVER, tmp_path / "sr.yaml").messages
    assert "warning: speakers of test that are also in train: 1" in said
    assert not [line for line in said if line.startswith("warning: recordings")]
    (tmp_path / "speech" / "test.csv").write_bytes((tmp_path / "speech" / "train.csv").read_bytes())
    said = made(tmp_path / "speech", SERVER, tmp_path / "sr.yaml").messages
    assert "warning: recordings of test that are also in train: 3; remove them from one" in said
    assert "warning: clips of validation whose texts are also in train: 3 of 3" in said


def test_recordings_elsewhere_are_named_by_where_they_are(manifest: Path, tmp_path: Path) -> None:
    recipe = made(manifest, LAPTOP, tmp_path / "recipes" / "sr.yaml")
    assert {Path(row["path"]).is_absolute() for row in rows_of(recipe, "train")} == {True}


def test_transcripts_that_are_all_empty_teach_nothing(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, [""] * 4, durations_s=[1.0] * 4)
    with pytest.raises(DataError, match="each transcript is empty"):
        made(manifest, LAPTOP, tmp_path / "sr.yaml")


def test_recordings_of_train_that_are_none_are_refused_whatever_validation_has(tmp_path: Path) -> None:
    for split in ("train", "valid"):
        write_corpus(tmp_path / "speech", TEXTS, durations_s=[1.0] * 18, name=split)
    for recording in (tmp_path / "speech" / "train").iterdir():
        recording.write_text("version https://git-lfs.github.com/spec/v1\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"no recording to train on can be read \("):
        made(tmp_path / "speech", SERVER, tmp_path / "sr.yaml")


def test_rows_without_a_text_are_left_out_and_counted(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, [*TEXTS, "", " "], durations_s=[1.0] * 20)
    recipe = made(manifest, LAPTOP, tmp_path / "sr.yaml")
    assert "left out, recordings without a transcript: 2" in recipe.messages
    texts = [row["text"] for split in ("train", "validation", "test") for row in rows_of(recipe, split)]
    assert sorted(texts) == sorted(TEXTS)


def test_a_test_set_without_texts_is_drawn_from_train(tmp_path: Path) -> None:
    for split, texts in (("train", TEXTS[:9]), ("valid", TEXTS[9:12]), ("test", [""] * 3)):
        write_corpus(tmp_path, texts, durations_s=[1.0] * len(texts), name=split)
    recipe = made(tmp_path, LAPTOP, tmp_path / "recipe" / "sr.yaml")
    assert {row["text"] for row in rows_of(recipe, "test")} < {*TEXTS[:9]}


def test_a_recording_in_several_rows_is_in_one_split(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, TEXTS, durations_s=[1.0] * 18)
    lines = manifest.read_text(encoding="utf-8").splitlines()
    paths = [line.partition(",")[0] for line in lines]
    again = [*lines[1:5], f"./{lines[5]}", f"{tmp_path}/../{tmp_path.name}/{lines[6]}", f"{paths[1]},another text"]
    manifest.write_text("\n".join([*lines, *again, ""]), encoding="utf-8")
    recipe = made(manifest, LAPTOP, tmp_path / "recipe" / "sr.yaml")
    rows = [row for split in ("train", "validation", "test") for row in rows_of(recipe, split)]
    assert sorted(row["text"] for row in rows) == sorted(TEXTS)
    assert "left out, 6 rows that repeat a recording and its text: each is used once" in recipe.messages
    [warning] = [line for line in recipe.messages if "another text" in line]
    assert warning.startswith("warning: left out, 1 row with another text of a recording than its first row, such as")


def test_segments_of_a_recording_are_none_that_repeat_it_and_stay_together(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, TEXTS[:4], durations_s=[6.0] * 4)
    paths = [line.partition(",")[0] for line in manifest.read_text(encoding="utf-8").splitlines()[1:]]
    rows = [f"{path},{TEXTS[n]} {start},{start},1" for n, path in enumerate(paths) for start in range(5)]
    manifest.write_text("\n".join(["path,text,offset,duration", *rows, rows[0], ""]), encoding="utf-8")
    recipe = made(manifest, LAPTOP, tmp_path / "sr.yaml")
    splits = [rows_of(recipe, split) for split in ("train", "validation", "test")]
    assert ([len(split) for split in splits], [len({row["path"] for row in split}) for split in splits]) == (
        [10, 5, 5],
        [2, 1, 1],
    )
    assert "left out, 1 row that repeats a recording and its text: each is used once" in recipe.messages


def test_one_recording_in_many_rows_is_too_little(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, TEXTS[:1], durations_s=[1.0])
    header, row = manifest.read_text(encoding="utf-8").splitlines()
    manifest.write_text("\n".join([header, *[row] * 5, ""]), encoding="utf-8")
    with pytest.raises(DataError, match="1 clips, but at least 3 are needed"):
        made(manifest, LAPTOP, tmp_path / "sr.yaml")


def test_few_clips_to_score_are_told(manifest: Path, tmp_path: Path) -> None:
    said = made(manifest, LAPTOP, tmp_path / "sr.yaml").messages
    expected = (
        "warning: scores of 2 validation clips and 2 test clips say little: add recordings, best of more speakers"
    )
    assert expected in said
    found, measured = found_without_recordings(tmp_path / "cv" / "sr", 200)
    said = new_recipe(found, measured, SERVER, Wishes(tmp_path / "sr.yaml")).messages
    assert not [line for line in said if "say little" in line]


def test_two_clips_are_too_few(tmp_path: Path) -> None:
    manifest = write_corpus(tmp_path, TEXTS[:2], durations_s=[1.0] * 2)
    with pytest.raises(DataError, match="2 clips, but at least 3 are needed"):
        made(manifest, LAPTOP, tmp_path / "sr.yaml")


@pytest.mark.parametrize(
    ("name", "run"), [("sr", "sr"), ("my speech (2)", "my-speech-2"), ("..", "my-speech"), ("prepared", "prepared-run")]
)
def test_any_name_of_a_folder_makes_one_of_a_run(name: str, run: str) -> None:
    assert run_name(name) == run


class TestLanguage:
    @pytest.mark.parametrize(
        ("texts", "language"),
        [
            (TEXTS, "English"),
            (["Der Hund ist nicht in der Küche", "Ich sehe das Haus und den Baum"], "German"),
            (["Le chat est dans la maison et il ne dort pas"], "French"),
            (["и он не знал что это было так", "она была не на работе"], "Russian"),
            (["in nihče ne ve da je to bilo na mizi", "so pa ljudje ki se ne bojijo"], "Slovenian"),
            (["καλημέρα σας, θα ήθελα να πάω στην αγορά για ψάρια"], "Greek"),
            (["日本語をはなします"], "Japanese"),
            (["한국어"], "Korean"),
            (["সকলো মানুহ স্বাধীন আৰু সমান মৰ্যাদা আৰু অধিকাৰেৰে জন্মগ্ৰহণ কৰে"], "Assamese"),
            (["я не ведаю што гэта было, але яна і не думала", "у яго і не было таго, што на стале"], "Belarusian"),
            (["mən bu kitabı çox sevirəm və ona da bir ad verdim", "o isə bu gün bir daha gəlir"], "Azerbaijani"),
        ],
    )
    def test_texts_that_say_it(self, texts: list[str], language: str) -> None:
        assert self.of(texts) == language

    @pytest.mark.parametrize(
        "texts",
        [
            ["zero", "one"],
            ["Dobar dan, kako ste"],
            ["on je rekao da se to ne radi u petak na poslu"],
            ["日本"],
            ["123"],
            ["नमस्ते"],
            # Malay, which looks like Indonesian.
            ["saya tidak tahu apa yang dia mahu dan itu untuk kereta di sini", "ada yang akan pergi ke pejabat pada"],
        ],
        ids=lambda texts: texts[0],
    )
    def test_texts_that_do_not_are_an_error_with_an_example(self, texts: list[str]) -> None:
        with pytest.raises(ConfigError, match=r"cannot be detected .* name it, e.g. --language"):
            self.of(texts)
        assert self.of(texts, given="hindi") == "hindi"

    def test_a_column_of_languages_says_it(self) -> None:
        rows = [{"text": "x", "language": code} for code in ("sr", "hr", "sr", None)]
        assert language_of(rows, self.found(), None) == ("sr", "of 2 clips; 2 languages in all")

    def test_one_that_whisper_has_no_token_for_is_refused_wherever_it_is_from(self) -> None:
        with pytest.raises(
            ConfigError, match=r"/speech: language 'ab': Whisper has no token .* \(Abkhazian\)\. .* with --language"
        ):
            language_of([{"text": "x", "language": "ab"}], self.found(), None)

    @pytest.mark.parametrize(
        ("language", "model", "named", "normalizer"),
        [
            ("en-GB", None, None, "whisper_english"),
            (None, "tiny.en", None, "whisper_english"),
            (None, None, "English", "whisper_english"),
            ("English", "scratch", None, None),
            ("German", None, None, None),
            # Its diacritics would be removed from clips in German.
            ("English", None, "de", None),
        ],
    )
    def test_english_alone_is_scored_as_whisper_writes_it(
        self, tmp_path: Path, language: str | None, model: str | None, named: str | None, normalizer: str | None
    ) -> None:
        folder = tmp_path / "speech"
        manifest = write_corpus(folder, TEXTS, durations_s=[1.0] * len(TEXTS), name="all")
        if named is not None:
            head, *rows = manifest.read_text(encoding="utf-8").splitlines()
            rows = [f"{row},{named if number else ''}" for number, row in enumerate(rows)]
            manifest.write_text("\n".join([f"{head},language", *rows, ""]), encoding="utf-8")
        recipe = made(manifest, LAPTOP, tmp_path / "a.yaml", model=model, language=language)
        assert yaml.safe_load(recipe.texts[recipe.recipe])["data"].get("normalizer") == normalizer

    def test_cantonese_asks_for_a_model_that_has_its_token(self, manifest: Path, tmp_path: Path) -> None:
        with pytest.raises(
            ConfigError, match=r"'zh-HK': openai/whisper-tiny has no token .* --model large-v3, large-v3-tu"
        ):
            made(manifest, LAPTOP, tmp_path / "yue.yaml", language="zh-HK")
        for model in ("large-v3", "scratch"):
            assert made(manifest, LAPTOP, tmp_path / "yue.yaml", language="zh-HK", model=model).recipe

    def of(self, texts: list[str], given: str | None = None) -> str:
        return language_of([{"text": text, "language": None} for text in texts], self.found(), given)[0]

    @staticmethod
    def found() -> FoundSpeech:
        splits: dict[str, FoundSplit] = {}
        return FoundSpeech("speech", "a manifest", "/speech", splits)


class TestGivenModel:
    @pytest.mark.parametrize(
        ("text", "name", "weights"),
        [
            ("tiny", "openai/whisper-tiny", 39e6),
            ("large-v3-turbo", "openai/whisper-large-v3-turbo", 809e6),
            ("openai/whisper-small.en", "openai/whisper-small.en", 244e6),
            ("me/whisper-small-sr", "me/whisper-small-sr", 244e6),
        ],
    )
    def test_a_size_and_an_id_of_the_hub_say_how_large_it_is(self, text: str, name: str, weights: float) -> None:
        found = read_given_model(text)
        assert (found.name, found.weights) == (name, weights)

    def test_a_folder_says_it_by_its_config(self, tmp_path: Path) -> None:
        sizes = {"d_model": 384, "encoder_layers": 4, "decoder_layers": 4, "vocab_size": 51865}
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "whisper", **sizes}))
        found = read_given_model(str(tmp_path))
        assert found.name == str(tmp_path)
        assert found.weights == pytest.approx(39e6, rel=0.1)
        (tmp_path / "config.json").write_text(json.dumps({"model_type": "wav2vec2"}))
        with pytest.raises(ConfigError, match="the model is wav2vec2, but init needs a Whisper"):
            read_given_model(str(tmp_path))
        (tmp_path / "config.json").unlink()
        with pytest.raises(ConfigError, match=r"its config.json cannot be read"):
            read_given_model(str(tmp_path))

    @pytest.mark.parametrize("text", ["facebook/wav2vec2-base", "nowhere", "openai/whisper-giant"])
    def test_another_is_refused(self, text: str) -> None:
        with pytest.raises(ConfigError, match=f"--model {text}: use scratch, or a Whisper's folder"):
            read_given_model(text)

    def test_an_english_whisper_has_no_language(self, tmp_path: Path) -> None:
        manifest = write_corpus(tmp_path, TEXTS, durations_s=[1.0] * 18)
        recipe = made(manifest, LAPTOP, tmp_path / "en.yaml", model="tiny.en")
        assert "language" not in yaml.safe_load(recipe.texts[recipe.recipe])["model"]
        made(manifest, LAPTOP, tmp_path / "en.yaml", model="tiny.en", language="English")
        with pytest.raises(ConfigError, match=r"--language 'Serbian': openai/whisper-tiny\.en is for English"):
            made(manifest, LAPTOP, tmp_path / "en.yaml", model="tiny.en", language="Serbian")

    def test_a_folder_next_to_the_recipe_is_named_from_there(self, manifest: Path, tmp_path: Path) -> None:
        (tmp_path / "weights").mkdir()
        (tmp_path / "weights/config.json").write_text('{"model_type": "whisper"}')
        recipe = made(manifest, LAPTOP, tmp_path / "sr.yaml", model=str(tmp_path / "weights"))
        assert yaml.safe_load(recipe.texts[recipe.recipe])["model"]["name_or_path"] == "weights"
