"""A model of the Hub, or of another run, that is only scored: opened as one that is trained."""

import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCTC, Wav2Vec2ForPreTraining

from tests.trainers.inspection.checking import subject_of
from tests.trainers.models.sources.conftest import HUB_ID
from tests.trainers.models.sources.test_damaged_weights import Prepares
from tests.trainers.models.sources.test_sources import weights_of
from tests.trainers.synthetic import config
from tests.web import WebServer, publish_repository
from trainers.distributed.session import LocalSession
from trainers.errors import ConfigError
from trainers.models.adaptation.base_weights import fingerprint
from trainers.models.families import family_of, model_config_for_scoring
from trainers.pipeline.evaluate import evaluate
from trainers.training.scoring_worker import open_model


def opened(name: str, **model: Any) -> Any:
    """The network that is scored."""
    recipe = config({"model": {"name_or_path": HUB_ID, "family": "ctc", **model}})
    return open_model(recipe, name, LocalSession.of_this_process()).model


def test_one_of_the_hub_is_scored_by_its_safetensors(hub: WebServer, on_hub: str, ctc_folder: Path) -> None:
    assert fingerprint(opened(HUB_ID)) == weights_of(ctc_folder)
    assert len(hub.gets(f"/{HUB_ID}/resolve/{on_hub}/model.safetensors")) == 1


def test_where_the_recipe_took_parts_from_is_not_asked(hub: WebServer, on_hub: str, ctc_folder: Path) -> None:
    assert fingerprint(opened(HUB_ID, tokenizer_name="nobody/nothing")) == weights_of(ctc_folder)
    joined = config({"model": {"encoder": "nobody/a", "decoder": "nobody/b"}})
    assert model_config_for_scoring(joined.model, str(ctc_folder)).name_or_path == str(ctc_folder)


def test_one_that_is_pickled_is_not(hub: WebServer, ctc_folder: Path, tmp_path: Path) -> None:
    folder = shutil.copytree(ctc_folder, tmp_path / "pickled")
    network = AutoModelForCTC.from_pretrained(folder)
    (folder / "model.safetensors").unlink()
    torch.save(network.state_dict(), folder / "pytorch_model.bin")
    publish_repository(hub, HUB_ID, folder)
    with pytest.raises(ConfigError, match=r"pytorch_model\.bin\) can run code .* set model\.allow_pickle: true"):
        opened(HUB_ID)
    assert fingerprint(opened(HUB_ID, allow_pickle=True)) == weights_of(ctc_folder)


@pytest.mark.parametrize("vocabulary", [None, "own", "characters"])
def test_one_without_an_output_layer_is_refused_whatever_the_recipe_makes_anew(
    vocabulary: str | None, ctc_folder: Path, tmp_path: Path
) -> None:
    folder = shutil.copytree(ctc_folder, tmp_path / "pretrained")
    wanted = AutoModelForCTC.from_pretrained(ctc_folder).config
    wanted.update({"codevector_dim": 8, "proj_codevector_dim": 8})
    Wav2Vec2ForPreTraining(wanted).save_pretrained(folder)
    lacks = r"they lack lm_head\.bias, lm_head\.weight: copy"
    model = {"init": "pretrained", "name_or_path": str(ctc_folder), "family": "ctc", "vocabulary": vocabulary}
    part = model_config_for_scoring(config({"model": model}).model, str(folder))
    with pytest.raises(ConfigError, match=lacks):
        family_of(part).load_recognizer(part, None, 1)
    with pytest.raises(ConfigError, match=lacks):
        evaluate(subject_of(tmp_path, {"model": model}).config, Prepares(), model=str(folder), split="test")
