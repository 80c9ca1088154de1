"""A model from everywhere that a recipe may name: opened as one folder of the node, recorded, and fetched once."""

import json
import shutil
import zipfile
from pathlib import Path
from typing import Any

import huggingface_hub.constants
import pytest
from transformers import AutoModelForCTC

from tests.trainers.models.sources.conftest import HUB_ID
from tests.trainers.synthetic import config
from tests.web import WebServer, publish_repository
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions
from trainers.errors import ConfigError, StorageError
from trainers.models.adaptation.base_weights import fingerprint
from trainers.models.families import resolve_model
from trainers.models.sources.opened_model import OpenedModel, open_sources, pin_sources
from trainers.storage import open_storage, sha256_of


def wanted(source: object, **changes: Any) -> TrainConfig:
    """A config whose weights are there."""
    run = {name: changes.pop(name) for name in [*changes] if name.startswith("run.")}
    return config({**run, "model": {"name_or_path": str(source), **changes}})


def opened(recipe: TrainConfig, *, weights: bool = True) -> OpenedModel:
    return open_sources(recipe, pin_sources(recipe, hashed=True), weights=weights)


def weights_of(folder: Path | None) -> str:
    """Hash of the weights in a folder."""
    return fingerprint(AutoModelForCTC.from_pretrained(str(folder)))


def zipped(folder: Path, file: Path, inside: str = "model") -> Path:
    """A zip of a folder."""
    with zipfile.ZipFile(file, "w") as archive:
        for path in sorted(folder.iterdir()):
            archive.write(path, f"{inside}/{path.name}")
    return file


