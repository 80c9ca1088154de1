"""Exports to what needs no further package: kept or not, replaced, refused; and formats that fail."""

import json
import shutil
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from jobs.cli import main
from tests.trainers.pipeline.export.finished_runs import SHORT_S, finished_run
from tests.trainers.pipeline.transcription.tiny_models import CTC, write_ctc, write_whisper
from tests.trainers.run_folder.finished_runs import finish
from tests.trainers.run_folder.writers import begin
from tests.trainers.synthetic import config
from trainers.config.parts.decode_part import GenerationPart
from trainers.errors import ConfigError, ExportError
from trainers.models.families import family_of_folder
from trainers.models.recognizer import Decoding
from trainers.pipeline.export.ctranslate2_exporter import CTranslate2
from trainers.pipeline.export.export_request import KNOWN_EXPORTS, ExportRequest, KnownExport
from trainers.pipeline.export.export_run import export_run
from trainers.pipeline.export.exporter import HuggingFace, Source
from trainers.pipeline.export.graph_exporters import Onnx
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage


class Damaging(HuggingFace):
    """A converter that loses the weights of the output layer."""

    def convert(self, source: Source, folder: Path) -> None:
        super().convert(source, folder)
        weights = load_file(folder / "model.safetensors")
        for name in weights:
            if name.startswith("lm_head"):
                weights[name] = torch.zeros_like(weights[name])
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


class Failing(HuggingFace):
    """A converter that fails when it has written everything."""

    def convert(self, source: Source, folder: Path) -> None:
        super().convert(source, folder)
        raise RuntimeError("no operator for this layer")


class Stopped(HuggingFace):
    """A converter that is interrupted when it has written everything."""

    def convert(self, source: Source, folder: Path) -> None:
        super().convert(source, folder)
        raise KeyboardInterrupt


@pytest.fixture(autouse=True)
def nobodys_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RAYSCRIBE_HOME", str(tmp_path / "home"))


@pytest.fixture(autouse=True)
def further_formats(monkeypatch: pytest.MonkeyPatch) -> None:
    for kind in (Damaging, Failing, Stopped):
        monkeypatch.setitem(_table(), kind.__name__.lower(), KnownExport(f"{__name__}:{kind.__name__}"))


def _table() -> dict[str, KnownExport]:
    assert isinstance(KNOWN_EXPORTS, dict)
    return KNOWN_EXPORTS


