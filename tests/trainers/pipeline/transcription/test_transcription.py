"""Recordings and manifests transcribed without Ray: as in scoring, cut, written, gone on with, and what goes wrong."""

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest
import srt
import yaml

import rayscribe
from jobs.cli import main
from tests.trainers.pipeline.transcription.tiny_models import CTC, TEXTS, write_ctc, write_whisper
from tests.trainers.synthetic import RATE_HZ, config, speechlike, write_corpus, write_recording, write_rows
from trainers.config.storage_location import StorageOptions
from trainers.distributed.signals import STOP_SIGNAL
from trainers.errors import ConfigError, Interruption, QuarantinedError, ResumeError
from trainers.models.ctc.ctc_decode_part import CtcDecodePart
from trainers.models.sources.run_models import find_model
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.pipeline.transcription import transcriber, transcription
from trainers.pipeline.transcription.input_rows import open_rows
from trainers.pipeline.transcription.transcriber import Part, TranscribeTask
from trainers.pipeline.transcription.transcript import Transcript
from trainers.pipeline.transcription.transcript_files import GrowingFile, TranscriptionFolder
from trainers.pipeline.transcription.transcription import BlockTranscriber, transcribe_in_process
from trainers.pipeline.transcription.transcription_request import TranscriptionRequest, transcription_config

DURATIONS_S = [0.5, 0.7, 1.0]
# Of a model without a run, whose config would say it.
OF_WHISPER = {"model.language": "English", "model.max_context_s": 3, "decode.max_length": 8}


