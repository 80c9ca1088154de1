"""Weights that are not complete, not what their config describes, or not weights: refused by name, before preparing."""

import json
import os
import pickle
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import LoraConfig, PeftModel, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import (
    GenerationConfig,
    Wav2Vec2ForCTC,
    Wav2Vec2ForPreTraining,
    Wav2Vec2Model,
    WhisperConfig,
    WhisperForConditionalGeneration,
)

from tests.trainers.inspection.checking import subject_of
from tests.trainers.models.sources.conftest import HUB_ID
from tests.trainers.models.sources.test_sources import zipped
from tests.trainers.synthetic import config
from tests.web import WebServer, publish_repository
from trainers.config.storage_location import StorageOptions
from trainers.errors import ConfigError
from trainers.findings import run_check
from trainers.inspection.model_checks import CHECKS
from trainers.models.families import family_of
from trainers.models.sources.loaded_weights import weights_from_pretrained
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.pipeline import attempt
from trainers.pipeline.attempt import AttemptRequest
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.run_folder.attempt_status import StatusWriter
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage

SAFE, PICKLED, INDEX = "model.safetensors", "pytorch_model.bin", "model.safetensors.index.json"
POINTER = b"version https://git-lfs.github.com/spec/v1\noid sha256:4d7a\nsize 12345\n"
NORM = "model.encoder.layer_norm.weight"
ADAPTER = "adapter_config.json"
Damage = Callable[[Path], object]


