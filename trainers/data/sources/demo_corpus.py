"""Data source `demo:`: a small synthetic speech corpus, so that a first training needs no download.

It is synthesized on the driver, and sent to the nodes with the rows.

espeak-ng speaks short sequences of English command words. Training, validation and test have no speaker and
no word sequence in common, so a good score on the test split shows that the model learned words.

The library is GPL-3 and comes with the optional extra `demo`. It is loaded only in a separate process: its sound
generator carries state from one utterance to the next that neither a seed nor reinitialization clears, so only a new
process that speaks the complete plan in order gives the same bytes every time.
"""

import csv
import ctypes
import hashlib
import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from uuid import uuid4

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import soundfile

from trainers.config.parts.data_part import DataPart
from trainers.data.sources.data_source import SPLITS, DataSource, SourceSplit
from trainers.data.sources.fingerprint import hash_of
from trainers.data.sources.manifest import read_manifest
from trainers.data.sources.recording_readers import FileReader, RowReader
from trainers.errors import DataError
from trainers.storage import Storage
from trainers.storage.own_folder import own_temporary_folder

try:
    import espeakng_loader
except ImportError:
    espeakng_loader = None

COLUMNS = ("path", "text", "id", "speaker", "duration")
FORMAT_VERSION = 1
_RECORDING = "recording"

# fmt: off
WORDS = (
    "red", "green", "blue", "left", "right", "up", "down", "stop", "go",
    "one", "two", "three", "four", "five", "six", "seven",
)
ACCENTS = ("en", "en-us", "en-gb-scotland", "en-gb-x-rp")
# Variants of espeak-ng that speak clearly. Each is a different speaker: pitch, formants, timing.
SPEAKERS = {
    "train": (
        "m1", "m2", "m3", "m5", "m7", "m8", "f1", "f2", "f3", "f5", "steph", "Annie", "Gene", "belinda",
        "edward2", "anika", "linda", "max", "rob", "shelby", "travis", "zac", "Alex", "Andrea", "Denis",
        "Diogo", "Gene2", "Henrique", "Hugo", "Jacky", "Mario", "Michael", "Nguyen", "Reed", "RicishayMax",
        "adam", "antonio", "benjamin", "boris", "caleb", "david", "ed", "edward", "gustave", "ian", "iven",
        "iven2", "john", "klatt", "klatt2", "klatt3", "klatt4", "marcelo", "michel", "miguel", "norbert",
        "pablo", "paul", "pedro", "quincy", "robert", "sandro", "victor",
    ),
    "validation": ("m4", "Mike", "grandma"),
    "test": ("m6", "f4", "aunty", "Andy"),
}
# fmt: on

# From espeak-ng's speak_lib.h, version 1.52.
AUDIO_OUTPUT_SYNCHRONOUS = 2
INITIALIZE_DONT_EXIT = 0x8000
POS_CHARACTER = 1
CHARS_UTF8 = 1
PARAMETER_RATE = 1
PARAMETER_PITCH = 3
# Words per minute, as espeak-ng counts them; pitches, on its scale from 0 to 99, where 50 is the speaker's own.
SPEEDS_WPM, PITCHES = (130, 170), (35, 65)
SYNTH_CALLBACK = ctypes.CFUNCTYPE(ctypes.c_int, ctypes.POINTER(ctypes.c_short), ctypes.c_int, ctypes.c_void_p)

SAMPLING_RATE_HZ = 22050  # espeak-ng's rate; preparation resamples
SILENCE_LEVEL = 0.02  # relative to a clip's peak: lower levels at its ends are trimmed
MARGIN_S = 0.03  # kept around the speech, so that soft consonants are not trimmed


@dataclass(frozen=True)
class DemoOptions:
    """Options of the corpus. The same options give the same bytes.

    Attributes:
        max_words: Maximum number of words in an utterance, all different.
        seed: Chooses words, speakers, speeds and pitches.
    """

    train_utterances: int = 1500
    validation_utterances: int = 100
    test_utterances: int = 150
    min_words: int = 2
    max_words: int = 4
    seed: int = 0

    def __post_init__(self) -> None:
        held_out = self.validation_utterances + self.test_utterances
        sequences = sum(math.perm(len(WORDS), n) for n in range(self.min_words, self.max_words + 1))
        # Each held-out utterance has a word sequence of its own; training needs some, too.
        if 2 * held_out > sequences:
            raise DataError(
                f"validation_utterances + test_utterances is {held_out}, more than half of the {sequences} "
                f"sequences of {self.min_words} to {self.max_words} words: ask for fewer or raise max_words"
            )

    @property
    def counts(self) -> dict[str, int]:
        return {split: getattr(self, f"{split}_utterances") for split in SPLITS}


