"""Transcribes recordings of any length: splits them into segments, and recognizes these in batches as in scoring."""

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
import numpy.typing as npt
import torch

from trainers.config.parts.decode_part import Setting
from trainers.config.schema import TrainConfig
from trainers.data.audio import RECORDING_VALUES, SAMPLING_RATE_HZ, to_int16
from trainers.data.preparation import decoded
from trainers.data.sources.recording_readers import RecordingReader, Row
from trainers.distributed.console import Event, ProgressCounter
from trainers.distributed.session import Session
from trainers.errors import AudioError, ResumeError
from trainers.models.families import decoded_by
from trainers.models.labels import empty_labels
from trainers.models.recognizer import Recognition, Recognizer, Search, Word
from trainers.models.sources.content_hash import contents_of
from trainers.pipeline.transcription.transcript import Segment, Transcript
from trainers.pipeline.transcription.transcription_request import TranscriptionRequest
from trainers.pipeline.transcription.voice_activity import cut_recording
from trainers.scoring.batches import BatchRecognizer, batches_of
from trainers.scoring.scorer import ScoringOptions
from trainers.training.planning import context_of, scoring_options
from trainers.training.scoring_worker import open_model

Show = Callable[[Event], None]
# Length of audio that is recognized together. Seconds.
AT_ONCE_S = 1800.0
# Length of audio, in seconds, that a CPU recognizes between two writes to a growing file: a minute or two of computing.
# A process that is stopped loses at most this much.
GROWS_BY_S = 120.0
# Maximum length of segments, even if the model accepts longer ones, since the cost grows faster than the length.
USUAL_SEGMENT_S = 30.0
MOMENT_S = 0.01
MOMENT_SAMPLES = round(MOMENT_S * SAMPLING_RATE_HZ)
# A moment is silent if it is this far below the loud moments of words, or within this distance of the clip's quietest
# moments, which are noise. The quantiles of loud and quiet moments follow.
SILENCE_DB, NOISE_DB = 40.0, 6.0
LOUD, QUIET = 0.9, 0.05
# Maximum distance in seconds from a word's letters at which sound belongs to the word: the length of a short word, all
# of whose letters may be at one of its ends.
REACH_S = 0.4


@dataclass(frozen=True)
class TranscribeTask:
    """Everything that a process needs to transcribe, except its rows; sent to the nodes.

    Attributes:
        model: Folder or URL of the model, or a Hub id.
        setting: The setting of the search; None if there is no search.
        contents: Hashes of the model and its files when the request began, see `contents_of`; None if not checked.
    """

    config: TrainConfig
    model: str
    setting: Setting | None
    request: TranscriptionRequest
    reader: RecordingReader
    contents: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Part:
    """Segments of a recording that were recognized together, as a transcript, and whether they are its last ones."""

    transcript: Transcript
    is_last: bool = True


@dataclass(frozen=True)
class _Clip:
    """A segment to recognize: the index of its recording, its samples (T,), and its start in the recording."""

    recording: int
    samples: np.ndarray
    start_s: float

    @property
    def duration_s(self) -> float:
        return len(self.samples) / SAMPLING_RATE_HZ