@pytest.fixture(scope="session")
def whisper_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny multilingual Whisper, as `save_pretrained` leaves it."""
    folder = tmp_path_factory.mktemp("sources") / "whisper"
    folder.mkdir()
    model: Any = config({"model.max_context_s": None}).model
    WhisperFamily().write_description(folder, ["one two three", "four five"], model)
    network = WhisperForConditionalGeneration(WhisperConfig.from_pretrained(folder))
    network.generation_config = GenerationConfig.from_pretrained(folder)
    network.save_pretrained(folder)
    return folder


def found(source: object, folder: Path, **fields: Any) -> list[tuple[str, str]]:
    """Level and text of what `rayscribe check` finds of weights, without what names no clip or no argument."""
    weights = {"init": "pretrained", "name_or_path": str(source), "language": "English", **fields.pop("model", {})}
    subject = subject_of(folder, {"model": weights, **fields})
    check = next(each for each in CHECKS if each.name == "model")
    return [(finding.level.value, finding.text) for finding in run_check(check, subject)]


def refused(source: object, folder: Path, **fields: Any) -> str:
    """The only thing that it finds, which is an error."""
    ((level, text),) = found(source, folder, **fields)
    assert level == "error"
    assert text.startswith(f"model.name_or_path: {source}"), "it names where the weights are"
    return text


def tensors(change: Callable[[dict[str, torch.Tensor]], object], file: str = SAFE) -> Damage:
    def damage(folder: Path) -> None:
        content = load_file(folder / file)
        change(content)
        save_file(content, folder / file, metadata={"format": "pt"})

    return damage


def cut(file: str, share: float = 0.5) -> Damage:
    return lambda folder: os.truncate(folder / file, int((folder / file).stat().st_size * share))


def content(file: str, data: bytes) -> Damage:
    return lambda folder: (folder / file).write_bytes(data)


def without(*patterns: str) -> Damage:
    def damage(folder: Path) -> None:
        for path in [path for pattern in patterns for path in folder.glob(pattern)]:
            path.unlink()

    return damage


def configured(file: str = "config.json", **keys: Any) -> Damage:
    def damage(folder: Path) -> None:
        (folder / file).write_text(json.dumps({**json.loads((folder / file).read_bytes()), **keys}))

    return damage


def sharded(damage: Damage) -> Damage:
    def make(folder: Path) -> None:
        network = WhisperForConditionalGeneration.from_pretrained(folder)
        (folder / SAFE).unlink()
        network.save_pretrained(folder, max_shard_size="30KB")
        damage(folder)

    return make


def pickled(damage: Damage) -> Damage:
    def make(folder: Path) -> None:
        torch.save(load_file(folder / SAFE), folder / PICKLED)
        (folder / SAFE).unlink()
        damage(folder)

    return make


def sharded_pickles(folder: Path) -> None:
    """Has pickled weights in two files with their index."""
    held = torch.load(folder / PICKLED)
    (folder / PICKLED).unlink()
    names, places = sorted(held), {}
    for number, chosen in enumerate((names[:9], names[9:]), start=1):
        file = f"pytorch_model-{number:05}-of-00002.bin"
        torch.save({name: held[name] for name in chosen}, folder / file)
        places |= dict.fromkeys(chosen, file)
    (folder / f"{PICKLED}.index.json").write_text(json.dumps({"weight_map": places}))


class Harmful:
    """Its pickle makes a folder when it is opened."""

    def __init__(self, folder: Path):
        self.folder = folder

    def __reduce__(self) -> Any:
        return os.mkdir, (str(self.folder / "it_was_run"),)


def adapter(folder: Path) -> None:
    """Puts an adapter next to the weights, as peft saves it."""
    network: Any = WhisperForConditionalGeneration.from_pretrained(folder)
    made = get_peft_model(network, LoraConfig(target_modules=["q_proj"], r=2, init_lora_weights=False))
    made.save_pretrained(str(folder))


def both(*damages: Damage) -> Damage:
    return lambda folder: [damage(folder) for damage in damages]


FIRST, SECOND = "model-00001-of-*.safetensors", "model-00002-of-*.safetensors"
DAMAGES: dict[str, tuple[Damage, str]] = {
    "a tensor is missing": (tensors(lambda held: held.pop(NORM)), rf"they lack {NORM}: copy"),
    "a layer is missing": (
        tensors(lambda held: [held.pop(name) for name in [*held] if name.startswith("model.decoder.layers.0.")]),
        r"they lack model\.decoder\.layers\.0\..* and \d+ more",
    ),
    "the decoder's embeddings are missing": (
        tensors(lambda held: held.pop("model.decoder.embed_tokens.weight")),
        r"they lack .*(embed_tokens|proj_out)\.weight",
    ),
    "no tensor is in it": (tensors(lambda held: held.clear()), r"they lack model\."),
    "an unexpected tensor": (
        tensors(lambda held: held.update({"model.more.weight": torch.ones(2)})),
        r"they have, beyond it, model\.more\.weight",
    ),
    "a tensor has another name": (
        tensors(lambda held: held.update({"model.encoder.norm.weight": held.pop(NORM)})),
        rf"they lack {NORM}; they have, beyond it, model\.encoder\.norm\.weight",
    ),
    "a tensor has another shape": (
        tensors(lambda held: held.update({NORM: torch.ones(5)})),
        rf"they have, in another shape, {NORM} \[5\], not \[\d+\]",
    ),
    "a tensor is transposed": (
        tensors(lambda held: held.update({"model.encoder.layers.0.fc1.weight": torch.ones(3, 7)})),
        r"in another shape, model\.encoder\.layers\.0\.fc1\.weight \[3, 7\]",
    ),
    "weights are quantized": (
        tensors(lambda held: held.update({NORM: held[NORM].to(torch.int8)})),
        rf"{NORM} \(I8\) holds whole numbers",
    ),
    "weights have 8 bits": (
        tensors(lambda held: held.update({NORM: held[NORM].to(torch.float8_e4m3fn)})),
        rf"{NORM} \(F8_E4M3\) holds whole numbers, or floating-point ones of fewer than 16 bits.*they lack {NORM}",
    ),
    "config.json says that they are quantized": (
        configured(quantization_config={"quant_method": "gptq", "bits": 4}),
        r'config\.json says that the weights are quantized \(quantization_config: "gptq"\)',
    ),
    "config.json names no classes": (
        configured(architectures=5),
        r"config\.json has architectures 5, which is no list",
    ),
    "config.json has more layers": (configured(encoder_layers=2), r"they lack model\.encoder\.layers\.1\."),
    "config.json has other sizes": (
        configured(encoder_ffn_dim=24),
        r"in another shape, model\.encoder\.layers\.0\.fc1",
    ),
    "config.json is of no network": (configured(encoder_attention_heads=3), r"cannot be opened: embed_dim must be"),
    "config.json asks for code": (
        configured(auto_map={"AutoModel": "mine.Mine"}),
        r"config\.json has model_type 'whisper', and names code of its own \(auto_map\)",
    ),
    "the tokenizer asks for code": (
        configured("tokenizer_config.json", auto_map={"AutoTokenizer": ["mine.Mine", None]}),
        r"tokenizer_config\.json names code of its own \(auto_map\)",
    ),
    "it is cut": (cut(SAFE), rf"{SAFE} is cut or damaged"),
    "its last byte is missing": (cut(SAFE, 0.9999), rf"{SAFE} is cut or damaged"),
    "it is cut in its header": (content(SAFE, b"\x00\x10\x00\x00\x00\x00\x00\x00{"), rf"{SAFE} is cut or damaged"),
    "its header claims too much": (content(SAFE, b"\xff" * 64), rf"{SAFE} is cut or damaged"),
    "it has more than its header says": (
        lambda folder: (folder / SAFE).write_bytes((folder / SAFE).read_bytes() + b"more"),
        rf"{SAFE} is cut or damaged",
    ),
    "it is empty": (content(SAFE, b""), rf"{SAFE} is empty"),
    "it is a page of a server": (content(SAFE, b"<!DOCTYPE html><title>404</title>"), rf"{SAFE} is cut or damaged"),
    "it is a pointer": (content(SAFE, POINTER), rf"{SAFE} is a pointer of Git LFS.*git lfs pull"),
    "there is none": (without(SAFE), r"holds no weights \(model\.safetensors\)"),
    "a shard is missing": (sharded(without(SECOND)), r"model-00002-of-.*\.safetensors, which .* names, is missing"),
    "a shard is empty": (
        sharded(lambda folder: next(folder.glob(SECOND)).write_bytes(b"")),
        r"model-00002-of-\d+\.safetensors is empty",
    ),
    "a shard is cut": (
        sharded(lambda folder: os.truncate(path := next(folder.glob(FIRST)), path.stat().st_size - 4)),
        r"model-00001-of-\d+\.safetensors is cut",
    ),
    "a shard is another one": (
        sharded(lambda folder: shutil.copy(next(folder.glob(FIRST)), next(folder.glob(SECOND)))),
        r"they lack model\.",
    ),
    "shards have no index": (sharded(without(INDEX)), rf"model-00001-of-.*, and no {INDEX}"),
    "the index is cut": (sharded(cut(INDEX)), rf"{re.escape(INDEX)} is cut or damaged"),
    "the index is another file": (sharded(content(INDEX, b'{"a": 1}')), rf"{INDEX} is no index of weights"),
    "the tokenizer is cut": (cut("tokenizer.json"), r"tokenizer\.json is cut or damaged"),
    "the tokenizer is empty": (content("tokenizer.json", b""), r"tokenizer\.json is empty"),
    "the tokenizer has no content": (content("tokenizer.json", b"{}"), r"tokenizer\.json holds \{\}"),
    "the tokenizer is a number": (content("tokenizer.json", b"5"), r"tokenizer\.json holds 5"),
    "the tokenizer is deep": (content("tokenizer.json", b"[" * 100_000), r"tokenizer\.json is cut or damaged"),
    "the tokenizer is another file": (content("tokenizer.json", b'{"a": 1}'), r"tokenizer\.json holds "),
    "the tokenizer is a pointer": (content("tokenizer.json", POINTER), r"tokenizer\.json is a pointer of Git LFS"),
    "there is no tokenizer": (
        without("tokenizer*"),
        r"holds no tokenizer \(tokenizer\.json or .*\(model\.tokenizer_name",
    ),
    "there is no feature extractor": (
        without("*processor*"),
        r"holds no feature extractor \(preprocessor_config\.json",
    ),
    "the feature extractor is cut": (cut("processor_config.json"), r"processor_config\.json is cut or damaged"),
    "config.json is cut": (cut("config.json"), r"config\.json is cut or damaged"),
    "config.json is a list": (content("config.json", b"[]"), r"config\.json holds \[\]"),
    "generation_config.json is a list": (
        content("generation_config.json", b"[]"),
        r"generation_config\.json holds \[\]",
    ),
    "an adapter is next to it": (adapter, rf"LoRA adapter \({ADAPTER}, adapter_model\.safetensors\) next to weights"),
    "it is an adapter alone": (
        both(adapter, without(SAFE, "config.json")),
        rf"LoRA adapter \({ADAPTER}, .*\) without the weights .*merge it",
    ),
}
PICKLES: dict[str, tuple[Damage, str]] = {
    "it is cut": (cut(PICKLED), rf"{PICKLED}: RuntimeError: PytorchStreamReader failed"),
    "it is empty": (content(PICKLED, b""), rf"{PICKLED}.* EOFError"),
    "it is a pointer": (content(PICKLED, POINTER), rf"{PICKLED}: its pickle .*is damaged"),
    "it runs code": (
        lambda folder: torch.save({NORM: Harmful(folder)}, folder / PICKLED),
        rf"{PICKLED}: its pickle holds more than tensors, .* is never run",
    ),
    "it is a bare pickle that runs code": (
        lambda folder: (folder / PICKLED).write_bytes(pickle.dumps(Harmful(folder))),
        rf"{PICKLED}: its pickle holds more than tensors",
    ),
    "weights are quantized": (
        lambda folder: torch.save(
            {**(held := torch.load(folder / PICKLED)), NORM: held[NORM].to(torch.int8)}, folder / PICKLED
        ),
        rf"{NORM} \(torch\.int8\) holds whole numbers",
    ),
    "it holds a checkpoint": (
        lambda folder: torch.save({"model": torch.load(folder / PICKLED), "step": 3}, folder / PICKLED),
        rf"{PICKLED} holds no tensors by name",
    ),
    "a tensor is missing": (
        lambda folder: torch.save(
            {name: held for name, held in torch.load(folder / PICKLED).items() if name != NORM}, folder / PICKLED
        ),
        rf"they lack {NORM}",
    ),
}


@pytest.mark.parametrize("damage", DAMAGES)
def test_it_is_refused_by_name(damage: str, whisper_folder: Path, tmp_path: Path) -> None:
    make, text = DAMAGES[damage]
    folder = shutil.copytree(whisper_folder, tmp_path / "model")
    make(folder)
    assert re.search(text, refused(folder, tmp_path))


@pytest.mark.filterwarnings("ignore:Detected pickle protocol")
@pytest.mark.parametrize("damage", PICKLES)
def test_a_pickle_is_refused_by_name_and_never_run(damage: str, whisper_folder: Path, tmp_path: Path) -> None:
    make, text = PICKLES[damage]
    folder = shutil.copytree(whisper_folder, tmp_path / "model")
    pickled(make)(folder)
    found_text = refused(folder, tmp_path, model={"allow_pickle": True})
    assert re.search(text, found_text)
    assert "weights_only" not in found_text, "torch's advice to open it nevertheless"
    assert not (folder / "it_was_run").exists()


def test_sound_weights_in_any_form_are_opened(whisper_folder: Path, tmp_path: Path) -> None:
    for name, make in {"whole": both(), "shards": sharded(both()), "pickled": pickled(both())}.items():
        make(folder := shutil.copytree(whisper_folder, tmp_path / name))
        ((level, text),) = found(folder, tmp_path / f"{name}-data", model={"allow_pickle": name == "pickled"})
        assert (level, text) == ("ok", f"model.name_or_path: {folder} opens")


class TestEverywhere:
    """What is refused in a folder is refused in a bucket, in an archive and on the Hub, of which headers are read."""

    DAMAGES = ("a tensor is missing", "it is cut", "it is a pointer", "a shard is missing", "an adapter is next to it")

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_in_a_bucket(
        self, damage: str, whisper_folder: Path, tmp_path: Path, s3_bucket: str, s3_endpoint: str
    ) -> None:
        make, text = DAMAGES[damage]
        make(folder := shutil.copytree(whisper_folder, tmp_path / "model"))
        storage = open_storage(s3_bucket, StorageOptions(s3_endpoint))
        storage.upload_folder(folder, "model")
        assert re.search(text, refused(f"{s3_bucket}/model", tmp_path, **{"run.s3_endpoint_url": s3_endpoint}))

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_on_the_hub(self, damage: str, hub: WebServer, whisper_folder: Path, tmp_path: Path) -> None:
        make, text = DAMAGES[damage]
        make(folder := shutil.copytree(whisper_folder, tmp_path / "model"))
        publish_repository(hub, HUB_ID, folder)
        assert re.search(text, refused(HUB_ID, tmp_path))

    @pytest.mark.parametrize("damage", DAMAGES)
    def test_in_an_archive(self, damage: str, whisper_folder: Path, tmp_path: Path) -> None:
        make, text = DAMAGES[damage]
        make(folder := shutil.copytree(whisper_folder, tmp_path / "model"))
        assert re.search(text, refused(zipped(folder, tmp_path / "model.zip"), tmp_path))

    def test_sound_weights_are_opened_by_their_headers(
        self, hub: WebServer, whisper_folder: Path, tmp_path: Path, s3_bucket: str, s3_endpoint: str
    ) -> None:
        open_storage(s3_bucket, StorageOptions(s3_endpoint)).upload_folder(whisper_folder, "model")
        publish_repository(hub, HUB_ID, whisper_folder)
        options = {"run.s3_endpoint_url": s3_endpoint}
        for number, source in enumerate((f"{s3_bucket}/model", HUB_ID)):
            assert found(source, tmp_path / str(number), **options) == [("ok", f"model.name_or_path: {source} opens")]
        assert list(tmp_path.glob(f"node/**/{SAFE}")) == [], "no weights were fetched for it"

    @pytest.mark.parametrize("form", [both(), sharded_pickles], ids=["one file", "shards"])
    def test_sound_pickles_are_opened_without_them(
        self, form: Damage, hub: WebServer, whisper_folder: Path, tmp_path: Path, s3_bucket: str, s3_endpoint: str
    ) -> None:
        pickled(form)(folder := shutil.copytree(whisper_folder, tmp_path / "model"))
        open_storage(s3_bucket, StorageOptions(s3_endpoint)).upload_folder(folder, "model")
        publish_repository(hub, HUB_ID, folder)
        fields = {"run.s3_endpoint_url": s3_endpoint, "model": {"allow_pickle": True}}
        for number, source in enumerate((f"{s3_bucket}/model", HUB_ID)):
            assert found(source, tmp_path / str(number), **fields) == [("ok", f"model.name_or_path: {source} opens")]

    def test_of_a_mirror_without_ranges_no_more_than_the_header_is_read(
        self, hub: WebServer, whisper_folder: Path, tmp_path: Path
    ) -> None:
        commit = publish_repository(hub, HUB_ID, whisper_folder)
        size_bytes = (whisper_folder / SAFE).stat().st_size
        hub.pages[f"/{HUB_ID}/resolve/{commit}/{SAFE}"].cuts += [size_bytes - 1] * 16
        assert found(HUB_ID, tmp_path) == [("ok", f"model.name_or_path: {HUB_ID} opens")]


def refuse_to_prepare(*_: object, **__: object) -> Any:
    raise AssertionError("data was prepared")


class Prepares(LocalEngine):
    """An engine that must not be asked to prepare."""

    run_shard_tasks: Any = staticmethod(refuse_to_prepare)


@pytest.mark.parametrize("damage", ["a tensor is missing", "it is cut", "there is no tokenizer"])
def test_an_attempt_ends_before_anything_is_prepared(damage: str, whisper_folder: Path, tmp_path: Path) -> None:
    make, text = DAMAGES[damage]
    make(folder := shutil.copytree(whisper_folder, tmp_path / "model"))
    weights = {"init": "pretrained", "name_or_path": str(folder), "language": "English"}
    recipe = subject_of(tmp_path, {"model": weights}).config
    run = RunFolder.of(recipe)
    with pytest.raises(ConfigError, match=text):
        attempt.begin(AttemptRequest(recipe, Prepares(), run, [], None), StatusWriter(run, None))


class TestValues:
    """Found when the weights are loaded, since no header says them."""

    @pytest.mark.parametrize(
        ("value", "text"),
        [(float("nan"), "no finite numbers"), (float("inf"), "no finite numbers"), (0.0, "nothing but zeros")],
    )
    def test_what_no_training_leaves_is_refused(
        self, value: float, text: str, whisper_folder: Path, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(whisper_folder, tmp_path / "model")
        name = "model.decoder.layers.0.fc2.weight"
        tensors(lambda held: held[name].fill_(value))(folder)
        part = config({"model": {"init": "pretrained", "name_or_path": str(folder), "language": "English"}}).model
        with pytest.raises(ConfigError, match=rf"{re.escape(name)} holds .*{text}"):
            family_of(part).load_recognizer(part, None, 1)

    def test_a_tensor_that_is_missing_where_a_worker_loads_is_refused_too(
        self, whisper_folder: Path, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(whisper_folder, tmp_path / "model")
        tensors(lambda held: held.pop(NORM))(folder)
        part = config({"model": {"init": "pretrained", "name_or_path": str(folder), "language": "English"}}).model
        with pytest.raises(ConfigError, match=rf"they lack {NORM}"):
            weights_from_pretrained(part, WhisperForConditionalGeneration)


class TestHeads:
    """The output layer of a CTC model may be missing where a new one is made on purpose, and only there."""

    LACKS = staticmethod(tensors(lambda held: held.pop("lm_head.weight")))

    def test_weights_with_a_vocabulary_of_their_own_need_it(self, ctc_folder: Path, tmp_path: Path) -> None:
        self.LACKS(folder := shutil.copytree(ctc_folder, tmp_path / "model"))
        assert "they lack lm_head.weight" in refused(folder, tmp_path)
        assert "they lack lm_head.weight" in refused(folder, tmp_path / "own", model={"vocabulary": "own"})

    def test_a_new_vocabulary_needs_none(self, ctc_folder: Path, tmp_path: Path) -> None:
        self.LACKS(folder := shutil.copytree(ctc_folder, tmp_path / "model"))
        assert {level for level, _ in found(folder, tmp_path, model={"vocabulary": "characters"})} == {"ok"}

    @pytest.mark.parametrize("kind", [Wav2Vec2Model, Wav2Vec2ForPreTraining])
    def test_weights_of_another_class_get_one_and_lose_theirs(
        self, kind: Any, ctc_folder: Path, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(ctc_folder, tmp_path / "model")
        wanted = Wav2Vec2ForCTC.from_pretrained(ctc_folder).config
        wanted.update({"codevector_dim": 8, "proj_codevector_dim": 8})
        kind(wanted).save_pretrained(folder)
        assert {level for level, _ in found(folder, tmp_path)} == {"ok"}
        # What SpecAugment puts in place of frames is drawn anew where weights lack it, as many that are released do.
        inner = "" if kind is Wav2Vec2Model else "wav2vec2."
        tensors(lambda held: held.pop(f"{inner}masked_spec_embed"))(folder)
        assert {level for level, _ in found(folder, tmp_path / "unmasked")} == {"ok"}
        tensors(lambda held: held.update({f"{inner}encoder.more": torch.ones(2)}))(folder)
        assert re.search(r"they have, beyond it, .*encoder\.more", refused(folder, tmp_path / "more"))
        tensors(lambda held: held.pop(f"{inner}encoder.layer_norm.weight"))(folder)
        assert "they lack wav2vec2.encoder.layer_norm.weight" in refused(folder, tmp_path / "lacking")

    def test_what_is_no_weight_may_be_of_whole_numbers(self, ctc_folder: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(ctc_folder, tmp_path / "model")
        positions = {"wav2vec2.encoder.position_ids": torch.arange(5)[None]}
        tensors(lambda held: held.update(positions))(folder)
        assert {level for level, _ in found(folder, tmp_path)} == {"ok"}

    @pytest.mark.parametrize("fields", [{"vocabulary": "own"}, {"vocabulary": "characters"}])
    def test_what_replaces_masked_frames_may_be_there_where_none_are_masked(
        self, fields: dict[str, str], ctc_folder: Path, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(ctc_folder, tmp_path / "model")
        configured(mask_time_prob=0.0, mask_feature_prob=0.0)(folder)
        assert {level for level, _ in found(folder, tmp_path, model=fields)} == {"ok"}
        part = config({"model": {"init": "pretrained", "name_or_path": str(folder), "family": "ctc"}}).model
        family_of(part).load_recognizer(part, None, 1)

    def test_its_shape_may_be_another_only_where_it_is_new(self, ctc_folder: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(ctc_folder, tmp_path / "model")
        tensors(lambda held: held.update({"lm_head.weight": torch.ones(3, 16)}))(folder)
        assert "in another shape, lm_head.weight [3, 16]" in refused(folder, tmp_path)
        assert {level for level, _ in found(folder, tmp_path / "new", model={"vocabulary": "bpe"})} == {"ok"}


def test_the_documented_lines_merge_an_adapter(whisper_folder: Path, tmp_path: Path) -> None:
    adapter(tuned := shutil.copytree(whisper_folder, tmp_path / "tuned"))
    text = (Path(__file__).parents[4] / "docs" / "models.md").read_text(encoding="utf-8")
    (lines,) = [each for each in re.findall(r"```python\n(.*?)```", text, re.DOTALL) if "merge_and_unload" in each]
    merged = tmp_path / "merged"
    lines = lines.replace("openai/whisper-tiny", str(whisper_folder)).replace("my/adapter", str(tuned))
    exec(lines.replace("my/merged", str(merged)), {})
    assert {level for level, _ in found(merged, tmp_path / "data")} == {"ok"}
    expected = PeftModel.from_pretrained(WhisperForConditionalGeneration.from_pretrained(whisper_folder), str(tuned))
    weights = expected.merge_and_unload().state_dict()
    held = load_file(merged / SAFE)
    assert all(torch.equal(held[name], weights[name]) for name in held)


@pytest.mark.parametrize("damage", ["a tensor is missing", "it is cut", "an adapter is next to it"])
def test_weights_that_are_only_scored_are_refused_before_anything_is_prepared(
    damage: str, whisper_folder: Path, tmp_path: Path
) -> None:
    make, text = DAMAGES[damage]
    make(folder := shutil.copytree(whisper_folder, tmp_path / "model"))
    with pytest.raises(ConfigError, match=text):
        evaluate(subject_of(tmp_path).config, Prepares(), model=str(folder), split="test")


def test_looking_at_weights_leaves_no_lines_but_its_own(
    whisper_folder: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    tensors(lambda held: held.pop(NORM))(folder := shutil.copytree(whisper_folder, tmp_path / "model"))
    capfd.readouterr()
    refused(folder, tmp_path)
    assert capfd.readouterr() == ("", "")
