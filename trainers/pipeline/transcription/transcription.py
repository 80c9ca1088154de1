"""Transcribes the recordings of a request, either in this process and memory, or shard by shard into a folder."""

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field

import pyarrow as pa
import pyarrow.compute as pc

from trainers.config.locations import cache_url_of
from trainers.config.parts.decode_part import Setting
from trainers.config.schema import TrainConfig
from trainers.config.secrets import resolve_secrets
from trainers.config.storage_location import in_home, is_absolute
from trainers.config.wording import counted, format_duration
from trainers.data.preparation import blocks_of
from trainers.data.sources.archives.source_files import LocatedRows
from trainers.data.sources.recording_readers import Row
from trainers.distributed.console import ProgressCounter, show
from trainers.distributed.console.events import Stage
from trainers.distributed.session import LocalSession
from trainers.errors import ConfigError
from trainers.models.families import check_decoder
from trainers.models.sources.content_hash import contents_of
from trainers.pipeline.experiment import resolve_fields
from trainers.pipeline.transcription.input_rows import NAME
from trainers.pipeline.transcription.transcriber import Transcriber, TranscribeTask, open_transcriber
from trainers.pipeline.transcription.transcript import FORMATS, Transcript
from trainers.pipeline.transcription.transcript_files import (
    OUTCOMES,
    ROWS_PER_SHARD,
    GrowingFile,
    TranscriptionFolder,
    identity_of,
)
from trainers.pipeline.transcription.transcription_request import TranscriptionRequest
from trainers.run_folder import layout
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage
from trainers.training.arguments import silence_libraries

TRANSCRIBE = "transcribe"


@dataclass(frozen=True)
class TranscriptionResult:
    """The result of a request.

    Attributes:
        quarantined: Recordings without a transcript, by id, with the reasons.
        audio_s: Length of the audio transcribed now, without earlier results. Seconds.
        took_s: Duration of transcribing in seconds; for a folder, includes loading the model.
        folder: Folder of the transcripts; None if they are in `transcripts`.
        transcripts: The transcript of each recording, in order; empty if they are in a folder.
    """

    recordings: int
    quarantined: dict[str, str]
    audio_s: float
    took_s: float
    folder: str | None = None
    transcripts: list[Transcript] = field(default_factory=list)
    format: str = "jsonl"

    @property
    def headline(self) -> str:
        """`3 recordings · 1 quarantined · 1 h 02 min of audio in 35 s, 106.3 s of audio per second · <folder>`."""
        bad = [f"{len(self.quarantined)} quarantined"] if self.quarantined else []
        speed = f"{self.audio_s / max(self.took_s, 1e-9):.1f} s of audio per second"
        amount = f"{format_duration(self.audio_s)} of audio in {format_duration(self.took_s)}, {speed}"
        where = [self.folder] if self.folder is not None else []
        return " · ".join([counted(self.recordings, "recording"), *bad, amount, *where])

    @property
    def text(self) -> str:
        """The transcripts in their format; if several are plain text, each line begins with the id."""
        good = [transcript for transcript in self.transcripts if transcript.problem is None or self.format == "jsonl"]
        if self.format == "txt" and len(self.transcripts) > 1:
            return "".join(f"{transcript.id}: {transcript.text}\n" for transcript in good)
        return "".join(map(FORMATS[self.format], good))


Runner = Callable[[Sequence[pa.Table], TranscribeTask, TranscriptionFolder], Iterator[pa.Table]]


class BlockTranscriber:
    """Transcribes blocks, each into one shard of a folder, with a model that is opened once; returns OUTCOMES."""

    def __init__(self, task: TranscribeTask, folder: TranscriptionFolder):
        resolve_secrets(os.environ)
        silence_libraries()
        self._folder = folder
        self._transcriber = open_transcriber(task, LocalSession.of_this_process())

    def __call__(self, block: pa.Table) -> pa.Table:
        rows: list[Row] = block.to_pylist()
        shard = int(rows[0]["shard"])
        # A block may be repeated after another process was considered lost.
        if not self._folder.is_finished(shard):
            self._folder.write(shard, rows, self._transcriber.transcribe(rows))
        return self._folder.outcomes(shard)


def transcribe_in_process(
    blocks: Sequence[pa.Table], task: TranscribeTask, folder: TranscriptionFolder
) -> Iterator[pa.Table]:
    """Transcribes blocks one after another."""
    return map(BlockTranscriber(task, folder), blocks)


def transcribe(
    request: TranscriptionRequest, config: TrainConfig, model: str, rows: LocatedRows, run: Runner
) -> TranscriptionResult:
    """Transcribes the rows of a request with a model from `find_model`; `run` transcribes blocks into a folder."""
    config = resolve_fields(config, cache_url_of(config), None)
    check_decoder(config.decode, config.run.storage_options)
    contents = contents_of(config, model) if request.out is not None else None
    if contents is not None and not is_absolute(model):
        # Makes all processes open the commit that a Hub id has now.
        pinned = config.model.model_copy(update={"revision": contents["model_content"]})
        config = config.model_copy(update={"model": pinned})
    task = TranscribeTask(config, model, _setting(config, model), request, rows.reader, contents)
    return _in_memory(task, rows) if request.folder is None else _into_folder(task, request.folder, rows, run)


