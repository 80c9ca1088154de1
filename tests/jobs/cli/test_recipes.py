"""`rayscribe init` writes a recipe and its manifests; shipped recipes are listed, printed and taken by name."""

import json
import shlex
from pathlib import Path

import pytest
import yaml

from jobs.cli.app import main
from jobs.cli.recipes import TELL_S, Patience
from tests.trainers.synthetic import speechlike, write_recording
from trainers.config.loader import build_config, read_yaml, shipped_recipes
from trainers.config.unused_fields import refuse_unused_fields

WORDS = "the cat sat on the mat and it was a good day for him to walk with you in that old town of ours"


@pytest.fixture(autouse=True)
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder where commands run, next to one of recordings."""
    for number in range(20):
        path = write_recording(tmp_path / "speech" / f"{number:02d}.wav", speechlike(0.525 + number / 20, seed=number))
        path.with_suffix(".txt").write_text(" ".join(WORDS.split()[number % 18 :][:5]), encoding="utf-8")
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


class TestInit:
    def test_columns_that_are_ignored_are_in_the_recipe_and_the_refusal_names_the_option(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        speech = folder.with_name("speech")
        splits = {"train": range(10), "valid": range(10, 15), "test": range(15, 20)}
        for split, numbers in splits.items():
            lines = [f"{number:02d}.wav,{(speech / f'{number:02d}.txt').read_text()},en,0\n" for number in numbers]
            (speech / f"{split}.csv").write_text("path,text,Language,begin_time\n" + "".join(lines))
        ignored: list[str] = []
        for name in ("begin_time", "Language"):
            assert main(["init", "../speech", *ignored]) != 0
            refused = " ".join(capsys.readouterr().err.split())
            assert name in refused and "--ignore-columns" in refused and "data." not in refused
            ignored += ["--ignore-columns", name]
        assert main(["init", "../speech", *ignored]) == 0
        config = build_config(read_yaml(Path("speech.yaml")), origin="speech.yaml", environment={})
        assert config.data.ignore_columns == ("begin_time", "Language")

    def test_a_recipe_and_its_manifests_are_written_and_the_source_is_left_alone(
        self, folder: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        before = {path: path.read_bytes() for path in folder.with_name("speech").iterdir()}
        assert main(["init", "../speech"]) == 0
        said = capsys.readouterr().out
        assert {path: path.read_bytes() for path in folder.with_name("speech").iterdir()} == before
        assert sorted(str(path.relative_to(folder)) for path in folder.rglob("*.*")) == [
            "speech-manifests/test.jsonl",
            "speech-manifests/train.jsonl",
            "speech-manifests/validation.jsonl",
            "speech.yaml",
        ]
        config = build_config(read_yaml(Path("speech.yaml")), origin="speech.yaml", environment={})
        refuse_unused_fields(config)
        rows = [json.loads(line) for path in folder.rglob("*.jsonl") for line in path.read_text().splitlines()]
        assert len({row["path"] for row in rows}) == 20
        assert "recordings with a .txt next to each, 20 clips, 20 s, of up to 1.5 s" in said
        assert "language: English, by its transcripts" in said
        assert "speakers are not known; no text is in two splits" in said

    def test_each_command_that_comes_next_is_one(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["init", "../speech", "--out", "a b/my recipe.yaml"]) == 0
        lines = capsys.readouterr().out.partition("next:\n")[2].splitlines()
        commands = [shlex.split(line, comments=True) for line in lines]
        assert [command[:3] for command in commands] == [
            ["rayscribe", verb, "a b/my recipe.yaml"] for verb in ("train", "train", "train", "evaluate")
        ]
        assert commands[0][3:] == ["--debug"]
        assert commands[1][3:] == ["--find-lr"]
        assert commands[3][3:] == ["--model", "~/ray_results/my-recipe"]
        assert yaml.safe_load(Path("a b/my recipe.yaml").read_text())["run"]["name"] == "my-recipe"

    def test_nothing_is_replaced_without_force(self, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["init", "../speech"]) == 0
        Path("speech.yaml").write_text("mine")
        assert main(["init", "../speech"]) == 2
        message = capsys.readouterr().err
        assert "speech.yaml, speech-manifests/train.jsonl" in message
        assert "already exists: use another file (--out other.yaml), or add --force" in message
        assert Path("speech.yaml").read_text() == "mine"
        assert main(["init", "../speech", "--force"]) == 0
        assert Path("speech.yaml").read_text() != "mine"

    def test_the_same_speech_is_split_in_the_same_way_wherever_it_is(self, folder: Path) -> None:
        assert main(["init", "../speech"]) == 0
        (folder / "moved").mkdir()
        folder.with_name("speech").rename(folder / "moved/speech")
        assert main(["init", "moved/speech", "--out", "moved/speech.yaml"]) == 0
        splits = [
            {
                split: [row["id"] for row in map(json.loads, (root / f"{split}.jsonl").read_text().splitlines())]
                for split in ("train", "validation", "test")
            }
            for root in (folder / "speech-manifests", folder / "moved/speech-manifests")
        ]
        assert splits[0] == splits[1]

    @pytest.mark.parametrize(
        ("arguments", "code", "expected"),
        [
            (["../nowhere"], 2, "no such file or folder"),
            (["."], 2, "no recordings"),
            (
                ["../speech", "--language", "Englsh"],
                2,
                "--language 'Englsh': Whisper has no token for 'Englsh'; did you mean English? To use",
            ),
            (["../speech", "--encoding", "latin-99"], 2, "--encoding latin-99: not a text encoding of Python"),
            (["../speech", "--model", "gpt"], 2, "--model gpt: use scratch, or a Whisper's folder"),
        ],
    )
    def test_what_cannot_be_done_is_said_and_nothing_is_written(
        self, folder: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, expected: str
    ) -> None:
        assert main(["init", *arguments]) == code
        assert expected in capsys.readouterr().err
        assert [*folder.iterdir()] == []

    def test_a_long_look_is_told_every_two_seconds(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        now_s = 0.0
        monkeypatch.setattr("jobs.cli.recipes.time.monotonic", lambda: now_s)
        tell = Patience()
        for _ in range(10):
            now_s += TELL_S / 2
            tell(f"at {now_s:g} s")
        assert capsys.readouterr().err.splitlines() == [f"at {at:g} s" for at in (2, 4, 6, 8, 10)]


class TestShipped:
    def test_each_is_listed_with_what_it_is_and_needs(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["recipes"]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert lines[::3] == [*shipped_recipes()]
        needs = {name: line.strip().removeprefix("needs: ") for name, line in zip(lines[::3], lines[2::3], strict=True)}
        assert needs["whisper_micro"] == "no GPU; the extra demo"
        assert needs["whisper_digits"] == "no GPU; FSDD=…, a folder or URL"
        assert needs["laptop"] == "no GPU; SPEECH=…, a folder or URL; weights from the Hub"
        assert needs["fleurs"] == "1 GPU; data and weights from the Hub"
        assert needs["whisper_small_finetune"].startswith("4 GPUs; BUCKET_URI=…, a folder or URL; SPEECH=…")

    def test_one_is_printed_as_it_is(self, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["recipes", "fleurs"]) == 0
        assert capsys.readouterr().out == shipped_recipes()["fleurs"].read_text(encoding="utf-8")
        assert main(["recipes", "fleur"]) == 2
        assert "did you mean fleurs?" in capsys.readouterr().err

    @pytest.mark.parametrize(
        "command",
        [["train"], ["prepare"], ["evaluate", "--model", "."], ["submit"], ["preflight"]],
        ids=lambda it: it[0],
    )
    def test_each_command_takes_a_name(
        self, command: list[str], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("COMMON_VOICE", raising=False)
        verb, *options = command
        assert main([verb, "common_voice", *options]) == 2
        assert "names the variable COMMON_VOICE" in capsys.readouterr().err
        assert main([verb, "comon_voice", *options]) == 2
        assert "comon_voice: no such file" in (said := capsys.readouterr().err)
        assert "(did you mean common_voice?)" in said

    @pytest.mark.parametrize("name", ["laptop", "laptop.yaml"])
    def test_a_file_of_that_name_is_taken_first(self, folder: Path, name: str) -> None:
        (folder / name).write_text("run: {name: own}")
        assert read_yaml(Path("laptop")) == {"run": {"name": "own"}}

    def test_a_folder_of_that_name_is_no_file(self, folder: Path) -> None:
        (folder / "laptop").mkdir()
        assert read_yaml(Path("laptop"))["model"]["name_or_path"] == "openai/whisper-tiny"