class Transcriber:
    """A model, on its device, that transcribes rows."""

    def __init__(self, task: TranscribeTask, recognizer: Recognizer, options: ScoringOptions, show: Show):
        """Uses a recognizer that is on its device; calls `show` with the number of completed segments."""
        self._task, self._recognizer, self._options, self._show = task, recognizer, options, show
        self.gives_word_times = options.decoding.word_times
        self._batches = BatchRecognizer(recognizer)
        context_s = context_of(task.config, recognizer.limits.context_s)
        self._longest_s = min(task.request.max_segment_s or USUAL_SEGMENT_S, context_s)

    def transcribe(self, rows: Sequence[Row]) -> Iterator[Transcript]:
        """Yields the transcript of each row; rows of one recording must be adjacent."""
        for parts in self._parts(rows, {}, AT_ONCE_S, math.inf):
            yield from (part.transcript for part in parts)

    def growing_parts(self, rows: Sequence[Row], known: Mapping[str, Part]) -> Iterator[list[Part]]:
        """Yields a few parts at a time, without the parts in `known`, which are by row id."""
        waiting = [row for row in rows if row["id"] not in known or not known[row["id"]].is_last]
        begun = {name: len(part.transcript.segments) for name, part in known.items()}
        at_once_s = GROWS_BY_S if self._recognizer.model.device.type == "cpu" else AT_ONCE_S
        return self._parts(waiting, begun, at_once_s, at_once_s)

    def _parts(
        self, rows: Sequence[Row], begun: Mapping[str, int], at_once_s: float, part_s: float
    ) -> Iterator[list[Part]]:
        """Yields parts of rows as they are recognized; skips the first segments of each row, `begun` by row id.

        `at_once_s` seconds of audio are read together; of these, `part_s` seconds are recognized together.
        """
        together: list[tuple[Row, np.ndarray]] = []
        size = 0
        for row, samples in decoded(rows, self._task.reader, SAMPLING_RATE_HZ, most_values=RECORDING_VALUES):
            if isinstance(samples, AudioError):
                yield [Part(Transcript(row["id"], row["audio"], problem=str(samples)))]
                continue
            together.append((row, to_int16(samples)))
            size += len(samples)
            if size >= at_once_s * SAMPLING_RATE_HZ:
                yield from self._transcribe(together, begun, part_s)
                together, size = [], 0
        yield from self._transcribe(together, begun, part_s)

    def _transcribe(
        self, recordings: Sequence[tuple[Row, np.ndarray]], begun: Mapping[str, int], part_s: float
    ) -> Iterator[list[Part]]:
        pause_s = self._task.request.pause_s
        clips = [
            _Clip(number, samples[start:end], start / SAMPLING_RATE_HZ)
            for number, (row, samples) in enumerate(recordings)
            for start, end in cut_recording(samples, self._longest_s, pause_s)[begun.get(row["id"], 0) :]
        ]
        recognizer, language = self._recognizer, self._task.config.model.language
        languages = [row["language"] for row, _ in recordings]
        labels = empty_labels(recognizer.codec, recognizer.processor, languages, language)
        left = Counter(clip.recording for clip in clips)
        counter = ProgressCounter("transcribe", total=len(clips), unit="segments", show=self._show)
        # Recordings without speech have no clip.
        silent = [number for number in range(len(recordings)) if not left[number]]
        if silent:
            yield [_part(*recordings[number], (), is_last=True) for number in silent]
        for window in _windows(clips, part_s):
            found = self._recognize(window, [labels[clip.recording] for clip in window], counter)
            segments: dict[int, list[Segment]] = {}
            for clip, recognition in zip(window, found, strict=True):
                segments.setdefault(clip.recording, []).append(_segment(clip, recognition))
            left.subtract(clip.recording for clip in window)
            yield [_part(*recordings[number], own, is_last=not left[number]) for number, own in segments.items()]

    def _recognize(
        self, clips: Sequence[_Clip], labels: Sequence[list[int]], counter: ProgressCounter
    ) -> list[Recognition]:
        """Returns recognitions in the order of the clips; a clip that is too short for the model gets an empty text."""
        words = () if self.gives_word_times else None
        found = [Recognition("", 0.0, 0.0, words=words)] * len(clips)
        least = self._recognizer.limits.least_samples
        rows = np.array([place for place, clip in enumerate(clips) if len(clip.samples) >= least], np.int64)
        counter.advance(len(clips) - len(rows))
        if not len(rows):
            return found
        durations_s, options = np.array([clip.duration_s for clip in clips]), self._options
        for batch, edge_s in batches_of(
            durations_s, rows, options.edges_s, to_longest=options.to_longest, batch_size=options.batch_size
        ):
            own = [clips[place].samples for place in batch]
            recognized = self._batches.recognize(own, [labels[place] for place in batch], edge_s, options.decoding)
            for place, recognition in zip(batch, recognized, strict=True):
                found[place] = recognition
            counter.advance(len(batch))
        return found


def _windows(clips: Sequence[_Clip], length_s: float) -> Iterator[list[_Clip]]:
    """Yields groups of consecutive clips, each with a total length of at least `length_s` except the last."""
    window: list[_Clip] = []
    for clip in clips:
        window.append(clip)
        if sum(each.duration_s for each in window) >= length_s:
            yield window
            window = []
    if window:
        yield window


def _part(row: Row, samples: np.ndarray, segments: Sequence[Segment], *, is_last: bool) -> Part:
    duration_s = len(samples) / SAMPLING_RATE_HZ
    return Part(Transcript(row["id"], row["audio"], duration_s, row["language"], tuple(segments)), is_last)


def _segment(clip: _Clip, found: Recognition) -> Segment:
    end_s = clip.start_s + clip.duration_s
    words = None
    if found.words is not None:
        words = tuple(
            Word(text, min(clip.start_s + start, end_s), min(clip.start_s + end, end_s))
            for text, start, end in reach_to_pauses(found.words, clip.samples)
        )
    return Segment(clip.start_s, end_s, found.text, found.avg_logprob, words)


