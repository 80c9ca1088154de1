"""Tokenizer, feature extractor, encoder and decoder from places of their own; and the best model of another run."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    AutoConfig,
    AutoModelForSpeechSeq2Seq,
    BartForConditionalGeneration,
    BertModel,
    GPT2Config,
    GPT2LMHeadModel,
    OPTConfig,
    PreTrainedTokenizerFast,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Model,
)

from tests.trainers.models.sources.conftest import HUB_ID
from tests.trainers.models.sources.test_sources import opened, wanted, weights_of
from tests.trainers.run_folder.writers import begin, group_of, staged
from tests.trainers.synthetic import config, speechlike
from tests.web import WebServer, publish_repository
from trainers.config.parts.decode_part import GenerationPart
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions
from trainers.errors import ConfigError
from trainers.models.families import resolve_model
from trainers.models.recognizer import Decoding
from trainers.models.sources.loaded_weights import refuse_other_weights
from trainers.run_folder.checkpoints import RetentionPolicy, upload_staged
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage


@pytest.fixture(scope="module")
def decoder_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny GPT-2 of words."""
    folder = tmp_path_factory.mktemp("decoder")
    words = {word: number for number, word in enumerate(["<|endoftext|>", "one", "two", "three"])}
    backend = Tokenizer(models.WordLevel(words, unk_token="one"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    end = "<|endoftext|>"
    PreTrainedTokenizerFast(tokenizer_object=backend, bos_token=end, eos_token=end).save_pretrained(folder)
    torch.manual_seed(2)
    sizes: dict[str, Any] = {"n_embd": 16, "n_layer": 1, "n_head": 2, "n_positions": 64}
    GPT2LMHeadModel(GPT2Config(vocab_size=4, bos_token_id=0, eos_token_id=0, **sizes)).save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def encoder_folder(ctc_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The encoder of a tiny wav2vec2, and its feature extractor."""
    folder = tmp_path_factory.mktemp("encoder")
    Wav2Vec2Model.from_pretrained(ctc_folder).save_pretrained(folder)
    Wav2Vec2FeatureExtractor.from_pretrained(ctc_folder).save_pretrained(folder)
    return folder


def joined(encoder: object, decoder: object, **changes: Any) -> TrainConfig:
    return config({"run.seed": 7, "model": {"encoder": str(encoder), "decoder": str(decoder), **changes}})


def other_letters(folder: Path, target: Path) -> Path:
    """The tokenizer alone of a CTC model, with two letters exchanged."""
    target.mkdir()
    vocabulary = json.loads((folder / "vocab.json").read_bytes())
    vocabulary["a"], vocabulary["b"] = vocabulary["b"], vocabulary["a"]
    (target / "vocab.json").write_text(json.dumps(vocabulary))
    shutil.copy(folder / "tokenizer_config.json", target)
    return target


class TestParts:
    def test_a_tokenizer_of_its_own_stands_in_for_that_of_the_weights(
        self, ctc_folder: Path, tmp_path: Path, hub: WebServer
    ) -> None:
        commit = publish_repository(hub, HUB_ID, other_letters(ctc_folder, tmp_path / "words"), revision="v1")
        recipe = wanted(ctc_folder, tokenizer_name=f"{HUB_ID}@v1")
        found = opened(recipe)
        resolved, family = resolve_model(recipe, found)
        processor = family.open_processor(found.applied_to(resolved.model), None)
        own = family.open_processor(wanted(ctc_folder, family="ctc").model, None)
        assert family.encode_labels(own, ["abc"]) == [[3, 4, 5]]
        assert family.encode_labels(processor, ["abc"]) == [[4, 3, 5]]
        assert weights_of(found.folder) == weights_of(ctc_folder)
        assert found.pins["tokenizer_name"].record == {
            "source": f"{HUB_ID}@v1",
            "revision": commit,
            "sha256": None,
        }
        assert json.loads((ctc_folder / "vocab.json").read_bytes())["a"] == 3, "the source is as it was"

    def test_a_feature_extractor_of_its_own_does_as_well(self, ctc_folder: Path, tmp_path: Path) -> None:
        extractor = Wav2Vec2FeatureExtractor.from_pretrained(ctc_folder)
        extractor.do_normalize = False
        extractor.save_pretrained(tmp_path / "features")
        recipe = wanted(ctc_folder, feature_extractor_name=str(tmp_path / "features"))
        for weights in (False, True):
            found = opened(recipe, weights=weights)
            resolved, family = resolve_model(recipe, found)
            processor = family.open_processor(found.applied_to(resolved.model), None)
            assert processor.feature_extractor.do_normalize is False
            assert family.encode_labels(processor, ["abc"]) == [[3, 4, 5]]

    def test_a_tokenizer_with_more_tokens_than_the_weights_have_outputs_is_refused(
        self, ctc_folder: Path, tmp_path: Path
    ) -> None:
        words = other_letters(ctc_folder, tmp_path / "words")
        vocabulary = json.loads((words / "vocab.json").read_bytes())
        (words / "vocab.json").write_text(json.dumps({**vocabulary, "ß": 31}))
        recipe = wanted(ctc_folder, tokenizer_name=str(words))
        found = opened(recipe)
        resolved, family = resolve_model(recipe, found)
        with pytest.raises(ConfigError, match=r"its tokenizer 1 tokens beyond them: ß \(31\)"):
            family.open_processor(found.applied_to(resolved.model), None)

    def test_an_encoder_without_outputs_gets_those_of_the_tokenizer(
        self, ctc_folder: Path, encoder_folder: Path, tmp_path: Path
    ) -> None:
        recipe = wanted(encoder_folder, tokenizer_name=str(other_letters(ctc_folder, tmp_path / "words")))
        found = opened(recipe)
        resolved, family = resolve_model(recipe, found)
        part = found.applied_to(resolved.model)
        assert not family.learns_processor(part)
        recognizer = family.load_recognizer(part, None, seed=1)
        assert recognizer.model.lm_head.weight.shape[0] == len(recognizer.processor.tokenizer)
        assert family.encode_labels(recognizer.processor, ["abc"]) == [[4, 3, 5]]

    def test_a_tokenizer_next_to_another_vocabulary_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="tokenizer_name has a vocabulary, and vocabulary bpe requests another"):
            wanted("a/b", tokenizer_name="c/d", vocabulary="bpe")

    def test_what_has_no_tokenizer_is_named(self, ctc_folder: Path, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        with pytest.raises(ConfigError, match=rf"model\.tokenizer_name: {tmp_path}/empty holds no tokenizer \("):
            opened(wanted(ctc_folder, tokenizer_name=str(tmp_path / "empty")))

    @pytest.mark.parametrize(("part", "file"), [("decoder", "tokenizer"), ("encoder", "feature extractor")])
    def test_a_part_of_a_composed_model_needs_its_files(
        self, part: str, file: str, encoder_folder: Path, decoder_folder: Path, tmp_path: Path
    ) -> None:
        """transformers opens a GPT-2 without them with an empty vocabulary, by which each text is empty."""
        parts = {"encoder": encoder_folder, "decoder": decoder_folder}
        lacking = shutil.copytree(parts[part], tmp_path / part)
        for path in [*lacking.glob("tokenizer*"), *lacking.glob("*processor*")]:
            path.unlink()
        with pytest.raises(ConfigError, match=rf"model\.{part}: {lacking} holds no {file} \(.*copy the complete"):
            opened(joined(**{**parts, part: lacking}))


class TestWarmStart:
    def test_an_encoder_and_a_decoder_begin_a_model_that_recognizes(
        self, encoder_folder: Path, decoder_folder: Path
    ) -> None:
        recipe = joined(encoder_folder, decoder_folder)
        found = opened(recipe)
        resolved, family = resolve_model(recipe, found)
        assert family.name == "seq2seq"
        recognizer = family.load_recognizer(found.applied_to(resolved.model), None, seed=1)
        assert family.encode_labels(recognizer.processor, ["two one"]) == [[2, 1, 0]]
        inputs = recognizer.new_features().inputs([torch.from_numpy(speechlike(1.0))], None)
        (hypothesis,) = recognizer.recognize(inputs, [[2, 1, 0]], Decoding(GenerationPart(max_length=5)))
        assert hypothesis.loss is not None and hypothesis.loss > 0
        decoder = GPT2LMHeadModel.from_pretrained(decoder_folder)
        assert torch.equal(recognizer.model.decoder.transformer.wte.weight, decoder.transformer.wte.weight)
        encoder = Wav2Vec2Model.from_pretrained(encoder_folder)
        ours = recognizer.model.encoder.feature_projection.projection.weight
        assert torch.equal(ours, encoder.feature_projection.projection.weight)

    def test_what_is_new_in_it_is_the_same_on_every_node(
        self, encoder_folder: Path, decoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def attention(recipe: TrainConfig, node: str) -> torch.Tensor:
            (tmp_path / node).mkdir(exist_ok=True)
            monkeypatch.setattr("tempfile.tempdir", str(tmp_path / node))
            network = AutoModelForSpeechSeq2Seq.from_pretrained(str(opened(recipe).folder))
            weight: torch.Tensor = network.decoder.transformer.h[0].crossattention.q_attn.weight
            return weight

        recipe = joined(encoder_folder, decoder_folder)
        assert torch.equal(attention(recipe, "a"), attention(recipe, "b"))
        other = recipe.model_copy(update={"run": recipe.run.model_copy(update={"seed": 8})})
        assert not torch.equal(attention(recipe, "a"), attention(other, "a"))

    def test_its_description_needs_no_weights(self, encoder_folder: Path, decoder_folder: Path) -> None:
        recipe = joined(encoder_folder, decoder_folder)
        described, whole = opened(recipe, weights=False), opened(recipe)
        assert described.folder is not None
        assert not list(described.folder.glob("*.safetensors"))
        ours, theirs = (AutoConfig.from_pretrained(str(each.folder)).to_dict() for each in (described, whole))
        for name in ("decoder_start_token_id", "eos_token_id", "pad_token_id", "model_type"):
            assert ours[name] == theirs[name]
        assert str(encoder_folder) not in (described.folder / "config.json").read_text()

    @pytest.mark.parametrize("kind", ["bart", "bert"])
    def test_what_a_decoder_says_depends_on_the_encoder(
        self, encoder_folder: Path, decoder_folder: Path, tmp_path: Path, kind: str
    ) -> None:
        shutil.copytree(decoder_folder, tmp_path / kind)
        bart = {"d_model": 16, "decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
        bert = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        sizes: dict[str, Any] = bart | {"encoder_layers": 1, "encoder_attention_heads": 2} if kind == "bart" else bert
        described = AutoConfig.for_model(kind, vocab_size=4, pad_token_id=0, max_position_embeddings=64, **sizes)
        network: Any = BartForConditionalGeneration if kind == "bart" else BertModel
        network(described).save_pretrained(tmp_path / kind)
        model = AutoModelForSpeechSeq2Seq.from_pretrained(
            str(opened(joined(encoder_folder, tmp_path / kind)).folder)
        ).eval()
        sounds, tokens = torch.randn(2, 16_000), torch.ones(2, 3, dtype=torch.int64)
        with torch.no_grad():
            one, other = model(input_values=sounds, decoder_input_ids=tokens).logits
        assert not torch.allclose(one, other)

    def test_a_decoder_keeps_the_embeddings_that_its_encoder_shared(
        self, encoder_folder: Path, decoder_folder: Path, tmp_path: Path
    ) -> None:
        shutil.copytree(decoder_folder, tmp_path / "bart")
        sizes = {"d_model": 16, "encoder_layers": 1, "encoder_attention_heads": 2, "encoder_ffn_dim": 16}
        sizes |= {"decoder_layers": 1, "decoder_attention_heads": 2, "decoder_ffn_dim": 16}
        described: Any = AutoConfig.for_model("bart", vocab_size=4, pad_token_id=0, **sizes)
        bart = BartForConditionalGeneration(described)
        bart.save_pretrained(tmp_path / "bart")
        refuse_other_weights_of({"encoder": encoder_folder, "decoder": tmp_path / "bart"})
        folder = opened(joined(encoder_folder, tmp_path / "bart")).folder
        decoder = AutoModelForSpeechSeq2Seq.from_pretrained(str(folder)).decoder
        assert torch.equal(decoder.model.decoder.embed_tokens.weight, bart.model.shared.weight)
        assert torch.equal(decoder.lm_head.weight, bart.model.shared.weight)

    def test_what_cannot_attend_to_an_encoder_is_refused(
        self, encoder_folder: Path, decoder_folder: Path, ctc_folder: Path, tmp_path: Path
    ) -> None:
        with pytest.raises(ConfigError, match=r"has model_type wav2vec2, which AutoModelForCausalLM does not open"):
            opened(joined(encoder_folder, ctc_folder))
        shutil.copytree(decoder_folder, tmp_path / "opt")
        OPTConfig(vocab_size=4).save_pretrained(tmp_path / "opt")
        with pytest.raises(ConfigError, match="models of the model_type opt cannot attend to an encoder"):
            opened(joined(encoder_folder, tmp_path / "opt"))

    @pytest.mark.parametrize(
        ("model", "message"),
        [
            ({"encoder": "a/b"}, "encoder is given alone"),
            ({"encoder": "a/b", "decoder": "c", "name_or_path": "d"}, "keep one of them"),
            (
                {"encoder": "a/b", "decoder": "c", "family": "whisper"},
                "model.decoder: unknown key: a field of the family",
            ),
        ],
    )
    def test_where_it_means_nothing_it_is_refused(self, model: dict[str, str], message: str) -> None:
        with pytest.raises(ConfigError, match=message):
            config({"model": model})


class TestDamagedParts:
    @pytest.mark.parametrize(
        ("part", "name"), [("encoder", "encoder.layer_norm.weight"), ("decoder", "transformer.h.0.mlp.c_fc.weight")]
    )
    def test_one_without_a_tensor_is_refused_by_its_field(
        self, part: str, name: str, encoder_folder: Path, decoder_folder: Path, tmp_path: Path
    ) -> None:
        folders = {"encoder": encoder_folder, "decoder": decoder_folder}
        refuse_other_weights_of(folders)
        damaged = shutil.copytree(folders[part], tmp_path / part)
        weights = load_file(damaged / "model.safetensors")
        del weights[name]
        save_file(weights, damaged / "model.safetensors", metadata={"format": "pt"})
        with pytest.raises(ConfigError, match=rf"model\.{part}: {damaged}: .* they lack {name}"):
            refuse_other_weights_of({**folders, part: damaged})


def refuse_other_weights_of(folders: dict[str, Path]) -> None:
    recipe = config({"model": {**{name: str(folder) for name, folder in folders.items()}, "language": "English"}})
    found = opened(recipe, weights=False)
    recipe, family = resolve_model(recipe, found)
    refuse_other_weights(recipe, found.applied_to(recipe.model), family, found)


class TestAnotherRun:
    @pytest.mark.parametrize("kind", ["folder", "bucket"])
    def test_its_best_model_is_the_one_that_its_journal_names(
        self, ctc_folder: Path, tmp_path: Path, request: pytest.FixtureRequest, kind: str
    ) -> None:
        path, options = str(tmp_path / "runs"), StorageOptions()
        if kind == "bucket":
            path = request.getfixturevalue("s3_bucket")
            options = StorageOptions(request.getfixturevalue("s3_endpoint"))
        folder = RunFolder(open_storage(f"{path}/teacher", options))
        run = {"run.storage_path": path, "run.s3_endpoint_url": options.s3_endpoint_url}
        recipe = wanted("run:teacher", **run)
        with pytest.raises(ConfigError, match=r"run:teacher: there is no run teacher in"):
            opened(recipe)
        writer = group_of(begin(folder), "x")
        with pytest.raises(ConfigError, match=r"has not finished, and has no best model yet: wait$"):
            opened(recipe)
        checkpoint = staged(tmp_path / "staged", 20)
        upload_staged(checkpoint, writer, RetentionPolicy(None, "eval_wer"))
        with pytest.raises(ConfigError, match=rf"run\.resume: from:.*/teacher/checkpoints/{checkpoint.name}\)"):
            opened(recipe)
        outputs = writer.group.outputs
        folder.storage.upload_folder(ctc_folder, f"{outputs}/model")
        entry = {"kind": "finished", "attempt": 1, "outputs": outputs, "files": [], "result": {}}
        writer.append(lambda state: entry)
        folder.storage.write_bytes("model/config.json", b"what people see")
        found = opened(recipe)
        assert weights_of(found.folder) == weights_of(ctc_folder)
        assert found.pins["name_or_path"].record["source"] == "run:teacher"
