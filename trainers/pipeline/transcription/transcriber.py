"""Recognizes recordings of any length with a model: cut, in batches as scoring has them, and put together again."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np
import torch

from trainers.config.parts.decode_part import Weights
from trainers.config.schema import TrainConfig
from trainers.data.audio import RECORDING_VALUES, SAMPLING_RATE_HZ, to_int16
from trainers.data.preparation import decoded
from trainers.data.sources.recording_readers import RecordingReader, Row
from trainers.distributed.console import Event, ProgressCounter
from trainers.distributed.session import Session
from trainers.errors import AudioError
from trainers.models.labels import empty_labels
from trainers.models.recognizer import Beam, Recognition, Recognizer, Word
from trainers.pipeline.transcription.transcript import Segment, Transcript
from trainers.pipeline.transcription.voice_activity import cut_recording
from trainers.pipeline.transcription.word_edges import reach_to_pauses
from trainers.scoring.batches import BatchRecognizer, batches_of
from trainers.scoring.scorer import ScoringOptions
from trainers.training.planning import context_of, scoring_options
from trainers.training.scoring_worker import open_model

Show = Callable[[Event], None]
# Recordings are recognized together up to this much of them. Seconds.
AT_ONCE_S = 1800.0
# The longest segment where the model takes longer ones, which cost more than their length.
USUAL_SEGMENT_S = 30.0


@dataclass(frozen=True)
class Cutting:
    """How recordings are cut that are longer than a segment may be; others are recognized in one piece, as in scoring.

    Attributes:
        max_segment_s: The longest segment. None: what the model takes, at most USUAL_SEGMENT_S.
        pause_s: A pause of at least this length separates two segments.
    """

    max_segment_s: float | None = None
    pause_s: float = 0.5


@dataclass(frozen=True)
class TranscribeTask:
    """Everything that a process needs to transcribe, besides its rows; travels to the nodes.

    Attributes:
        config: Model, decoding and precision, resolved.
        model: Folder or URL with the model, or a Hub id.
        weights: Of the beam search that the config asks for.
        words: Whether times of words are wanted.
        reader: Reads the recordings of rows.
    """

    config: TrainConfig
    model: str
    weights: Weights
    cutting: Cutting
    words: bool
    reader: RecordingReader


@dataclass(frozen=True)
class _Clip:
    """A segment that is not recognized yet: of which recording, its samples (T,), and where they are in it."""

    recording: int
    samples: np.ndarray
    start_s: float

    @property
    def duration_s(self) -> float:
        return len(self.samples) / SAMPLING_RATE_HZ


class Transcriber:
    """A model, on its device, that transcribes rows.

    Attributes:
        gives_word_times: Whether segments have the times of their words.
    """

    def __init__(self, task: TranscribeTask, recognizer: Recognizer, options: ScoringOptions, show: Show | None = None):
        """Takes a model in its place; `show` is told how many segments are done."""
        self._task, self._recognizer, self._options, self._show = task, recognizer, options, show
        self.gives_word_times = options.decoding.word_times
        self._batches = BatchRecognizer(recognizer)
        context_s = context_of(task.config, recognizer.limits.context_s)
        self._longest_s = min(task.cutting.max_segment_s or USUAL_SEGMENT_S, context_s)

    def transcribe(self, rows: Sequence[Row]) -> Iterator[Transcript]:
        """Gives what comes of each row; rows of one recording one after another."""
        together: list[tuple[Row, np.ndarray]] = []
        size = 0
        for row, samples in decoded(rows, self._task.reader, SAMPLING_RATE_HZ, most_values=RECORDING_VALUES):
            if isinstance(samples, AudioError):
                yield Transcript(row["id"], row["audio"], problem=str(samples))
                continue
            together.append((row, to_int16(samples)))
            size += len(samples)
            if size >= AT_ONCE_S * SAMPLING_RATE_HZ:
                yield from self._transcribe(together)
                together, size = [], 0
        yield from self._transcribe(together)

    def _transcribe(self, recordings: Sequence[tuple[Row, np.ndarray]]) -> Iterator[Transcript]:
        clips = [
            _Clip(number, samples[start:end], start / SAMPLING_RATE_HZ)
            for number, (_, samples) in enumerate(recordings)
            for start, end in cut_recording(samples, self._longest_s, self._task.cutting.pause_s)
        ]
        labels = self._labels([row for row, _ in recordings])
        found = self._recognize(clips, [labels[clip.recording] for clip in clips])
        segments: list[list[Segment]] = [[] for _ in recordings]
        for clip, recognition in zip(clips, found, strict=True):
            segments[clip.recording].append(_segment(clip, recognition))
        for (row, samples), own in zip(recordings, segments, strict=True):
            duration_s = len(samples) / SAMPLING_RATE_HZ
            yield Transcript(row["id"], row["audio"], duration_s, row["language"], tuple(own))

    def _labels(self, rows: Sequence[Row]) -> list[list[int]]:
        """Of each recording the labels of an empty text in its language."""
        recognizer, language = self._recognizer, self._task.config.model.language
        return empty_labels(recognizer.codec, recognizer.processor, [row["language"] for row in rows], language)

    def _recognize(self, clips: Sequence[_Clip], labels: Sequence[list[int]]) -> list[Recognition]:
        """In the order of the clips; one that is too short for the model has the empty hypothesis."""
        words = () if self.gives_word_times else None
        found = [Recognition("", 0.0, 0.0, words=words)] * len(clips)
        least = self._recognizer.limits.least_samples
        rows = np.array([place for place, clip in enumerate(clips) if len(clip.samples) >= least], np.int64)
        if not len(rows):
            return found
        durations_s, options = np.array([clip.duration_s for clip in clips]), self._options
        show = self._show or (lambda event: None)
        counter = ProgressCounter("transcribe", total=len(rows), unit="segments", show=show)
        for batch, edge_s in batches_of(
            durations_s, rows, options.edges_s, to_longest=options.to_longest, batch_size=options.batch_size
        ):
            own = [clips[place].samples for place in batch]
            recognized = self._batches.recognize(own, [labels[place] for place in batch], edge_s, options.decoding)
            for place, recognition in zip(batch, recognized, strict=True):
                found[place] = recognition
            counter.advance(len(batch))
        return found


def _segment(clip: _Clip, found: Recognition) -> Segment:
    end_s = clip.start_s + clip.duration_s
    words = None
    if found.words is not None:
        words = tuple(
            Word(text, min(clip.start_s + start, end_s), min(clip.start_s + end, end_s))
            for text, start, end in reach_to_pauses(found.words, clip.samples)
        )
    return Segment(clip.start_s, end_s, found.text, found.avg_logprob, words)


@contextmanager
def opened_transcriber(task: TranscribeTask, session: Session, show: Show | None = None) -> Iterator[Transcriber]:
    """The model on this process's GPU, or its CPU where it has none; for `show` see Transcriber.

    Raises:
        ConfigError: there is no such model, or the config does not fit it.
        StorageError: it cannot be read.
    """
    config = task.config
    recognizer = open_model(config, task.model, session)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recognizer.model.to(device).eval()
    for note in recognizer.notes:
        session.show_from_main(f"model: {note}")

    def transcriber(beam: Beam | None) -> Transcriber:
        options = scoring_options(config, recognizer.limits, beam=beam)
        # float16 is of GPUs.
        half = options.decoding.autocast is torch.float16 and device == "cpu"
        decoding = replace(
            options.decoding,
            autocast=None if half else options.decoding.autocast,
            word_times=task.words and recognizer.gives_word_times,
        )
        return Transcriber(task, recognizer, replace(options, decoding=decoding), show)

    if not config.decode.is_on:
        yield transcriber(None)
        return
    with recognizer.open_search(config.decode, config.run.storage_options, session) as search:
        yield transcriber(Beam(search, (task.weights,)))
