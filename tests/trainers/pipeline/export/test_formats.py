"""Every format of its own packages, in an environment over ours: `make exports` makes it."""

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.test_architecture import ROOT
from tests.trainers.pipeline.export.exports_environment import PYTHON
from tests.trainers.pipeline.export.finished_runs import finished_run
from tests.trainers.pipeline.transcription.tiny_models import CTC, write_ctc, write_whisper
from tests.trainers.synthetic import config
from trainers.models.families import family_of
from trainers.run_folder.layout import RunFolder

pytestmark = pytest.mark.long

FORMATS = ("hf", "ctranslate2")
COMMAND = "import sys, rayscribe; sys.exit(rayscribe.main())"
# Opens a Whisper as faster-whisper's users do, without its own fallbacks, and prints the texts of recordings: of 12
# tokens each, since CTranslate2 takes half of the length of prompt and text, 4 + 20, for the text's.
FASTER_WHISPER = """
import json, sys
from faster_whisper import WhisperModel

model = WhisperModel(sys.argv[1], device="cpu", compute_type="float32")
options = dict(language="en", beam_size=1, temperature=0.0, without_timestamps=True, max_new_tokens=20)
options |= dict(condition_on_previous_text=False, no_speech_threshold=None, log_prob_threshold=None)
options |= dict(compression_ratio_threshold=None, suppress_blank=True)
print(json.dumps(["".join(part.text for part in model.transcribe(file, **options)[0]) for file in sys.argv[2:]]))
"""

IS_MULTILINGUAL = "import sys, ctranslate2; print(ctranslate2.models.Whisper(sys.argv[1]).is_multilingual)"

# Opens a CTC model as docs/how-to/export.md says, and prints the texts of recordings.
EXPORTED_CTC = """
import json, sys
import soundfile
from transformers import AutoProcessor
from transformers.exporters import ExportedModel

processor, model = AutoProcessor.from_pretrained(sys.argv[1]), ExportedModel.from_pretrained(sys.argv[1])
texts = []
for file in sys.argv[2:]:
    samples, _ = soundfile.read(file, dtype="float32")
    inputs = processor(samples, sampling_rate=16_000, return_tensors="pt", padding=False)
    texts += processor.batch_decode(model(**inputs).logits.argmax(dim=-1))
print(json.dumps(texts))
"""

# Opens a CTC model of samples alone as docs/how-to/export.md says, and prints the texts of recordings.
SHERPA_ONNX = """
import json, sys
from pathlib import Path
import sherpa_onnx, soundfile

folder, names = Path(sys.argv[1]), {"|": "\u2581", "[PAD]": "<blk>"}
vocabulary = json.loads((folder / "vocab.json").read_text())
tokens = "".join(f"{names.get(token, token)} {number}\\n" for token, number in vocabulary.items())
(folder / "tokens.txt").write_text(tokens)
recognizer = sherpa_onnx.OfflineRecognizer.from_omnilingual_asr_ctc(
    model=str(folder / "model.onnx"), tokens=str(folder / "tokens.txt")
)
texts = []
for file in sys.argv[2:]:
    samples, rate_hz = soundfile.read(file, dtype="float32")
    stream = recognizer.create_stream()
    stream.accept_waveform(rate_hz, samples)
    recognizer.decode_stream(stream)
    texts.append(stream.result.text)
print(json.dumps(texts))
"""


def run_python(*arguments: str, home: Path) -> "subprocess.CompletedProcess[str]":
    """Runs the environment's Python; the test skips where it is absent."""
    if not PYTHON.exists():
        pytest.skip(f"{PYTHON} is not there: run `make exports`")
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "RAYSCRIBE_HOME": str(home), "HF_HUB_OFFLINE": "1"}
    return subprocess.run(
        [str(PYTHON), *arguments], env=environment, capture_output=True, text=True, timeout=600, check=False
    )


def export(run: RunFolder, formats: str, output: Path, *options: str) -> Sequence[dict[str, Any]]:
    """Exports a run, and gives what the command prints of each format."""
    words = ["export", run.url, "--to", formats, "--output", str(output), "--json", *options]
    done = run_python("-c", COMMAND, *words, home=output.parent / "home")
    assert done.returncode == 0, done.stderr
    outcomes: list[dict[str, Any]] = json.loads(done.stdout)["outcomes"]
    return outcomes