@dataclass(frozen=True)
class DemoUtterance:
    """One clip to synthesize: in espeak-ng's language `accent` ("en-us"), by its voice variant `speaker`."""

    id: str
    split: str
    text: str
    accent: str
    speaker: str
    speed_wpm: int
    pitch: int

    @property
    def voice(self) -> str:
        """The voice's name in espeak-ng, for example "en-us+m3"."""
        return f"{self.accent}+{self.speaker}"


def plan_corpus(options: DemoOptions) -> list[DemoUtterance]:
    """Plans every clip of the corpus; the same options give the same plan.

    Word sequences of the test and validation splits occur once in the corpus; those of the training
    split may repeat within it.

    Returns:
        The clips of training, then validation, then test.
    """
    rng = random.Random(options.seed)
    held_out: set[str] = set()
    by_split: dict[str, list[DemoUtterance]] = {}
    for split in reversed(SPLITS):
        speakers = SPEAKERS[split]
        by_split[split] = []
        for number in range(options.counts[split]):
            text = _new_sequence(rng, options, held_out)
            if split != "train":
                held_out.add(text)
            by_split[split].append(
                DemoUtterance(
                    id=f"{split}-{number:05d}",
                    split=split,
                    text=text,
                    accent=rng.choice(ACCENTS),
                    speaker=speakers[number % len(speakers)],
                    speed_wpm=rng.randint(*SPEEDS_WPM),
                    pitch=rng.randint(*PITCHES),
                )
            )
    return [utterance for split in SPLITS for utterance in by_split[split]]


def corpus_key(options: DemoOptions) -> str:
    """Returns a hash of everything that is spoken and how, so that other voices are another corpus."""
    return hashlib.sha256(f"{FORMAT_VERSION} {plan_corpus(options)}".encode()).hexdigest()[:16]


def make_demo_corpus(folder: Path, options: DemoOptions) -> dict[str, Path]:
    """Makes the corpus in a folder, unless it exists: `clips/*.wav`, and the CSV manifests by split that it returns.

    The folder, which is named after the options, appears complete or not at all, so that several processes may call
    this at once: each makes its own copy, the first to finish is kept, and all return the same paths.

    Raises:
        DataError: If espeak-ng is missing or fails.
    """
    if not _is_made(folder):
        if espeakng_loader is None:
            raise DataError("the demo speaks with espeak-ng, which is not installed: pip install 'rayscribe[demo]'")
        unfinished = folder.with_name(f".{folder.name}.{uuid4().hex}")
        try:
            _write_in_fresh_process(unfinished, options)
            unfinished.rename(folder)
        except OSError:
            # Another process finished first: a non-empty folder cannot be replaced. Its corpus is the same.
            if not _is_made(folder):
                raise
        finally:
            shutil.rmtree(unfinished, ignore_errors=True)
    return {split: folder / f"{split}.csv" for split in SPLITS}


def _is_made(folder: Path) -> bool:
    """Returns True if the folder has a corpus; a folder that was emptied, as temporary files may be, has none."""
    return folder.is_dir() and any(folder.iterdir())


def synthesize(utterances: Iterable[DemoUtterance]) -> Iterator[npt.NDArray[np.int16]]:
    """Synthesizes utterances in order, with silence trimmed at their ends.

    Call this once per process and from one thread only. The samples depend on everything that the process synthesized
    before, which is why `make_demo_corpus` starts a process for each corpus.

    Yields:
        Samples of shape (T,) at `SAMPLING_RATE_HZ`.

    Raises:
        DataError: If espeak-ng does not start, or does not have a voice.
    """
    library = ctypes.CDLL(espeakng_loader.get_library_path())
    data_path = os.fsencode(espeakng_loader.get_data_path())
    rate_hz = library.espeak_Initialize(AUDIO_OUTPUT_SYNCHRONOUS, 0, data_path, INITIALIZE_DONT_EXIT)
    if rate_hz != SAMPLING_RATE_HZ:
        raise DataError(
            f"espeak-ng started with {rate_hz} Hz, not {SAMPLING_RATE_HZ} (-1: it did not start): "
            "reinstall it with pip install --force-reinstall espeakng-loader"
        )
    # By default, the library seeds its noise from the clock.
    library.espeak_ng_SetRandSeed(ctypes.c_long(1))
    pieces: list[bytes] = []

    def collect(samples: Any, count: int, events: Any) -> int:
        if samples and count > 0:
            pieces.append(ctypes.string_at(samples, 2 * count))
        return 0

    # The library keeps only the address: this variable keeps the callback alive.
    callback = SYNTH_CALLBACK(collect)
    library.espeak_SetSynthCallback(callback)
    for utterance in utterances:
        pieces.clear()
        _speak(library, utterance)
        yield _trimmed(np.frombuffer(b"".join(pieces), dtype=np.int16))