class TestAFolder:
    def test_it_is_opened_where_it_is_and_known_by_its_content(self, ctc_folder: Path, tmp_path: Path) -> None:
        found = opened(wanted(ctc_folder))
        assert found.folder == ctc_folder
        assert not found.is_own
        copy = shutil.copytree(ctc_folder, tmp_path / "copy")
        (copy / "README.md").write_text("other words")
        assert opened(wanted(copy)).pins["name_or_path"].sha256 == found.pins["name_or_path"].sha256
        (copy / "config.json").write_text("{}")
        assert pin_sources(wanted(copy), hashed=True)["name_or_path"].sha256 != found.pins["name_or_path"].sha256

    def test_pickled_weights_are_refused_by_name_unless_the_recipe_allows_them(
        self, ctc_folder: Path, tmp_path: Path
    ) -> None:
        folder = shutil.copytree(ctc_folder, tmp_path / "pickled")
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        with pytest.raises(ConfigError, match=r"pytorch_model\.bin\) can run code .* set model\.allow_pickle: true"):
            opened(wanted(folder))
        assert opened(wanted(folder, allow_pickle=True)).folder == folder

    def test_one_that_lacks_a_shard_of_its_weights_is_not_opened(self, ctc_folder: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(ctc_folder, tmp_path / "sharded")
        (folder / "model.safetensors").rename(folder / "model-00001-of-00002.safetensors")
        shards = {"a": "model-00001-of-00002.safetensors", "b": "model-00002-of-00002.safetensors"}
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
        with pytest.raises(StorageError, match=r"model-00002-of-00002\.safetensors, which .* names, is missing"):
            opened(wanted(folder))
        shards["b"] = "../model.safetensors"
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": shards}))
        with pytest.raises(ConfigError, match=r"'\.\./model\.safetensors', which is not a file of weights next to it"):
            opened(wanted(folder))

    def test_code_that_comes_with_it_is_never_run(self, ctc_folder: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(ctc_folder, tmp_path / "own_code")
        content = json.loads((folder / "config.json").read_bytes())
        content |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.MyConfig"}}
        (folder / "config.json").write_text(json.dumps(content))
        (folder / "mine.py").write_text("raise SystemExit('it was run')")
        recipe = wanted(folder)
        with pytest.raises(ConfigError, match=r"names code of its own \(auto_map\), which Rayscribe never runs"):
            resolve_model(recipe, opened(recipe))


class TestABucket:
    def test_a_folder_in_it_is_fetched_in_parts_that_are_needed(
        self, ctc_folder: Path, s3_bucket: str, s3_endpoint: str
    ) -> None:
        open_storage(s3_bucket, StorageOptions(s3_endpoint)).upload_folder(ctc_folder, "models/a")
        recipe = wanted(f"{s3_bucket}/models/a", **{"run.s3_endpoint_url": s3_endpoint})
        described = opened(recipe, weights=False)
        assert described.folder is not None
        assert not (described.folder / "model.safetensors").exists()
        assert resolve_model(recipe, described)[1].name == "ctc"
        whole = opened(recipe)
        assert weights_of(whole.folder) == weights_of(ctc_folder)
        assert whole.is_own

    def test_one_that_changes_after_an_attempt_began_is_not_mixed(
        self, ctc_folder: Path, s3_bucket: str, s3_endpoint: str
    ) -> None:
        storage = open_storage(s3_bucket, StorageOptions(s3_endpoint))
        storage.upload_folder(ctc_folder, "a")
        recipe = wanted(f"{s3_bucket}/a", **{"run.s3_endpoint_url": s3_endpoint})
        pins = pin_sources(recipe)
        storage.write_bytes("a/config.json", b"{}")
        with pytest.raises(ConfigError, match="has changed since this attempt began"):
            open_sources(recipe, pins, weights=True)
        assert pin_sources(recipe)["name_or_path"].differs_from(pins["name_or_path"].record)

    @pytest.mark.integration
    def test_folders_of_one_base_name_do_not_clash(
        self, ctc_folder: Path, tmp_path: Path, s3_bucket: str, s3_endpoint: str
    ) -> None:
        storage = open_storage(s3_bucket, StorageOptions(s3_endpoint))
        other = shutil.copytree(ctc_folder, tmp_path / "model")
        network = AutoModelForCTC.from_pretrained(other)
        network.lm_head.weight.data.add_(1.0)
        network.wav2vec2.masked_spec_embed.data.add_(1.0)
        network.save_pretrained(other)
        storage.upload_folder(ctc_folder, "one/model")
        storage.upload_folder(other, "two/model")
        options = {"run.s3_endpoint_url": s3_endpoint}
        found = [opened(wanted(f"{s3_bucket}/{name}/model", **options)).folder for name in ("one", "two")]
        assert [weights_of(each) for each in found] == [weights_of(ctc_folder), weights_of(other)]
        assert weights_of(found[0]) != weights_of(found[1])

    def test_an_archive_in_it_is_unpacked(
        self, ctc_folder: Path, tmp_path: Path, s3_bucket: str, s3_endpoint: str
    ) -> None:
        storage = open_storage(s3_bucket, StorageOptions(s3_endpoint))
        storage.upload_file(zipped(ctc_folder, tmp_path / "a.zip"), "models/a.zip")
        found = opened(wanted(f"{s3_bucket}/models/a.zip", **{"run.s3_endpoint_url": s3_endpoint}))
        assert weights_of(found.folder) == weights_of(ctc_folder)


class TestAnHttpsUrl:
    def test_its_archive_is_unpacked_once_and_not_asked_for_again(
        self, ctc_folder: Path, tmp_path: Path, web: WebServer
    ) -> None:
        file = zipped(ctc_folder, tmp_path / "a.zip")
        url = web.publish("/a.zip", file.read_bytes())
        recipe = wanted(f"{url}#sha256={sha256_of(file)}")
        assert weights_of(opened(recipe, weights=False).folder) == weights_of(ctc_folder)
        assert opened(recipe).pins["name_or_path"].record["sha256"] == sha256_of(file)
        assert web.gets("/a.zip") == [None]

    def test_without_a_hash_it_is_downloaded_again_only_when_it_has_changed(
        self, ctc_folder: Path, tmp_path: Path, web: WebServer
    ) -> None:
        content = zipped(ctc_folder, tmp_path / "a.zip").read_bytes()
        recipe = wanted(web.publish("/a.zip", content))
        first = opened(recipe)
        web.pages["/a.zip"].cuts = [100]
        assert opened(recipe) == first
        other = zipped(ctc_folder, tmp_path / "b.zip", inside="other")
        web.publish("/a.zip", other.read_bytes())
        assert opened(recipe).pins["name_or_path"].sha256 == sha256_of(other)

    def test_the_query_of_its_url_is_in_no_record_and_no_message(
        self, ctc_folder: Path, tmp_path: Path, web: WebServer
    ) -> None:
        url = web.publish("/a.zip", zipped(ctc_folder, tmp_path / "a.zip").read_bytes())
        pin = pin_sources(wanted(f"{url}?signature=secret"))["name_or_path"]
        assert pin.record["source"] == url
        with pytest.raises(ConfigError) as caught:
            pin_sources(wanted(f"{web.url}/none.zip?signature=secret"))
        assert f"{web.url}/none.zip: no file is there" in str(caught.value)
        assert "secret" not in str(caught.value)


class TestTheHub:
    def test_a_revision_is_the_commit_that_it_was_when_the_run_began(
        self, hub: WebServer, on_hub: str, ctc_folder: Path, tmp_path: Path
    ) -> None:
        recipe = wanted(HUB_ID)
        pin = opened(recipe).pins["name_or_path"]
        assert (pin.record["source"], pin.revision) == (HUB_ID, on_hub)
        newer = shutil.copytree(ctc_folder, tmp_path / "newer")
        (newer / "config.json").write_text("{}")
        moved = publish_repository(hub, HUB_ID, newer)
        assert pin_sources(recipe)["name_or_path"].revision == moved != on_hub
        known = {"name_or_path": pin.record}
        assert pin_sources(recipe, known)["name_or_path"].revision == on_hub
        again = open_sources(recipe, pin_sources(recipe, known), weights=True)
        assert weights_of(again.folder) == weights_of(ctc_folder)

    def test_a_revision_stands_behind_its_id_or_in_a_field_of_its_own(
        self, hub: WebServer, on_hub: str, ctc_folder: Path, tmp_path: Path
    ) -> None:
        other = shutil.copytree(ctc_folder, tmp_path / "other")
        (other / "added.json").write_text("{}")
        commit = publish_repository(hub, HUB_ID, other, revision="v2")
        for recipe in (wanted(f"{HUB_ID}@v2"), wanted(HUB_ID, revision="v2")):
            assert pin_sources(recipe)["name_or_path"].revision == commit != on_hub

    def test_the_description_is_downloaded_without_the_weights(self, hub: WebServer, on_hub: str) -> None:
        recipe = wanted(HUB_ID)
        assert resolve_model(recipe, opened(recipe, weights=False))[1].name == "ctc"
        assert hub.gets(f"/{HUB_ID}/resolve/{on_hub}/model.safetensors") == []

    def test_a_download_that_is_cut_is_not_taken_for_whole(self, hub: WebServer, on_hub: str, ctc_folder: Path) -> None:
        file = f"/{HUB_ID}/resolve/{on_hub}/model.safetensors"
        hub.pages[file].cuts = [1000]
        assert weights_of(opened(wanted(HUB_ID)).folder) == weights_of(ctc_folder)
        assert len(hub.gets(file)) == 2

    def test_pickled_weights_are_not_even_downloaded(self, hub: WebServer, ctc_folder: Path, tmp_path: Path) -> None:
        folder = shutil.copytree(ctc_folder, tmp_path / "pickled")
        (folder / "model.safetensors").rename(folder / "pytorch_model.bin")
        commit = publish_repository(hub, HUB_ID, folder)
        with pytest.raises(ConfigError, match=rf"{HUB_ID}: .*pytorch_model\.bin\) can run code"):
            pin_sources(wanted(HUB_ID))
        allowed = opened(wanted(HUB_ID, allow_pickle=True)).folder
        assert allowed is not None
        assert (allowed / "pytorch_model.bin").exists()
        assert hub.gets(f"/{HUB_ID}/resolve/{commit}/pytorch_model.bin") == [None]

    def test_one_that_does_not_respond_is_read_from_the_cache_of_the_node(
        self, hub: WebServer, on_hub: str, ctc_folder: Path
    ) -> None:
        opened(wanted(HUB_ID))
        for page in hub.pages.values():
            page.statuses = [503] * 100
        assert weights_of(opened(wanted(HUB_ID)).folder) == weights_of(ctc_folder)

    def test_offline_it_is_read_from_the_cache_of_the_node_and_nobody_is_asked(
        self, hub: WebServer, on_hub: str, ctc_folder: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        opened(wanted(HUB_ID))
        monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
        hub.requests.clear()
        assert weights_of(opened(wanted(HUB_ID)).folder) == weights_of(ctc_folder)
        assert hub.requests == []

    def test_an_unknown_repository_is_an_error_of_the_recipe(self, hub: WebServer) -> None:
        with pytest.raises(ConfigError, match=r"model\.name_or_path: nobody/nothing cannot be opened"):
            pin_sources(wanted("nobody/nothing"))