@pytest.fixture(scope="module")
def ctc(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_ctc(tmp_path_factory.mktemp("ctc") / "model")


@pytest.fixture(scope="module")
def whisper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_whisper(tmp_path_factory.mktemp("whisper") / "model", alignment_heads=[[0, 0], [0, 1]])


@pytest.fixture(scope="module")
def manifest(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_corpus(tmp_path_factory.mktemp("speech"), TEXTS, durations_s=DURATIONS_S, name="test")


@pytest.fixture(scope="module")
def talk(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four seconds of loud sound, of which a second and a half in the middle are silent."""
    samples = np.concatenate([speechlike(1.5, 1), np.zeros(round(1.5 * RATE_HZ), np.int16), speechlike(1.0, 2)])
    return write_recording(tmp_path_factory.mktemp("talk") / "talk.wav", samples)


def replace_weights(model: Path) -> None:
    """By others of the same shapes, and as long."""
    weights = model / "model.safetensors"
    content = bytearray(weights.read_bytes())
    content[-1] ^= 1
    weights.write_bytes(content)


def lines_of(folder: Path) -> list[dict[str, Any]]:
    """Of all shards."""
    parts = sorted((folder / "transcripts").glob("part-*.jsonl"))
    return [json.loads(line) for part in parts for line in part.read_text().splitlines()]


class TestAsInScoring:
    @pytest.mark.parametrize("family", ["ctc", "whisper"])
    def test_clips_have_the_hypotheses_that_an_evaluation_has(
        self, family: str, manifest: Path, tmp_path: Path, request: pytest.FixtureRequest
    ) -> None:
        model = str(request.getfixturevalue(family))
        overrides = OF_WHISPER if family == "whisper" else {}
        changes = {**overrides, "data.test": str(manifest), "run.storage_path": str(tmp_path)}
        changes |= {"model": CTC} if family == "ctc" else {}
        scored = evaluate(config(changes), LocalEngine(), model=model, split="test")
        expected = [json.loads(line) for line in Path(scored.folder, "evaluation/test.jsonl").read_text().splitlines()]
        assert any(row["hypothesis"] for row in expected)
        found = rayscribe.transcribe(model, manifest, overrides).transcripts
        assert [(each.id, each.text) for each in found] == [(row["id"], row["hypothesis"]) for row in expected]
        means = [segment.avg_logprob for each in found for segment in each.segments]
        assert means == pytest.approx([row["avg_logprob"] for row in expected], abs=1e-5)

    def test_a_runs_recipe_says_how_its_model_decodes(self, tmp_path: Path) -> None:
        run = config({"model": CTC, "decode.method": "beam", "decode.beam_size_token": 9, "scoring": {}})
        (tmp_path / "config.yaml").write_text(yaml.safe_dump(run.model_dump(mode="json")))
        found = transcription_config(
            TranscriptionRequest(str(tmp_path), ["a.wav"], ["decode.beam_size=7", "run.s3_region=eu-west-1"])
        )
        assert found.decode == CtcDecodePart(method="beam", beam_size=7, beam_size_token=9)
        assert (found.model.family, found.run.s3_region, found.run.name) == ("ctc", "eu-west-1", None)
        assert (found.data.train, found.data.validation) == (None, None)


class TestLongRecordings:
    def test_they_are_cut_at_pauses_and_words_have_times_in_their_segments(self, ctc: Path, talk: Path) -> None:
        found = rayscribe.transcribe(str(ctc), talk, max_segment_s=2)
        (transcript,) = found.transcripts
        assert transcript.duration_s == 4.0
        spans = [(segment.start_s, segment.end_s) for segment in transcript.segments]
        assert len(spans) >= 2 and all(end - start <= 2 for start, end in spans)
        silent = [(end, start) for (_, end), (start, _) in pairwise(spans) if start > end]
        assert any(end > 1.5 and start < 3.0 for end, start in silent), "the silence is in a segment"
        for segment in transcript.segments:
            words = segment.words
            assert words is not None
            assert [word.text for word in words] == segment.text.split()
            times = [segment.start_s, *(at for word in words for at in (word.start_s, word.end_s)), segment.end_s]
            assert times == sorted(times)
        assert any(segment.words for segment in transcript.segments)

    def test_a_whisper_that_names_alignment_heads_gives_times_of_words(
        self, whisper: Path, talk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        with_heads = rayscribe.transcribe(str(whisper), talk, OF_WHISPER, max_segment_s=2)
        (transcript,) = with_heads.transcripts
        for segment in transcript.segments:
            assert segment.words is not None
            assert "".join(word.text for word in segment.words) == "".join(segment.text.split())
            times = [word.start_s for word in segment.words]
            assert times == sorted(times) and all(segment.start_s <= at <= segment.end_s for at in times)
        assert "know them" not in capsys.readouterr().out
        plain = write_whisper(tmp_path / "plain")
        without = rayscribe.transcribe(str(plain), talk, OF_WHISPER, format="jsonl", max_segment_s=2)
        assert [segment.words for segment in without.transcripts[0].segments] == [None] * len(transcript.segments)
        assert without.transcripts[0].text == transcript.text
        assert "only segments have timestamps: this model has no word timestamps" in capsys.readouterr().out

    def test_no_segment_is_longer_than_the_model_takes(self, whisper: Path, talk: Path) -> None:
        found = rayscribe.transcribe(str(whisper), talk, OF_WHISPER, max_segment_s=30, words=False).transcripts[0]
        assert found.segments and all(each.end_s - each.start_s <= 3 for each in found.segments)


class TestTheCommand:
    def test_it_prints_a_recording_and_writes_subtitles(
        self, ctc: Path, talk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        assert main(["transcribe", str(ctc), str(talk), "--max-segment-s", "2"]) == 0
        printed = capsys.readouterr()
        assert printed.out.strip() and "audio per second" in printed.err
        out = tmp_path / "talk.srt"
        assert main(["transcribe", str(ctc), str(talk), "--max-segment-s", "2", "--out", str(out)]) == 0
        cues = list(srt.parse(out.read_text(), ignore_errors=False))
        assert " ".join(cue.content for cue in cues).split() == printed.out.split()
        assert capsys.readouterr().out == ""

    def test_what_cannot_be_read_is_named_and_the_rest_is_transcribed(
        self, ctc: Path, talk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        damaged = tmp_path / "damaged.wav"
        damaged.write_bytes(b"RIFF....WAVE")
        arguments = ["transcribe", str(ctc), str(damaged), str(talk), "gone.wav", "--format", "jsonl"]
        assert main(arguments) == QuarantinedError.exit_code == 15
        printed = capsys.readouterr()
        rows = [json.loads(line) for line in printed.out.splitlines()]
        assert [(row["id"], "error" in row) for row in rows] == [
            (str(damaged), True),
            (str(talk), False),
            ("gone.wav", True),
        ]
        assert "2 of 3 recordings could not be transcribed" in printed.err
        assert "gone.wav: no such file" in printed.err

    @pytest.mark.parametrize(
        ("arguments", "words"),
        [
            (["{talk}", "--format", "doc"], "--format doc: one of txt, srt, vtt, jsonl"),
            (["{talk}", "--out", "a.srt", "--format", "vtt"], "--out a.srt is a .srt file, and --format is vtt"),
            (
                ["{talk}", "--address", "head:1"],
                "--address and --num-workers are for Ray, whose nodes write to a folder",
            ),
            (["{talk}", "--json"], "--json reports on writing to a folder"),
            (["{talk}", "--pause-s", "0"], "--pause-s 0: give seconds above 0"),
            (["{talk}", "--out", "nowhere/a.srt"], "--out nowhere/a.srt: there is no such folder"),
            (["{talk}", "gone.wav", "--out", "a.srt"], "--out a.srt is one file, and there are 2 recordings"),
            (["{talk}", "--set", "decode.methd=beam"], "decode.methd: unknown key"),
            (["gone.csv"], "gone.csv: no such manifest"),
            (
                ["{talk}", "--out", "a.tsv"],
                "--out a.tsv: transcripts are written as txt, srt, vtt, jsonl, and not as tsv",
            ),
            (["{talk}", "--out", "s3://bucket/a.docx"], "and not as docx: name a file that ends in one of them"),
            (["gone.wav"], "gone.wav: no such file: name recordings that exist"),
            (["gone.tar/a.wav"], "gone.tar/a.wav: no such file: name recordings that exist"),
            (["gone.csv", "{talk}"], "give one manifest, or recordings"),
            (["{empty}"], "a folder without recordings"),
        ],
    )
    @pytest.mark.integration
    def test_what_cannot_be_is_refused_with_the_argument(
        self,
        arguments: list[str],
        words: str,
        ctc: Path,
        talk: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        monkeypatch.chdir(tmp_path)
        (tmp_path / "empty").mkdir()
        given = [text.format(talk=talk, empty=tmp_path / "empty") for text in arguments]
        assert main(["transcribe", str(ctc), *given]) in (2, 3)
        assert words in " ".join(capsys.readouterr().err.split())
        assert [path.name for path in tmp_path.iterdir()] == ["empty"]

    def test_a_model_that_is_not_there_is_named(self, talk: Path, capsys: pytest.CaptureFixture[str]) -> None:
        assert main(["transcribe", "./gone", str(talk)]) == 2
        shown = capsys.readouterr().err
        assert "MODEL ./gone: no such folder" in shown
        assert "loading torch" not in shown


class TestGrowingFiles:
    @pytest.fixture(autouse=True)
    def one_segment_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transcriber, "GROWS_BY_S", 0.01)

    def stopped(self, monkeypatch: pytest.MonkeyPatch, arguments: list[str], after: int) -> None:
        """Runs the command, which is stopped after so many parts."""
        add, left = GrowingFile.add, iter(range(after))

        def then_stops(file: GrowingFile, parts: Sequence[Part]) -> None:
            add(file, parts)
            if next(left, None) is None:
                STOP_SIGNAL.end()

        with monkeypatch.context() as patch:
            patch.setattr(GrowingFile, "add", then_stops)
            assert main(arguments) == 130

    @pytest.mark.parametrize("ending", ["srt", "vtt", "txt", "jsonl"])
    def test_a_recording_that_was_stopped_within_goes_on_with_its_next_segment(
        self,
        ending: str,
        ctc: Path,
        talk: Path,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        capsys: pytest.CaptureFixture[str],
    ) -> None:
        expected, out = tmp_path / f"expected.{ending}", tmp_path / f"talk.{ending}"
        arguments = ["transcribe", str(ctc), str(talk), "--max-segment-s", "1", "--out"]
        assert main([*arguments, str(expected)]) == 0
        self.stopped(monkeypatch, [*arguments, str(out)], after=1)
        assert "the same command continues from what is there" in capsys.readouterr().err
        begun = out.read_text()
        if ending in ("srt", "txt"):
            assert begun and expected.read_text().startswith(begun) and len(begun) < len(expected.read_text())
        # As a killed process leaves it.
        with (tmp_path / f".talk.{ending}.progress").open("ab") as progress:
            progress.write(b'{"transcript": {"id": "')
        assert main([*arguments, str(out)]) == 0
        assert "2 segments of" in capsys.readouterr().err
        assert out.read_bytes() == expected.read_bytes()
        assert {path.name for path in tmp_path.iterdir()} == {expected.name, out.name}

    def test_lines_of_recordings_are_there_when_they_are_recognized_and_are_written_once(
        self, ctc: Path, manifest: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        expected, out = tmp_path / "expected.jsonl", tmp_path / "all.jsonl"
        arguments = ["transcribe", str(ctc), str(manifest), "--out"]
        assert main([*arguments, str(expected)]) == 0
        self.stopped(monkeypatch, [*arguments, str(out)], after=1)
        lines = expected.read_text().splitlines(keepends=True)
        assert len(lines) == len(DURATIONS_S) and out.read_text() == "".join(lines[:2])
        assert main([*arguments, str(out)]) == 0
        assert out.read_text() == "".join(lines)

    @pytest.mark.parametrize("ending", ["srt", "txt", "jsonl"])
    def test_a_file_that_is_there_is_not_replaced(
        self, ending: str, ctc: Path, talk: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / f"talk.{ending}"
        out.write_text("what was said\n")
        assert main(["transcribe", str(ctc), str(talk), "--out", str(out)]) == 2
        shown = " ".join(capsys.readouterr().err.split())
        assert f"talk.{ending}: already exists: use another file, or delete it" in shown
        assert "loading torch" not in shown
        assert [out.read_text(), *tmp_path.iterdir()] == ["what was said\n", out]

    def test_what_is_begun_with_one_model_is_not_gone_on_with_by_another(
        self, ctc: Path, talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        model, out = shutil.copytree(ctc, tmp_path / "model"), tmp_path / "talk.srt"
        arguments = ["transcribe", str(model), str(talk), "--max-segment-s", "1", "--out", str(out)]
        self.stopped(monkeypatch, arguments, after=1)
        begun = out.read_text()
        replace_weights(model)
        assert main(arguments) == ResumeError.exit_code
        shown = " ".join(capsys.readouterr().err.split())
        assert (
            "talk.srt: holds transcripts of another request (model_content differ): use another file, or delete"
            in shown
        )
        assert out.read_text() == begun

    def test_what_is_begun_of_a_recording_is_not_gone_on_with_by_another_version_of_it(
        self, ctc: Path, talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        recording, out = Path(shutil.copy2(talk, tmp_path / "talk.wav")), tmp_path / "talk.srt"
        arguments = ["transcribe", str(ctc), str(recording), "--max-segment-s", "1", "--out", str(out)]
        self.stopped(monkeypatch, arguments, after=1)
        begun, times = out.read_text(), recording.stat()
        write_recording(recording, speechlike(4.0, 3))
        assert recording.stat().st_size == times.st_size
        os.utime(recording, ns=(times.st_atime_ns, times.st_mtime_ns))
        assert main(arguments) == ResumeError.exit_code
        assert "talk.srt: holds transcripts of another request (recordings differ): use another file, or" in " ".join(
            capsys.readouterr().err.split()
        )
        assert out.read_text() == begun

    @pytest.mark.parametrize("line", [0, 1])
    @pytest.mark.parametrize("damage", [b"{", b"[]", b"{}", b"3", b"\xff", b'{"transcript": {"segments": 3}}', b"\0\0"])
    def test_progress_that_is_damaged_is_named(self, damage: bytes, line: int, talk: Path, tmp_path: Path) -> None:
        file, part = GrowingFile(tmp_path / "talk.srt", "srt"), Part(Transcript("talk", str(talk), 1.0))
        file.open({"model": "m"})
        file.add([part])
        progress = tmp_path / ".talk.srt.progress"
        lines = progress.read_bytes().splitlines(keepends=True)
        lines[line] = damage + b"\n"
        progress.write_bytes(b"".join(lines))
        with pytest.raises(ResumeError, match=r"delete .*\.talk\.srt\.progress|\.progress is damaged .*: delete it"):
            GrowingFile(tmp_path / "talk.srt", "srt").open({"model": "m"})

    def test_progress_is_never_cut_short_where_it_is_gone_on_with(
        self, talk: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        part = Part(Transcript("talk", str(talk), 1.0))
        file = GrowingFile(tmp_path / "talk.srt", "srt")
        file.open({"model": "m"})
        file.add([part])
        progress = tmp_path / ".talk.srt.progress"
        begun = progress.read_bytes()
        again = GrowingFile(tmp_path / "talk.srt", "srt")
        again.open({"model": "m"})
        monkeypatch.setattr(Path, "replace", lambda *_: STOP_SIGNAL.end())
        with pytest.raises(Interruption):
            again.add([part])
        assert progress.read_bytes() == begun

    def test_what_would_be_printed_is_lost_and_the_message_says_so(
        self, ctc: Path, talk: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(transcriber.Transcriber, "transcribe", lambda *_: STOP_SIGNAL.end())
        assert main(["transcribe", str(ctc), str(talk)]) == 130
        assert "no transcript is kept" in capsys.readouterr().err


class TestFolders:
    ROWS = 7

    @pytest.fixture
    def rows(self, tmp_path: Path) -> Path:
        """Recordings with no transcripts, of which one is gone."""
        names = []
        for number in range(self.ROWS):
            path = write_recording(tmp_path / "speech" / f"{number}.wav", speechlike(0.4, seed=number))
            names.append((str(path), ""))
        Path(names[4][0]).unlink()
        return write_rows(tmp_path / "rows.csv", names)

    @pytest.fixture(autouse=True)
    def small_shards(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(transcription, "ROWS_PER_SHARD", 2)

    def test_one_that_was_cut_short_goes_on_and_has_each_row_once(
        self, ctc: Path, rows: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
    ) -> None:
        out = tmp_path / "out"
        request = TranscriptionRequest(str(ctc), [str(rows)], out=str(out), format="srt", ray=False)

        def dies(blocks: Sequence[pa.Table], task: TranscribeTask, folder: TranscriptionFolder) -> Iterator[pa.Table]:
            found = transcribe_in_process(blocks, task, folder)
            yield next(found)
            yield next(found)
            raise RuntimeError("killed")

        config, options = transcription_config(request), StorageOptions()
        model, inputs = find_model(request.model, options), open_rows(request.inputs, config.data, options)
        with pytest.raises(RuntimeError, match="killed"):
            transcription.transcribe(request, config, model, inputs, dies)
        assert not (out / "result.json").exists()
        begun = {path: path.stat().st_mtime_ns for path in (out / "transcripts").iterdir()}
        assert len(begun) == 2
        assert main(["transcribe", str(ctc), str(rows), "--out", str(out), "--format", "srt", "--no-ray"]) == 15
        assert "4 of 7 recordings are there from an earlier start" in capsys.readouterr().err
        assert {path: path.stat().st_mtime_ns for path in begun} == begun
        lines = lines_of(out)
        assert [Path(line["id"]).name for line in lines] == [f"{number}.wav" for number in range(self.ROWS)]
        assert [number for number, line in enumerate(lines) if "error" in line] == [4]
        (bad,) = [json.loads(line) for line in (out / "quarantine.jsonl").read_text().splitlines()]
        assert bad == lines[4]
        totals = json.loads((out / "result.json").read_text())
        assert (totals["recordings"], totals["quarantined"]) == (self.ROWS, 1)
        assert totals["audio_s"] == pytest.approx(0.4 * (self.ROWS - 1))
        written = sorted(path.name for path in out.rglob("*.srt"))
        assert written == [f"{number}.srt" for number in range(self.ROWS) if number != 4]

    def test_a_folder_of_another_request_is_left_as_it_is(self, ctc: Path, rows: Path, tmp_path: Path) -> None:
        out = tmp_path / "out"
        first = rayscribe.transcribe(str(ctc), rows, out=out)
        assert (first.recordings, len(first.quarantined)) == (self.ROWS, 1)
        again = rayscribe.transcribe(str(ctc), rows, out=out)
        assert (again.recordings, again.audio_s, again.quarantined) == (self.ROWS, 0.0, first.quarantined)
        before = lines_of(out)
        with pytest.raises(ResumeError, match=r"holds transcripts of another request \(pause_s differ"):
            rayscribe.transcribe(str(ctc), rows, out=out, pause_s=0.7)
        assert lines_of(out) == before

    @pytest.mark.parametrize(
        ("name", "form"),
        [("talk.txt", "txt"), ("talk.srt", "srt"), ("transcripts/part-00000.jsonl", "jsonl"), ("result.json", "jsonl")],
    )
    def test_no_file_that_is_there_is_replaced_or_taken_for_a_transcript(
        self, name: str, form: str, ctc: Path, talk: Path, tmp_path: Path
    ) -> None:
        recording = Path(shutil.copy2(talk, tmp_path / "talk.wav"))
        (tmp_path / "rows.csv").write_text("id,path,text\ntalk,talk.wav,\n")
        there = tmp_path / name
        there.parent.mkdir(exist_ok=True)
        there.write_text("what was said\n")
        with pytest.raises(ConfigError, match=f"{name} already exists, and is not from this command"):
            rayscribe.transcribe(str(ctc), tmp_path / "rows.csv", out=tmp_path, format=form)
        assert there.read_text() == "what was said\n"
        assert {path for path in tmp_path.rglob("*") if path.is_file()} == {recording, there, tmp_path / "rows.csv"}

    def test_one_of_another_model_under_the_same_name_is_left_as_it_is(
        self, ctc: Path, rows: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        model, out = shutil.copytree(ctc, tmp_path / "model"), tmp_path / "out"
        rayscribe.transcribe(str(model), rows, out=out)
        before = lines_of(out)
        (out / "transcripts" / "part-00002.jsonl").unlink()
        replace_weights(model)
        with pytest.raises(ResumeError, match=r"another request \(model_content differ"):
            rayscribe.transcribe(str(model), rows, out=out)
        assert lines_of(out) == before[:4] + before[6:]
        # And of one that is replaced after the request began, no process opens the new one.
        opens = transcription.BlockTranscriber.__init__

        def late(transcriber: BlockTranscriber, task: TranscribeTask, folder: TranscriptionFolder) -> None:
            replace_weights(model)
            opens(transcriber, task, folder)

        monkeypatch.setattr(transcription.BlockTranscriber, "__init__", late)
        with pytest.raises(ResumeError, match="has been replaced since this request began"):
            rayscribe.transcribe(str(model), rows, out=tmp_path / "other")

    def test_one_with_another_precision_or_another_word_list_is_left_as_it_is(
        self, ctc: Path, rows: Path, tmp_path: Path
    ) -> None:
        out, words = tmp_path / "out", tmp_path / "words.txt"
        words.write_text("one\ntwo\n")
        beam = {"decode.method": "beam", "decode.lexicon": str(words), "decode.word_score": 0.0}
        rayscribe.transcribe(str(ctc), rows, beam, out=out)
        words.write_text("one\nsix\n")
        with pytest.raises(ResumeError, match=r"\(lexicon_content differ"):
            rayscribe.transcribe(str(ctc), rows, beam, out=out)
        with pytest.raises(ResumeError, match=r"\(lexicon_content, training.bf16 differ"):
            rayscribe.transcribe(str(ctc), rows, {**beam, "training.bf16": True}, out=out)

    def test_each_line_has_what_the_transcript_has(self, ctc: Path, talk: Path, tmp_path: Path) -> None:
        (one,) = rayscribe.transcribe(str(ctc), talk, max_segment_s=2).transcripts
        rayscribe.transcribe(str(ctc), talk.parent, out=tmp_path, max_segment_s=2)
        (line,) = lines_of(tmp_path)
        assert line == json.loads(json.dumps(one.to_json_dict())) | {"id": str(talk)}
        assert set(line) == {"id", "audio", "text", "duration_s", "segments"}
        assert set(line["segments"][0]) == {"text", "start_s", "end_s", "avg_logprob", "words"}