@pytest.fixture(scope="module")
def released(hub_whisper: Path, tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    """A run with a Whisper of the released vocabulary, which takes 30 s, as its export leaves it."""
    storage = tmp_path_factory.mktemp("released")
    model = {"name_or_path": str(hub_whisper), "language": "English"}
    part = config({"model": model}).model
    recognizer = family_of(part).load_recognizer(part, None, seed=1)
    # Random weights would write times, which faster-whisper leaves to the model.
    first = recognizer.model.generation_config.no_timestamps_token_id + 1
    torch.nn.init.zeros_(recognizer.model.get_output_embeddings().weight.data[first:])
    recognizer.model.save_pretrained(storage / "model")
    recognizer.processor.save_pretrained(storage / "model")
    return finished_run(storage, storage / "model", {"model": model, "data.normalizer": "basic"})


def test_a_released_whisper_scores_the_same_in_every_runtime_and_in_faster_whisper(
    released: RunFolder, tmp_path: Path
) -> None:
    outcomes = export(released, ",".join(FORMATS), tmp_path / "exported", "--tolerance", "0")
    assert [(each["format"], each["difference"]) for each in outcomes] == [(name, 0.0) for name in FORMATS]
    assert sorted(path.name for path in (tmp_path / "exported").iterdir()) == sorted(FORMATS)
    for name in FORMATS:
        assert hypotheses_in(tmp_path / "exported" / name) == hypotheses_in(tmp_path / "exported" / "hf")
    folder = tmp_path / "exported" / "ctranslate2"
    assert texts_of(FASTER_WHISPER, folder, released) == hypotheses_in(folder)


def test_a_whisper_of_a_short_context_scores_the_same_in_every_runtime(tmp_path: Path) -> None:
    run = finished_run(tmp_path, write_whisper(tmp_path / "model"))
    outcomes = export(run, ",".join(FORMATS), tmp_path / "exported", "--tolerance", "0")
    assert [(each["format"], each["difference"]) for each in outcomes] == [(name, 0.0) for name in FORMATS]
    folder = str(tmp_path / "exported" / "ctranslate2")
    done = run_python("-c", IS_MULTILINGUAL, folder, home=tmp_path / "home")
    assert done.stdout == "True\n", f"its language is prompted: {done.stderr}"


@pytest.mark.parametrize(
    "fields",
    [
        {"architecture": "wav2vec2-bert"},
        {"architecture": "wav2vec2", "feat_extract_norm": "layer"},
        {"architecture": "wav2vec2", "feat_extract_norm": "group"},
        {"architecture": "hubert", "feat_extract_norm": "layer"},
    ],
    ids=lambda fields: "-".join(fields.values()),
)
def test_a_ctc_model_scores_the_same_in_every_runtime(fields: Mapping[str, str], tmp_path: Path) -> None:
    run = finished_run(tmp_path, write_ctc(tmp_path / "model", **fields), {"model": {**CTC, **fields}})
    outcomes = export(run, "hf,onnx,openvino", tmp_path / "exported", "--tolerance", "0")
    assert [each["difference"] for each in outcomes] == [0.0] * 3
    for name in ("onnx", "openvino"):
        assert texts_of(EXPORTED_CTC, tmp_path / "exported" / name, run) == hypotheses_in(tmp_path / "exported" / name)
    if fields.get("feat_extract_norm") == "group":
        folder = tmp_path / "exported" / "onnx"
        assert texts_of(SHERPA_ONNX, folder, run) == hypotheses_in(folder)


def hypotheses_in(folder: Path) -> list[str]:
    lines = (folder / "evaluation" / "test.jsonl").read_text().splitlines()
    return [json.loads(line)["hypothesis"] for line in lines]


def texts_of(program: str, model: Path, run: RunFolder) -> list[str]:
    """What a program of a format's user recognizes in the recordings of a run's test set."""
    recordings = sorted((Path(run.url).parent / "speech" / "test").glob("*.wav"))
    done = run_python("-c", program, str(model), *map(str, recordings), home=model.parent / "home")
    assert done.returncode == 0, done.stderr
    return [text.strip() for text in json.loads(done.stdout)]