def write_corpus(folder: Path, options: DemoOptions) -> None:
    """Synthesizes the complete plan into a new folder, in this process."""
    (folder / "clips").mkdir(parents=True)
    plan = plan_corpus(options)
    rows: dict[str, list[tuple[str, str, str, str, float]]] = {split: [] for split in SPLITS}
    for utterance, samples in zip(plan, synthesize(plan), strict=True):
        path = f"clips/{utterance.id}.wav"
        soundfile.write(folder / path, samples, SAMPLING_RATE_HZ, subtype="PCM_16")
        duration_s = len(samples) / SAMPLING_RATE_HZ
        rows[utterance.split].append((path, utterance.text, utterance.id, utterance.speaker, duration_s))
    for split in SPLITS:
        with (folder / f"{split}.csv").open("w", encoding="utf-8", newline="") as file:
            writer = csv.writer(file, lineterminator="\n")
            writer.writerow(COLUMNS)
            writer.writerows(rows[split])


def _new_sequence(rng: random.Random, options: DemoOptions, taken: set[str]) -> str:
    while True:
        text = " ".join(rng.sample(WORDS, rng.randint(options.min_words, options.max_words)))
        if text not in taken:
            return text


def _write_in_fresh_process(folder: Path, options: DemoOptions) -> None:
    command = [sys.executable, "-P", "-m", __name__]
    command += [str(folder.absolute()), json.dumps(asdict(options))]
    # The child must find this package where the parent found it: installed, or in a job's working folder.
    import_paths = [str(Path(__file__).resolve().parents[__name__.count(".")]), os.environ.get("PYTHONPATH", "")]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, import_paths))}
    # Captured, because espeak-ng may write to the standard streams.
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        reason = (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
        raise DataError(f"the demo corpus could not be spoken: {reason}")


def _speak(library: ctypes.CDLL, utterance: DemoUtterance) -> None:
    status = library.espeak_SetVoiceByName(utterance.voice.encode())
    if status != 0:
        # espeak-ng would continue with the previous voice, and the manifest would name a wrong speaker.
        raise DataError(f"espeak-ng does not know the voice {utterance.voice!r} (status {status})")
    library.espeak_SetParameter(PARAMETER_RATE, utterance.speed_wpm, 0)
    library.espeak_SetParameter(PARAMETER_PITCH, utterance.pitch, 0)
    text = utterance.text.encode()
    status = library.espeak_Synth(
        text, ctypes.c_size_t(len(text) + 1), ctypes.c_uint(0), POS_CHARACTER, ctypes.c_uint(0),
        ctypes.c_uint(CHARS_UTF8), None, None,
    )  # fmt: skip
    if status != 0:
        raise DataError(f"espeak-ng could not speak {utterance.id}, {utterance.text!r} (status {status})")
    library.espeak_Synchronize()


def _trimmed(samples: npt.NDArray[np.int16]) -> npt.NDArray[np.int16]:
    level = np.abs(samples.astype(np.int32))
    (loud,) = np.nonzero(level > SILENCE_LEVEL * level.max(initial=0))
    if not len(loud):
        raise DataError("espeak-ng gave silence for a text: reinstall espeakng-loader")
    margin = round(MARGIN_S * SAMPLING_RATE_HZ)
    return samples[max(0, loud[0] - margin) : loud[-1] + 1 + margin]


class DemoSource(DataSource):
    """The demo corpus of a config."""

    splits = SPLITS
    listing_requires_job = "data.demo is synthesized where the job runs; there is no manifest to read"

    def open(self, split: str, fingerprint_cache: Storage | None) -> SourceSplit:
        """Opens a split; its fingerprint is that of the plan and the library, not of the recordings."""
        manifest = self._manifests[split]
        table = read_manifest(str(manifest), manifest.read_bytes())
        recordings = [Path(path).read_bytes() for path in table["audio"].to_pylist()]
        return SourceSplit(
            split,
            f"demo {split}",
            table.append_column(_RECORDING, pa.array(recordings, pa.large_binary())),
            RowReader(_RECORDING, FileReader(self.storage_options)),
            hash_of(corpus_key(self._options), split),
        )

    def truncated(self, counts: Mapping[str, int], folder: Path) -> DataPart:
        assert self.data.demo is not None
        names = {f"{split}_utterances": count for split, count in counts.items()}
        few = {name: min(getattr(self.data.demo, name), count) for name, count in names.items()}
        return self.data.model_copy(update={"demo": self.data.demo.model_copy(update=few)})

    @cached_property
    def _options(self) -> DemoOptions:
        assert self.data.demo is not None
        return DemoOptions(**self.data.demo.model_dump())

    @cached_property
    def _manifests(self) -> Mapping[str, Path]:
        return make_demo_corpus(own_temporary_folder("demo") / corpus_key(self._options), self._options)


if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]), DemoOptions(**json.loads(sys.argv[2])))
