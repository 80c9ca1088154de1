"""CTC models of every architecture: lengths, padding, loss, vocabulary, and folders that others open."""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch
from transformers import (
    AutoModelForCTC,
    AutoProcessor,
    UniSpeechSatConfig,
    UniSpeechSatModel,
    Wav2Vec2FeatureExtractor,
    pipeline,
)

from tests.trainers.synthetic import config, speechlike
from trainers.config.parts.model_part import ModelPart
from trainers.data.features import LENGTHS
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_decode_part import CtcDecodePart
from trainers.models.ctc.ctc_family import CtcFamily
from trainers.models.ctc.ctc_part import CtcArchitecture, CtcPart
from trainers.models.ctc.ctc_recognizer import CtcRecognizer, SampleConvolution, pad_labels
from trainers.models.families import family_of, family_of_folder, refuse_unsupported, resolve_model
from trainers.models.family import Family
from trainers.models.recognizer import IGNORED_LABEL, Decoding, Recognition, Target

FAMILY: Family[Any] = CtcFamily()
TEXTS = ["one two", "three", "four four"]
RATE_HZ = 16_000
KINDS = [(architecture, "layer") for architecture in get_args(CtcArchitecture)] + [("wav2vec2", "group")]


def part(**changes: Any) -> ModelPart:
    """The model part of a tiny new CTC model."""
    small: dict[str, Any] = {"init": "scratch", "family": "ctc", "d_model": 16, "encoder_layers": 1}
    if changes.get("architecture", "wav2vec2-bert") != "wav2vec2-bert":
        small["feature_encoder_dim"] = 8
    return config({"model": {**small, "attention_heads": 2, **changes}}).model


def build(folder: Path, model: ModelPart) -> CtcRecognizer:
    """A tiny new model."""
    FAMILY.write_description(folder, TEXTS, model)
    recognizer = FAMILY.load_recognizer(model, folder, seed=1)
    assert isinstance(recognizer, CtcRecognizer)
    recognizer.model.eval()
    return recognizer


@pytest.fixture(params=KINDS, ids=" ".join)
def recognizer(request: pytest.FixtureRequest, tmp_path: Path) -> CtcRecognizer:
    architecture, norm = request.param
    return build(tmp_path / "description", part(architecture=architecture, feat_extract_norm=norm))


