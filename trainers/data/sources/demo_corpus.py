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
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import soundfile

from trainers.config.parts.data_part import DataPart, DemoPart
from trainers.data.sources.data_source import SPLITS, DataSource, SourceSplit
from trainers.data.sources.fingerprint import hash_of
from trainers.data.sources.manifest import read_manifest
from trainers.data.sources.recording_readers import FileReader, RowReader
from trainers.errors import DataError
from trainers.storage import Storage
from trainers.storage.own_folder import locked, own_temporary_folder

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
# Numbers of words in an utterance.
LENGTHS = (2, 4)
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


def plan_corpus(demo: DemoPart, lengths: tuple[int, int] = LENGTHS) -> list[DemoUtterance]:
    """Returns the clips of training, then validation, then test; the same arguments give the same plan.

    Word sequences of the test and validation splits occur once in the corpus; those of the training
    split may repeat within it. `lengths` are the minimum and maximum number of words of an utterance, all different.
    """
    rng = random.Random(demo.seed)
    held_out: set[str] = set()
    by_split: dict[str, list[DemoUtterance]] = {}
    for split in reversed(SPLITS):
        speakers = SPEAKERS[split]
        by_split[split] = []
        for number in range(getattr(demo, f"{split}_utterances")):
            while (text := " ".join(rng.sample(WORDS, rng.randint(*lengths)))) in held_out:
                pass
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


def corpus_key(demo: DemoPart) -> str:
    """Returns a hash of everything that is spoken and how, so that other voices are another corpus."""
    return hashlib.sha256(f"{FORMAT_VERSION} {plan_corpus(demo)}".encode()).hexdigest()[:16]


def make_demo_corpus(folder: Path, demo: DemoPart, lengths: tuple[int, int] = LENGTHS) -> dict[str, Path]:
    """Makes the corpus in a folder, unless it exists: `clips/*.wav`, and the CSV manifests by split that it returns.

    The folder appears complete or not at all; other processes wait for it. One that was emptied, as temporary files may
    be, is made again. For `lengths` see `plan_corpus`. Raises DataError if espeak-ng is missing or fails.
    """
    manifests = {split: folder / f"{split}.csv" for split in SPLITS}
    with locked(folder):
        if not manifests["train"].exists():
            if espeakng_loader is None:
                raise DataError("the demo speaks with espeak-ng, which is not installed: pip install 'rayscribe[demo]'")
            with TemporaryDirectory(dir=folder.parent) as unfinished:
                _write_in_fresh_process(Path(unfinished), demo, lengths)
                shutil.rmtree(folder, ignore_errors=True)
                Path(unfinished).rename(folder)
    return manifests


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

    # The library keeps only the address, so this variable keeps the callback alive.
    callback = SYNTH_CALLBACK(collect)
    library.espeak_SetSynthCallback(callback)
    for utterance in utterances:
        pieces.clear()
        _speak(library, utterance)
        yield _trimmed(np.frombuffer(b"".join(pieces), dtype=np.int16))


def write_corpus(folder: Path, demo: DemoPart, lengths: tuple[int, int] = LENGTHS) -> None:
    """Synthesizes the complete plan into a folder, in this process."""
    (folder / "clips").mkdir()
    plan = plan_corpus(demo, lengths)
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


def _write_in_fresh_process(folder: Path, demo: DemoPart, lengths: tuple[int, int]) -> None:
    arguments = [str(folder.absolute()), demo.model_dump_json(), *map(str, lengths)]
    command = [sys.executable, "-P", "-m", __name__, *arguments]
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
            hash_of(corpus_key(self._demo), split),
        )

    def truncated(self, counts: Mapping[str, int], folder: Path) -> DataPart:
        names = {f"{split}_utterances": count for split, count in counts.items()}
        few = {name: min(getattr(self._demo, name), count) for name, count in names.items()}
        return self.data.model_copy(update={"demo": self._demo.model_copy(update=few)})

    @property
    def _demo(self) -> DemoPart:
        assert self.data.demo is not None
        return self.data.demo

    @cached_property
    def _manifests(self) -> Mapping[str, Path]:
        return make_demo_corpus(own_temporary_folder("demo") / corpus_key(self._demo), self._demo)


if __name__ == "__main__":
    write_corpus(Path(sys.argv[1]), DemoPart.model_validate_json(sys.argv[2]), (int(sys.argv[3]), int(sys.argv[4])))
