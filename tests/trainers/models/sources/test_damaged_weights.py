"""Weights that are not complete, not what their config describes, or not weights: refused by name, before preparing."""

import re
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
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
from tests.trainers.models.sources.weight_damage import (
    DAMAGES,
    NORM,
    PICKLES,
    SAFE,
    Damage,
    adapter,
    both,
    configured,
    pickled,
    sharded,
    sharded_pickles,
    tensors,
)
from tests.trainers.synthetic import config
from tests.web import WebServer, publish_repository
from trainers.config.storage_location import StorageOptions
from trainers.distributed.session import LocalSession
from trainers.errors import ConfigError
from trainers.findings import run_check
from trainers.inspection.model_checks import CHECKS
from trainers.models.families import family_of
from trainers.models.sources.loaded_weights import weights_from_pretrained
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.pipeline import attempt
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.evaluate import evaluate
from trainers.run_folder.attempt_request import AttemptRequest
from trainers.run_folder.attempt_status import StatusWriter
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage
from trainers.training.scoring_worker import open_model


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


@pytest.mark.parametrize("damage", DAMAGES)
@pytest.mark.integration
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


@pytest.mark.integration
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

    @pytest.mark.integration
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
    @pytest.mark.integration
    def test_sound_pickles_are_opened_without_them(
        self, form: Damage, hub: WebServer, whisper_folder: Path, tmp_path: Path, s3_bucket: str, s3_endpoint: str
    ) -> None:
        pickled(form)(folder := shutil.copytree(whisper_folder, tmp_path / "model"))
        open_storage(s3_bucket, StorageOptions(s3_endpoint)).upload_folder(folder, "model")
        publish_repository(hub, HUB_ID, folder)
        fields: dict[str, Any] = {"run.s3_endpoint_url": s3_endpoint, "model": {"allow_pickle": True}}
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
        attempt.begin(recipe, Prepares(), AttemptRequest(run), StatusWriter(run, None))


class TestValues:
    """Found when the weights are loaded, since no header says them."""

    @pytest.mark.parametrize(
        ("value", "text"),
        [(float("nan"), "not finite numbers"), (float("inf"), "not finite numbers"), (0.0, "only zeros")],
    )
    def test_what_no_training_leaves_is_refused(
        self, value: float, text: str, whisper_folder: Path, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(whisper_folder, tmp_path / "model")
        name = "model.decoder.layers.0.fc2.weight"
        tensors(lambda held: held[name].fill_(value))(folder)
        part = config({"model": {"init": "pretrained", "name_or_path": str(folder), "language": "English"}}).model
        with pytest.raises(ConfigError, match=rf"{re.escape(name)} has .*{text}"):
            family_of(part).load_recognizer(part, None, 1)

    def test_a_tensor_that_is_missing_where_a_worker_loads_is_refused_too(
        self, whisper_folder: Path, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(whisper_folder, tmp_path / "model")
        tensors(lambda held: held.pop(NORM))(folder)
        part = config({"model": {"init": "pretrained", "name_or_path": str(folder), "language": "English"}}).model
        with pytest.raises(ConfigError, match=rf"they lack {NORM}"):
            weights_from_pretrained(part, WhisperForConditionalGeneration)

    @pytest.mark.parametrize("damage", ["weights are quantized", "weights have 8 bits", "it is a pointer", "it is cut"])
    def test_what_no_check_has_seen_is_refused_where_it_is_loaded(
        self, damage: str, whisper_folder: Path, tmp_path: Path
    ) -> None:
        """As `transcribe` does."""
        make, text = DAMAGES[damage]
        make(folder := shutil.copytree(whisper_folder, tmp_path / "model"))
        with pytest.raises(ConfigError, match=text):
            open_model(subject_of(tmp_path).config, str(folder), LocalSession.of_this_process())

    @pytest.mark.filterwarnings("ignore:Detected pickle protocol")
    def test_a_quantized_pickle_is_refused_too(self, whisper_folder: Path, tmp_path: Path) -> None:
        make, text = PICKLES["weights are quantized"]
        pickled(make)(folder := shutil.copytree(whisper_folder, tmp_path / "model"))
        fields: Any = {"init": "pretrained", "name_or_path": str(folder), "language": "English", "allow_pickle": True}
        with pytest.raises(ConfigError, match=text):
            family_of(part := config({"model": fields}).model).load_recognizer(part, None, 1)


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
        assert re.search(r"they have, in addition, .*encoder\.more", refused(folder, tmp_path / "more"))
        tensors(lambda held: held.pop(f"{inner}encoder.layer_norm.weight"))(folder)
        assert "they lack wav2vec2.encoder.layer_norm.weight" in refused(folder, tmp_path / "lacking")

    def test_what_is_no_weight_may_be_of_whole_numbers(self, ctc_folder: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(ctc_folder, tmp_path / "model")
        positions = {"wav2vec2.encoder.position_ids": torch.arange(5)[None]}
        tensors(lambda held: held.update(positions))(folder)
        assert {level for level, _ in found(folder, tmp_path)} == {"ok"}
        part = config({"model": {"init": "pretrained", "name_or_path": str(folder), "family": "ctc"}}).model
        family_of(part).load_recognizer(part, None, 1)
        tensors(lambda held: held.update({"wav2vec2.encoder.more": torch.arange(5)[None]}))(folder)
        assert "they have, in addition, wav2vec2.encoder.more" in refused(folder, tmp_path / "more")

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