def clip(duration_s: float, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(speechlike(duration_s, seed))


def given(inputs: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in inputs.items() if name != LENGTHS}


class TestLengths:
    def test_outputs_are_counted_as_the_model_gives_them(self, recognizer: CtcRecognizer) -> None:
        frames = recognizer.limits.frames
        assert frames is not None
        for samples in (4000, 4159, 4160, 5000, 8000, 16_001):
            one = torch.from_numpy(speechlike(1.1)[:samples])
            inputs = recognizer.new_features().inputs([one], None)
            with torch.no_grad():
                outputs = recognizer.model(**given(inputs)).logits.shape[1]
            assert int(frames([samples])[0]) == int(recognizer._frames(inputs[LENGTHS])[0]) == outputs, samples

    def test_a_clip_too_short_for_one_output_has_none(self, recognizer: CtcRecognizer) -> None:
        frames = recognizer.limits.frames
        assert frames is not None and frames(np.array([0, 100])).tolist() == [0, 0]


class TestPadding:
    def test_it_moves_the_outputs_of_those_models_alone_that_see_it(self, recognizer: CtcRecognizer) -> None:
        features, one = recognizer.new_features(), clip(0.62)
        alone, padded = features.inputs([one], None), features.inputs([one, clip(1.4, 1)], 2.0)
        with torch.no_grad():
            expected = recognizer.model(**given(alone)).logits[0]
            found = recognizer.model(**given(padded)).logits[0, : len(expected)]
        assert ((found - expected).abs().max() > 1e-4) == recognizer.limits.padding_affects_output

    def test_the_input_is_what_the_extractor_gives_of_each_clip_alone(self, recognizer: CtcRecognizer) -> None:
        clips = [clip(0.62), clip(1.4, 1)]
        inputs = recognizer.new_features().inputs(clips, 2.0)
        extractor = recognizer.processor.feature_extractor
        name = extractor.model_input_names[0]
        for row, one, length in zip(inputs[name], clips, inputs[LENGTHS].tolist(), strict=True):
            alone = extractor(one.numpy().astype(np.float32) / 32768, sampling_rate=RATE_HZ, return_tensors="pt")
            assert torch.equal(row[:length], alone[name][0, :length])
            assert bool((row[length:] == extractor.padding_value).all())

    def test_it_is_as_long_as_the_edge_says_whatever_else_is_in_the_batch(self, recognizer: CtcRecognizer) -> None:
        features = recognizer.new_features()
        name = recognizer.processor.feature_extractor.model_input_names[0]
        widths = {features.inputs([clip(seconds)], 2.0)[name].shape[1] for seconds in (0.5, 1.1, 2.0)}
        assert len(widths) == 1


class TestMasks:
    def test_bins_are_a_view_of_the_input_from_low_to_high_frequencies(self, recognizer: CtcRecognizer) -> None:
        features = recognizer.new_features()
        name = recognizer.processor.feature_extractor.model_input_names[0]
        inputs = features.inputs([clip(1.0)], 1.5)
        (bins,) = features.bins(inputs)
        assert (bins.shape[0] > 1) == recognizer.limits.has_bins
        assert bins.shape[1] / 1.5 == pytest.approx(100 if recognizer.limits.has_bins else RATE_HZ, rel=0.03)
        before = inputs[name].clone()
        bins[:, 20:40] = 7.0
        changed = torch.nonzero((inputs[name] != before)[0].reshape(len(before[0]), -1).any(1)).flatten()
        stride = 2 if recognizer.limits.has_bins else 1
        assert (int(changed[0]), int(changed[-1])) == (20 // stride, 40 // stride - 1)


class TestLoss:
    def batch(self, recognizer: CtcRecognizer) -> tuple[dict[str, torch.Tensor], torch.Tensor]:
        clips = [clip(0.5 + number / 4, number) for number in range(len(TEXTS))]
        labels = pad_labels(recognizer.encode_labels(TEXTS))["labels"]
        return recognizer.new_features().inputs(clips, 1.5), labels

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_it_is_the_reference_s_of_each_clip_alone(self, tmp_path: Path, reduction: str) -> None:
        recognizer = build(tmp_path, part(architecture="wav2vec2", ctc_loss_reduction=reduction))
        inputs, labels = self.batch(recognizer)
        with torch.no_grad():
            outputs = recognizer.model(**given(inputs))
            found = recognizer.loss(outputs, Target(labels, inputs[LENGTHS]), None)
            alone = [
                recognizer.model(
                    **given(recognizer.new_features().inputs([clip(0.5 + row / 4, row)], None)), labels=ids
                )
                for row, ids in enumerate(labels[:, None])
            ]
        sizes = labels.ne(IGNORED_LABEL).sum(dim=-1)
        each = torch.stack([output.loss for output in alone])
        expected = each.mean() if reduction == "mean" else each.sum() / sizes.sum()
        torch.testing.assert_close(found, expected)

    @pytest.mark.parametrize("reduction", ["mean", "sum"])
    def test_parts_of_a_global_batch_add_up_and_fillers_cost_nothing(self, tmp_path: Path, reduction: str) -> None:
        recognizer = build(tmp_path, part(architecture="wav2vec2", ctc_loss_reduction=reduction))
        inputs, labels = self.batch(recognizer)
        outputs = recognizer.model(**given(inputs))
        whole = recognizer.loss(outputs, Target(labels, inputs[LENGTHS]), None)
        count = recognizer.counted_labels(labels).ne(IGNORED_LABEL).sum()
        filler = torch.full_like(labels[:1], IGNORED_LABEL)
        rows = [(slice(0, 1), labels[:1]), (slice(1, 3), labels[1:3]), (slice(0, 1), filler)]
        total = torch.zeros(())
        for index, wanted in rows:
            logits = type(outputs)(logits=outputs.logits[index])
            total = total + recognizer.loss(logits, Target(wanted, inputs[LENGTHS][index]), count)
        torch.testing.assert_close(total, whole)
        assert int(recognizer.counted_labels(filler).ne(IGNORED_LABEL).sum()) == 0


class TestVocabulary:
    def test_it_is_of_the_training_text_s_characters(self, tmp_path: Path) -> None:
        processor = FAMILY.new_processor(["aba", "a c"], part())
        assert processor.tokenizer.get_vocab() == {"|": 0, "a": 1, "b": 2, "c": 3, "[UNK]": 4, "[PAD]": 5}
        assert FAMILY.encode_labels(processor, ["ab x", ""]) == [[1, 2, 0, 4], []]

    @pytest.mark.parametrize("vocabulary", ["characters", "bpe"])
    def test_texts_come_back_from_their_labels(self, tmp_path: Path, vocabulary: str) -> None:
        texts = ["први ђак", "hello  all".replace("  ", " "), "šum – 3,5 €"]
        processor = FAMILY.new_processor(texts, part(vocabulary=vocabulary, vocab_size=300))
        blank = processor.tokenizer.pad_token_id
        for text, ids in zip(texts, FAMILY.encode_labels(processor, texts), strict=True):
            path = [each for label in ids for each in (label, label, blank)]
            assert processor.tokenizer.decode(path) == text

    def test_a_given_one_is_taken_as_it_is(self, tmp_path: Path) -> None:
        vocabulary = {"[PAD]": 0, "[UNK]": 1, "|": 2, "z": 3, "a": 4}
        file = tmp_path / "vocab.json"
        file.write_text(json.dumps(vocabulary))
        processor = FAMILY.new_processor(["b"], part(vocabulary_file=str(file)))
        assert processor.tokenizer.get_vocab() == vocabulary

    @pytest.mark.parametrize(
        ("content", "wanted"),
        [("{", "cannot be read"), ('{"a": 1}', "not a JSON object"), ('{"a": 0, "|": 1}', r"has no model.unk_token")],
    )
    def test_a_given_one_that_cannot_serve_is_refused(self, tmp_path: Path, content: str, wanted: str) -> None:
        file = tmp_path / "vocab.json"
        file.write_text(content)
        with pytest.raises(ConfigError, match=wanted):
            FAMILY.new_processor(["b"], part(vocabulary_file=str(file)))

    @pytest.mark.parametrize(
        ("changes", "text"),
        [
            ({}, "a|b"),
            ({"pad_token": "-"}, "one-two"),
            ({"unk_token": "e"}, "one"),
            ({"vocabulary": "bpe"}, "a [PAD] b"),
        ],
    )
    def test_a_special_token_that_is_in_the_text_is_refused(self, changes: dict[str, Any], text: str) -> None:
        with pytest.raises(ConfigError, match="which the training text has, too"):
            FAMILY.new_processor([text], part(**changes))

    @pytest.mark.parametrize(
        ("changes", "wanted"),
        [
            ({"unk_token": "[PAD]"}, "must differ"),
            ({"vocabulary": "bpe", "vocabulary_file": "/v.json"}, "keep one of them"),
            ({"vocabulary_file": "s3://bucket/v.json"}, "give a file on a disk: copy it there"),
            ({"architecture": "wav2vec2-bert", "freeze_feature_encoder": True}, "freeze_feature_encoder is True"),
            ({"architecture": "wav2vec2-bert", "feat_extract_norm": "group"}, "feat_extract_norm is group"),
            (
                {"apply_spec_augment": True, "mask_feature_length": 17},
                "length 17 is more than the model has",
            ),
            ({"max_context_s": 121}, "max_context_s"),
        ],
    )
    def test_fields_that_exclude_each_other_are_refused(self, changes: dict[str, Any], wanted: str) -> None:
        with pytest.raises(ConfigError, match=wanted):
            part(**changes)

    def test_what_a_text_has_and_the_vocabulary_has_not_is_said_and_most_of_a_text_is_refused(self) -> None:
        processor = FAMILY.new_processor(["one two"], part())
        assert FAMILY.check_texts(processor, ["two one", ""]) is None
        assert FAMILY.check_texts(processor, ["one tree", "to"]) == (
            "1 of 10 characters are not in the vocabulary (r), so they cannot appear in a hypothesis"
        )
        with pytest.raises(ConfigError, match=r"6 of 7 characters are not in the vocabulary \(O"):
            FAMILY.check_texts(processor, ["ONE TWO"])
        assert FAMILY.check_texts(FAMILY.new_processor(["a"], part(vocabulary="bpe", vocab_size=300)), ["Ж"]) is None

    def test_another_vocabulary_has_labels_of_its_own(self) -> None:
        processors = [FAMILY.new_processor([text], part()) for text in ("ab", "ab", "abc")]
        first, same, other = map(FAMILY.labels_fingerprint, processors)
        assert first == same != other


class TestFolders:
    @pytest.mark.parametrize("vocabulary", ["characters", "bpe"])
    @pytest.mark.parametrize("architecture", ["wav2vec2", "wav2vec2-bert"])
    def test_plain_classes_and_a_pipeline_open_what_was_saved(
        self, tmp_path: Path, architecture: str, vocabulary: str
    ) -> None:
        recognizer = build(tmp_path / "one", part(architecture=architecture, vocabulary=vocabulary, vocab_size=300))
        saved = tmp_path / "model"
        recognizer.model.save_pretrained(saved)
        recognizer.processor.save_pretrained(saved)
        FAMILY.export_processor(saved)
        again = family_of_folder(saved).open_exported(saved)
        assert isinstance(again, CtcRecognizer)
        for each in (recognizer, again):
            exchanged = any(isinstance(module, SampleConvolution) for module in each.model.modules())
            assert exchanged == (architecture == "wav2vec2")
        inputs = recognizer.new_features().inputs([clip(0.8)], None)
        labels = recognizer.encode_labels(TEXTS[:1])
        ours = recognizer.recognize(inputs, labels, Decoding(CtcDecodePart()))
        assert again.recognize(inputs, labels, Decoding(CtcDecodePart())) == ours
        assert AutoModelForCTC.from_pretrained(saved).config.vocab_size == len(recognizer.processor.tokenizer)
        assert AutoProcessor.from_pretrained(saved).tokenizer.get_vocab() == recognizer.processor.tokenizer.get_vocab()
        recognize: Any = pipeline("automatic-speech-recognition", model=str(saved))
        assert recognize(clip(0.8).numpy().astype(np.float32) / 32768)["text"].strip() == ours[0].text

    def test_a_class_whose_config_has_to_have_a_start_token_learns_a_vocabulary_too(self, tmp_path: Path) -> None:
        sizes: Any = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 16}
        plain = UniSpeechSatConfig(num_conv_pos_embedding_groups=2, conv_dim=(8,) * 7, **sizes)
        UniSpeechSatModel(plain).save_pretrained(tmp_path)
        Wav2Vec2FeatureExtractor(return_attention_mask=True).save_pretrained(tmp_path)
        model = resolve_model(config({"model": {"name_or_path": str(tmp_path)}}))[0].model
        FAMILY.write_description(tmp_path / "description", ["xyz"], model)
        network = FAMILY.load_recognizer(model, tmp_path / "description", seed=1).model
        assert network.lm_head.weight.shape[0] == len("xyz|") + 2

    def test_pretrained_weights_without_an_output_layer_learn_a_vocabulary_and_a_new_one(self, tmp_path: Path) -> None:
        base = build(tmp_path / "base", part(architecture="wav2vec2"))
        saved = tmp_path / "encoder"
        getattr(base.model, base.model.base_model_prefix).save_pretrained(saved)
        base.processor.feature_extractor.save_pretrained(saved)
        model = resolve_model(config({"model": {"name_or_path": str(saved)}}))[0].model
        family = family_of(model)
        assert family.name == "ctc" and family.learns_processor(model)
        family.write_description(tmp_path / "description", ["xyz"], model)
        built = [family.load_recognizer(model, tmp_path / "description", seed=seed).model for seed in (1, 1, 2)]
        heads = [network.lm_head.weight for network in built]
        assert heads[0].shape[0] == len("xyz|") + 2
        assert torch.equal(heads[0], heads[1]) and not torch.equal(heads[0], heads[2])
        name = "wav2vec2.feature_projection.projection.weight"
        assert torch.equal(built[0].state_dict()[name], base.model.state_dict()[name])
        frozen = {name for name, weight in built[0].named_parameters() if not weight.requires_grad}
        assert frozen and all("feature_extractor" in name for name in frozen)

    def test_weights_with_an_output_layer_keep_it_and_their_vocabulary(self, tmp_path: Path) -> None:
        base = build(tmp_path / "base", part(architecture="wav2vec2"))
        saved = tmp_path / "model"
        base.model.save_pretrained(saved)
        base.processor.save_pretrained(saved)
        FAMILY.export_processor(saved)
        model = config({"model": {"name_or_path": str(saved), "freeze_feature_encoder": False}}).model
        assert isinstance(model, CtcPart)
        assert not family_of(model).learns_processor(model)
        network = family_of(model).load_recognizer(model, None, seed=9).model
        assert torch.equal(network.lm_head.weight, base.model.lm_head.weight)
        assert all(weight.requires_grad for weight in network.parameters())
        again = model.model_copy(update={"vocabulary": "characters"})
        assert family_of(again).learns_processor(again)

    def test_a_tokenizer_with_more_letters_than_outputs_is_refused_by_name(self, tmp_path: Path) -> None:
        base = build(tmp_path / "base", part(architecture="wav2vec2"))
        base.model.save_pretrained(tmp_path)
        base.processor.save_pretrained(tmp_path)
        FAMILY.export_processor(tmp_path)
        model = config({"model": {"name_or_path": str(tmp_path), "family": "ctc"}}).model
        # No text gives these, and released models have them beyond their outputs.
        base.processor.tokenizer.add_special_tokens({"bos_token": "<s>", "eos_token": "</s>"})
        base.processor.tokenizer.save_pretrained(tmp_path)
        FAMILY.open_processor(model, None)
        size = len(base.processor.tokenizer)
        base.processor.tokenizer.add_tokens(["ž", "š"])
        base.processor.tokenizer.save_pretrained(tmp_path)
        with pytest.raises(
            ConfigError, match=rf"2 tokens beyond them: ž \({size}\), š \({size + 1}\); use a tokenizer"
        ):
            FAMILY.open_processor(model, None)
        blank = base.model.config.pad_token_id
        base.model.config.update({"pad_token_id": 1})
        base.model.config.save_pretrained(tmp_path)
        with pytest.raises(ConfigError, match=rf"blank is \[PAD\] \({blank}\), but pad_token_id in config.json is 1"):
            FAMILY.open_processor(model, None)

    def test_weights_of_a_checkpoint_with_other_sizes_are_refused(self, tmp_path: Path) -> None:
        recognizer = build(tmp_path / "one", part(architecture="wav2vec2"))
        saved = tmp_path / "checkpoint"
        recognizer.model.save_pretrained(saved)
        recognizer.processor.save_pretrained(saved)
        FAMILY.adopt_description(saved, tmp_path / "same", part(architecture="wav2vec2"))
        adopted = FAMILY.load_recognizer(part(architecture="wav2vec2"), tmp_path / "same", seed=5, weights=saved)
        for name, weight in recognizer.model.state_dict().items():
            assert torch.equal(adopted.model.state_dict()[name], weight), name
        vocabulary = tmp_path / "vocab.json"
        vocabulary.write_text(json.dumps({"|": 0, "[UNK]": 1, "[PAD]": 2, "a": 3}))
        for other in ({"vocabulary_file": str(vocabulary)}, {"vocabulary": "bpe"}):
            with pytest.raises(
                ConfigError, match=rf"the vocabulary of the checkpoint, .* is not model\.{next(iter(other))}"
            ):
                FAMILY.adopt_description(saved, tmp_path / "other", part(architecture="wav2vec2", **other))
        with pytest.raises(ConfigError, match="hidden_size 16, not 32"):
            FAMILY.adopt_description(saved, tmp_path / "other", part(architecture="wav2vec2", d_model=32))


def test_fields_of_models_with_a_decoder_are_refused_by_name() -> None:
    ours = {"model": {"init": "scratch", "family": "ctc"}}
    refuse_unsupported(config(ours), FAMILY)
    with pytest.raises(ConfigError, match=r"label_smoothing_factor: has no effect on a model of the family ctc"):
        refuse_unsupported(config({**ours, "training.training_args": {"label_smoothing_factor": 0.1}}), FAMILY)
    with pytest.raises(ConfigError, match=r"decode\.num_beams: unknown key: a field of .*, not of ctc"):
        config({**ours, "decode.num_beams": 4})


@pytest.mark.parametrize(
    ("changes", "name", "family"),
    [
        ({"model.ctc_zero_infinity": True}, "ctc_zero_infinity", "ctc"),
        ({"model": {"init": "scratch", "family": "ctc", "dropout": 0.1}}, "dropout", "whisper"),
        (
            {"model": {"init": "scratch", "family": "ctc", "full_context_matching": 0.1}},
            "full_context_matching",
            "whisper",
        ),
    ],
)
def test_a_field_of_another_family_is_an_unknown_key(changes: dict[str, Any], name: str, family: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.{name}: unknown key: a field of the family {family}"):
        config(changes)


def test_a_clip_too_short_for_one_output_is_heard_as_nothing(recognizer: CtcRecognizer) -> None:
    blip, labels = torch.zeros(410 if recognizer.limits.has_bins else 300, dtype=torch.int16), [[1], [2, 3]]
    alone = recognizer.new_features().inputs([blip], None)
    (found,) = recognizer.recognize(alone, labels[:1], Decoding(CtcDecodePart()))
    assert found == Recognition("", 0.0, 0.0)
    both = recognizer.new_features().inputs([blip, clip(1.0)], 1.0)
    _, other = recognizer.recognize(both, labels, Decoding(CtcDecodePart()))
    assert other.loss is not None and other.loss > 0 and np.isfinite(other.avg_logprob)


def test_the_shortest_input_is_recognized(recognizer: CtcRecognizer) -> None:
    least, features = recognizer.limits.least_samples, recognizer.new_features()
    inputs = features.inputs([clip(0.1)[:least]], None)
    assert recognizer.recognize(inputs, [[1]], Decoding(CtcDecodePart())) == [Recognition("", 0.0, 0.0)]
    if least > 1:
        with pytest.raises(ValueError, match="negative dimensions"):
            features.inputs([clip(0.1)[: least - 1]], None)


def test_a_family_that_the_weights_are_not_of_is_refused(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "wav2vec2"}))
    with pytest.raises(ConfigError, match=r"model\.family is whisper, but .* is a wav2vec2 model"):
        family_of(config({"model": {"name_or_path": str(tmp_path), "language": "en", "family": "whisper"}}).model)