@pytest.fixture(scope="module")
def ctc(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    storage = tmp_path_factory.mktemp("ctc")
    return finished_run(storage, write_ctc(storage / "model"), {"model": CTC})


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    storage = tmp_path_factory.mktemp("whisper")
    return finished_run(storage, write_whisper(storage / "model"), durations_s=SHORT_S)


def files_below(folder: Path) -> set[str]:
    return {path.relative_to(folder).as_posix() for path in folder.rglob("*")}


@pytest.mark.parametrize("family", ["ctc", "whisper"])
@pytest.mark.integration
def test_transformers_own_format_scores_as_the_run(
    family: str, tmp_path: Path, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
) -> None:
    run: RunFolder = request.getfixturevalue(family)
    output = tmp_path / "exported"
    capsys.readouterr()
    assert main(["export", run.url, "--to", "hf", "--output", str(output), "--tolerance", "0"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split() == ["FORMAT", "WER", "CER", "DIFFERENCE", "SIZE", "REAL-TIME", "FACTOR", "FOLDER"]
    name, *rates, _ = lines[1].removeprefix("the ").split()
    assert name == "run" and lines[2].split()[:4] == ["hf", *rates, "+0.00"]
    # A Whisper that was trained at a shorter context than the clips are padded to here has a score of that, too.
    assert (rates == ["0.00%", "0.00%"]) == (family == "ctc")
    assert lines[2].split()[-1] == str(output / "hf")
    assert files_below(output / "hf") >= {"config.json", "model.safetensors", "evaluation/test.jsonl"}
    opened = family_of_folder(output / "hf").open_exported(output / "hf")
    assert opened.codec.name == family
    assert main(["compare", run.url, str(output / "hf"), "--json"]) == 0, "its score is one that is compared"
    (paired,) = json.loads(capsys.readouterr().out)["paired"].values()
    assert (paired["difference"] == 0.0) == (family == "ctc")


def test_a_damaged_format_is_found_by_its_score_and_leaves_nothing(
    ctc: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    arguments = ["export", ctc.url, "--to", "damaging,hf", "--output", str(tmp_path / "exported"), "--json"]
    assert main(arguments) == ExportError.exit_code == 16
    printed = capsys.readouterr()
    damaged, kept = json.loads(printed.out)["outcomes"]
    assert damaged["difference"] > 50 and damaged["folder"] is None
    assert kept["difference"] == 0.0 and kept["problem"] is None
    assert [path.name for path in (tmp_path / "exported").iterdir()] == ["hf"]
    assert "1 format is not kept, of 2:\ndamaging: WER 100.00% is +100.00 percentage points" in printed.err
    assert main([*arguments, "--tolerance", "100", "--force"]) == 0, "that far from the run's it may be"


@pytest.mark.integration
def test_a_converter_that_fails_leaves_nothing_and_the_others_go_on(
    ctc: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    output = tmp_path / "exported"
    assert main(["export", ctc.url, "--to", "failing,hf", "--output", str(output)]) == 16
    printed = capsys.readouterr()
    assert printed.out.splitlines()[2].split() == ["failing", "-", "-", "-", "-", "-", "not", "kept"]
    assert "failing: RuntimeError: no operator for this layer" in printed.err
    assert [path.name for path in output.iterdir()] == ["hf"]
    assert main(["export", ctc.url, "--to", "failing", "--output", str(tmp_path / "none")]) == 16
    assert not (tmp_path / "none").exists()


def test_an_interrupted_export_leaves_what_was_kept_before(ctc: RunFolder, tmp_path: Path) -> None:
    with pytest.raises(KeyboardInterrupt):
        export_run(ctc, ExportRequest(["hf", "stopped"], str(tmp_path / "exported")))
    assert [path.name for path in (tmp_path / "exported").iterdir()] == ["hf"]


def test_a_format_that_is_there_is_replaced_only_when_asked(
    ctc: RunFolder, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "older.bin").touch()
    arguments = ["export", ctc.url, "--to", "hf", "--output", str(tmp_path)]
    assert main(arguments) == 2
    assert "already has hf: add --force" in capsys.readouterr().err
    assert main([*arguments[:3], "failing,hf", *arguments[4:], "--force"]) == 16
    assert "older.bin" not in files_below(tmp_path / "hf")
    assert [path.name for path in tmp_path.iterdir() if path.name != "home"] == ["hf"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--to": "tflite"}, "--to tflite: there is no such format: one of hf, ctranslate2, onnx, openvino"),
        ({"--to": ","}, "--to is empty"),
        (
            {"--to": "absent"},
            "--to absent needs the package no_such_module, which is not installed: pip install 'rayscribe[absent]'",
        ),
        ({"--tolerance": "-1"}, "--tolerance -1: give percentage points from 0 to 100"),
        ({"--output": "s3://bucket/exported"}, "name a folder of this machine"),
        ({"--output": __file__}, "is a file: name a folder"),
    ],
)
def test_what_cannot_be_done_is_said_before_anything(
    changes: Mapping[str, str],
    message: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setitem(_table(), "absent", KnownExport("nowhere:Absent", ("no_such_module",), "absent"))
    options = {"--to": "hf", "--output": str(tmp_path / "exported"), **changes}
    assert main(["export", "no-such-run", *(word for option in options.items() for word in option)]) == 2
    assert message in capsys.readouterr().err
    assert not (tmp_path / "exported").exists()


def test_a_run_that_cannot_be_compared_with_is_refused(ctc: RunFolder, tmp_path: Path) -> None:
    request = ExportRequest(["hf"], str(tmp_path / "exported"))
    unfinished, untested, moved = (RunFolder(open_storage(str(tmp_path / name))) for name in ("a", "b", "c"))
    begin(unfinished)
    with pytest.raises(ConfigError, match="has not finished, and has no model to export yet"):
        export_run(unfinished, request)
    finish(untested).write_request(config(), [])
    with pytest.raises(ConfigError, match="has no score on a test set, which an export is compared with"):
        export_run(untested, request)
    shutil.copytree(ctc.url, moved.url)
    with pytest.raises(ConfigError, match="is not among the prepared sets that are read from here: prepare it again"):
        export_run(moved, request)
    assert not (tmp_path / "exported").exists()


def source_of(folder: Path, **decoding: Any) -> Source:
    recognizer = family_of_folder(folder).open_exported(folder)
    return Source(folder, recognizer, Decoding(GenerationPart(max_length=8), **decoding))


def test_a_format_that_does_not_fit_a_model_is_refused_by_name(
    ctc: RunFolder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = write_ctc(tmp_path / "model")
    assert "only Whispers are converted, and this model is of the family ctc" in str(
        CTranslate2().refusal(source_of(model))
    )
    assert Onnx().refusal(source_of(model)) is None
    whisper = source_of(write_whisper(tmp_path / "whisper"))
    assert "CTC models are converted, and this model is of the family whisper" in str(Onnx().refusal(whisper))
    monkeypatch.setitem(_table(), "ctranslate2", replace(KNOWN_EXPORTS["ctranslate2"], packages=()))
    with pytest.raises(ConfigError, match=r"--to ctranslate2: only Whispers"):
        export_run(ctc, ExportRequest(["hf", "ctranslate2"], str(tmp_path / "exported")))
    assert not (tmp_path / "exported").exists()