def open_transcriber(task: TranscribeTask, session: Session, show: Show = lambda event: None) -> Transcriber:
    """Opens the model on this process's GPU or, without one, on its CPU; for `show` see Transcriber."""
    recognizer = open_model(task.config, task.model, session)
    config = decoded_by(task.config, recognizer.codec)
    # Checked after opening, so that a model that is replaced meanwhile is noticed, too.
    if task.contents is not None and contents_of(config, task.model) != task.contents:
        raise ResumeError(
            f"MODEL {task.model}: the model, or a file of decode, has been replaced since this request began: put the "
            "former one back, or transcribe all with the new one into another --out"
        )
    device = "cuda" if torch.cuda.is_available() else "cpu"
    recognizer.model.to(device).eval()
    for note in recognizer.notes:
        session.show_from_main(f"model: {note}")

    search = None
    if task.setting is not None:
        search = Search(recognizer.open_search(config.decode, config.run.storage_options, session), (task.setting,))
    options = scoring_options(config, recognizer.limits, search=search)
    # float16 is for GPUs.
    half = options.decoding.autocast is torch.float16 and device == "cpu"
    decoding = replace(
        options.decoding,
        autocast=None if half else options.decoding.autocast,
        word_times=task.request.words and recognizer.gives_word_times,
    )
    return Transcriber(task, recognizer, replace(options, decoding=decoding), show)


def reach_to_pauses(words: Sequence[Word], samples: npt.NDArray[np.int16]) -> tuple[Word, ...]:
    """Returns the words of a clip, extended into the gaps between them by the sound in each gap.

    A CTC model outputs a letter at one moment anywhere within its sound (Zeyer et al. 2021, "Why does CTC result in
    peaky behavior?"), so a word may begin long before its first letter's output and end long after its last letter's.
    In the gap between the letters of two words, the longest pause belongs to neither word. Without a pause, the words
    meet in the middle of the gap, as in ctc-segmentation (Kürzinger et al. 2020). On a side where a word would be
    extended by more than REACH_S, it is not extended.

    Args:
        words: Words in order, with the times of their letters. Words without a gap between them are not changed.
        samples: The clip, (T,).
    """
    if not words or not len(samples):
        return tuple(words)
    silent = _silent(words, samples)
    starts_s, ends_s = [word.start_s for word in words], [word.end_s for word in words]
    gaps = zip([0.0, *ends_s], [*starts_s, len(samples) / SAMPLING_RATE_HZ], strict=True)
    for place, (left_s, right_s) in enumerate(gaps):
        if right_s <= left_s:
            continue
        end_s, start_s = _longest_pause(silent, left_s, right_s)
        if place > 0 and end_s - left_s <= REACH_S:
            ends_s[place - 1] = end_s
        if place < len(words) and right_s - start_s <= REACH_S:
            starts_s[place] = start_s
    return tuple(
        word._replace(start_s=start_s, end_s=end_s)
        for word, start_s, end_s in zip(words, starts_s, ends_s, strict=True)
    )


def _silent(words: Sequence[Word], samples: npt.NDArray[np.int16]) -> npt.NDArray[np.bool_]:
    """Returns which moments of a clip are silent, shape (moments,)."""
    # Float, since squares would overflow.
    moments = np.pad(samples.astype(np.float32), (0, -len(samples) % MOMENT_SAMPLES)).reshape(-1, MOMENT_SAMPLES)
    power = np.square(moments).mean(axis=1)
    # Some models give words without a length, or beyond the end; if no samples are left, the full clip counts.
    spoken = np.concatenate([power[int(word.start_s / MOMENT_S) : round(word.end_s / MOMENT_S)] for word in words])
    loud = np.quantile(spoken if len(spoken) else power, LOUD) * 10 ** (-SILENCE_DB / 10)
    return np.asarray(power <= max(loud, np.quantile(power, QUIET) * 10 ** (NOISE_DB / 10)))


def _longest_pause(silent: npt.NDArray[np.bool_], left_s: float, right_s: float) -> tuple[float, float]:
    """Returns start and end of the longest pause in a gap; if there is none, the middle of the gap for both."""
    first, last = round(left_s / MOMENT_S), round(right_s / MOMENT_S)
    within = np.concatenate([[False], silent[first:last], [False]])
    runs = np.flatnonzero(np.diff(within)).reshape(-1, 2)
    if not len(runs):
        return ((left_s + right_s) / 2,) * 2
    start, end = (first + runs[np.diff(runs)[:, 0].argmax()]).tolist()
    return max(left_s, start * MOMENT_S), min(right_s, end * MOMENT_S)