def _in_memory(task: TranscribeTask, rows: LocatedRows) -> TranscriptionResult:
    silence_libraries()
    request, file = task.request, None
    if request.out is not None:
        file = GrowingFile(in_home(request.out).absolute(), request.chosen_format)
        file.open(identity_of(task, rows))
    show(Stage("model", "loading"))
    transcriber = open_transcriber(task, LocalSession.of_this_process(), show)
    show(Stage(TRANSCRIBE, f"recognizing {counted(len(rows.table), 'recording')}"))
    if request.chosen_format != "txt":
        _tell_words(task, gives=transcriber.gives_word_times)
    began_s = time.monotonic()
    (block,) = blocks_of(rows.table, len(rows.table))
    if file is None:
        found = {transcript.id: transcript for transcript in transcriber.transcribe(block.to_pylist())}
        known_s = 0.0
    else:
        known_s = _grow(file, transcriber, block.to_pylist())
        found = file.transcripts
    took_s = time.monotonic() - began_s
    transcripts = [found[name] for name in rows.table["id"].to_pylist()]
    quarantined = {each.id: each.problem for each in transcripts if each.problem is not None}
    audio_s = sum(each.duration_s for each in transcripts) - known_s
    result = TranscriptionResult(
        len(transcripts), quarantined, audio_s, took_s, transcripts=transcripts, format=request.chosen_format
    )
    if file is not None:
        file.finish(result.text)
    return result


def _grow(file: GrowingFile, transcriber: Transcriber, rows: Sequence[Row]) -> float:
    """Transcribes what the file does not have yet; returns the seconds of audio that it had."""
    known = [segment for part in file.parts.values() for segment in part.transcript.segments]
    known_s = sum(segment.end_s - segment.start_s for segment in known)
    if known:
        there = f"{counted(len(known), 'segment')} of {format_duration(known_s)}"
        show(f"{TRANSCRIBE}: {there} are there from an earlier start")
    for parts in transcriber.growing_parts(rows, file.parts):
        file.add(parts)
    return known_s


def _into_folder(task: TranscribeTask, url: str, rows: LocatedRows, run: Runner) -> TranscriptionResult:
    folder = TranscriptionFolder(url, task.config.run.storage_options, task.request.chosen_format)
    folder.begin(identity_of(task, rows), rows.table[NAME.name].to_pylist())
    blocks = blocks_of(rows.table, ROWS_PER_SHARD)
    finished = folder.finished()
    waiting = [block for number, block in enumerate(blocks) if number not in finished]
    before = [folder.outcomes(number) for number in range(len(blocks)) if number in finished]
    known = sum(map(len, before))
    if known:
        show(f"{TRANSCRIBE}: {known:,} of {len(rows.table):,} recordings are there from an earlier start")
    show(Stage(TRANSCRIBE, f"recognizing {counted(len(rows.table) - known, 'recording')}"))
    began_s = time.monotonic()
    counter = ProgressCounter(TRANSCRIBE, total=len(rows.table) - known, unit="recordings", show=show)
    found: list[pa.Table] = []
    bad, audio_s = 0, 0.0
    for outcomes in run(waiting, task, folder) if waiting else ():
        found.append(outcomes)
        bad += len(outcomes) - outcomes["error"].null_count
        audio_s += pc.sum(outcomes["duration_s"]).as_py() or 0.0
        speed = f"{audio_s / (time.monotonic() - began_s):.1f} s of audio per second"
        counter.advance(len(outcomes), note=f"{speed} · {bad} quarantined" if bad else speed)
    took_s = time.monotonic() - began_s
    every = pa.concat_tables([OUTCOMES.empty_table(), *before, *found])
    failed = every.filter(every["error"].is_valid()).sort_by("id")
    result = TranscriptionResult(
        len(every),
        dict(zip(failed["id"].to_pylist(), failed["error"].to_pylist(), strict=True)),
        audio_s,
        took_s,
        folder.url,
        format=folder.format,
    )
    total_s = pc.sum(every["duration_s"]).as_py() or 0.0
    totals = {"recordings": len(every), "quarantined": len(failed), "audio_s": round(total_s, 3)}
    # A model gives word timestamps for all recordings or for none.
    _tell_words(task, gives=pc.any(every["has_words"]).as_py() is not False)
    folder.finish({**totals, "model": task.model}, failed.select(["id", "audio", "error"]).to_pylist())
    return result


def _tell_words(task: TranscribeTask, *, gives: bool) -> None:
    if task.request.words and not gives:
        show(
            f"{TRANSCRIBE}: only segments have timestamps: this model has no word timestamps (for Whisper, "
            "generation_config.json must have alignment_heads)"
        )


def _setting(config: TrainConfig, model: str) -> Setting | None:
    """Returns the setting of the search; if there are several, the run's choice. None without a search."""
    part = config.decode
    if not part.is_tuned:
        return next(iter(part.settings), None)
    home, _, name = model.rpartition("/")
    chosen = None
    if home.startswith("/") or "://" in home:
        folder = RunFolder(open_storage(home, config.run.storage_options))
        chosen = folder.read_json(f"{layout.EVALUATION}/{layout.DECODING}") if name == layout.MODEL else None
    for setting in part.settings:
        if chosen is not None and setting.to_json_dict().items() <= chosen["chosen"].items():
            return setting
    fields = ", ".join(f"decode.{name}" for name in part.tuned)
    raise ConfigError(
        "decode: there are several settings, and this model's run has chosen none of them on a validation set: give "
        f"one value each for {fields} (--set)"
    )
