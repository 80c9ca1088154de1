"""Encoder-decoder models next to Whisper: tiny ones of each architecture, from weights to hypotheses."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import (
    BertConfig,
    MoonshineConfig,
    MoonshineForConditionalGeneration,
    PreTrainedTokenizerFast,
    Speech2TextConfig,
    Speech2TextFeatureExtractor,
    Speech2TextForConditionalGeneration,
    SpeechEncoderDecoderConfig,
    SpeechEncoderDecoderModel,
    Wav2Vec2Config,
    Wav2Vec2FeatureExtractor,
    pipeline,
    set_seed,
)

from tests.trainers.synthetic import config, speechlike, write_corpus
from trainers.config.parts.decode_part import GenerationPart
from trainers.config.parts.model_part import ModelPart
from trainers.data.features import LENGTHS
from trainers.errors import ConfigError
from trainers.models.families import family_of, family_of_folder
from trainers.models.family import Family
from trainers.models.recognizer import Decoding, Target
from trainers.models.seq2seq.seq2seq_family import Seq2SeqFamily
from trainers.models.seq2seq.seq2seq_recognizer import Seq2SeqRecognizer
from trainers.pipeline.engine import LocalEngine
from trainers.pipeline.fit import fit

# A model that three of these tests read learns for long: in one process, once.
pytestmark = pytest.mark.xdist_group("test_seq2seq")

TEXTS = ["one two", "three", "four four"]
FAMILY: Family[Any] = Seq2SeqFamily()
START, END, PAD = 1, 2, 0
# A pipeline generates 256 tokens.
POSITIONS = 300
TOKENS: Any = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": START}


def tokenizer() -> PreTrainedTokenizerFast:
    learner = Tokenizer(models.BPE())
    learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    learner.decoder = decoders.ByteLevel()
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    special = ["<pad>", "<s>", "</s>"]
    learner.train_from_iterator(
        TEXTS, trainers.BpeTrainer(vocab_size=300, special_tokens=special, initial_alphabet=alphabet)
    )
    return PreTrainedTokenizerFast(tokenizer_object=learner, pad_token="<pad>", bos_token="<s>", eos_token="</s>")


def speech_to_text(size: int) -> tuple[Any, Any]:
    sizes: Any = {"encoder_layers": 1, "decoder_layers": 1, "encoder_attention_heads": 2, "decoder_attention_heads": 2}
    wide: Any = {"encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "conv_channels": 32, "input_feat_per_channel": 80}
    plain = Speech2TextConfig(
        vocab_size=size, d_model=16, max_target_positions=POSITIONS, dropout=0.0, **sizes, **wide, **TOKENS
    )
    return Speech2TextForConditionalGeneration(plain), Speech2TextFeatureExtractor()


def moonshine(size: int) -> tuple[Any, Any]:
    layers: Any = {"encoder_num_hidden_layers": 1, "decoder_num_hidden_layers": 1}
    heads: Any = {"encoder_num_attention_heads": 2, "decoder_num_attention_heads": 2}
    plain = MoonshineConfig(vocab_size=size, hidden_size=32, intermediate_size=32, **layers, **heads, **TOKENS)
    return MoonshineForConditionalGeneration(plain), Wav2Vec2FeatureExtractor(do_normalize=False)


def encoder_decoder(size: int) -> tuple[Any, Any]:
    small: Any = {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 64}
    encoder = Wav2Vec2Config(**small, conv_dim=[8] * 7, feat_extract_norm="layer", num_conv_pos_embedding_groups=4)
    decoder = BertConfig(
        **small, vocab_size=size, is_decoder=True, add_cross_attention=True, max_position_embeddings=POSITIONS
    )
    composed = SpeechEncoderDecoderConfig.from_encoder_decoder_configs(encoder, decoder, **TOKENS)
    return SpeechEncoderDecoderModel(config=composed), Wav2Vec2FeatureExtractor(return_attention_mask=True)


MADE: Mapping[str, Callable[[int], tuple[Any, Any]]] = {
    "speech_to_text": speech_to_text,
    "moonshine": moonshine,
    "speech-encoder-decoder": encoder_decoder,
}


@pytest.fixture(scope="module", params=MADE)
def folder(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model as `save_pretrained` leaves it."""
    made = tmp_path_factory.mktemp("model")
    words = tokenizer()
    set_seed(0)
    network, extractor = MADE[request.param](len(words))
    network.save_pretrained(made)
    words.save_pretrained(made)
    extractor.save_pretrained(made)
    return made


def part(folder: Path, **changes: Any) -> ModelPart:
    return config({"model": {"name_or_path": str(folder), **changes}}).model


def opened(folder: Path) -> Seq2SeqRecognizer:
    recognizer = family_of(part(folder)).load_recognizer(part(folder), None, seed=1)
    assert isinstance(recognizer, Seq2SeqRecognizer)
    recognizer.model.eval()
    return recognizer


def batch(recognizer: Seq2SeqRecognizer) -> dict[str, torch.Tensor]:
    clips = [torch.from_numpy(speechlike(1.0, seed)) for seed in range(len(TEXTS))]
    return recognizer.new_features().inputs(clips, None)


@pytest.fixture(scope="module")
def learned(folder: Path) -> Seq2SeqRecognizer:
    """A model that has learned its three utterances by heart."""
    recognizer = opened(folder)
    inputs, labels = batch(recognizer), recognizer.encode_labels(TEXTS)
    given = {name: value for name, value in inputs.items() if name != LENGTHS}
    optimizer = torch.optim.AdamW(recognizer.model.parameters(), lr=5e-3)
    for _ in range(200):
        collated = recognizer.collate_labels(labels, [])
        targets = collated.pop("labels")
        loss = recognizer.loss(recognizer.model(**given, **collated), Target(targets), None)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(recognizer.model.parameters(), 1.0)
        optimizer.step()
    return recognizer


def test_labels_are_the_text_between_the_start_which_is_given_and_the_end(folder: Path) -> None:
    recognizer = opened(folder)
    for text, ids in zip(TEXTS, recognizer.encode_labels(TEXTS), strict=True):
        assert START not in ids and ids[-1] == END and ids.count(END) == 1
        assert recognizer.processor.tokenizer.decode(ids[:-1]) == text


def test_the_shortest_input_is_recognized_and_a_shorter_one_is_not(folder: Path) -> None:
    recognizer = opened(folder)
    features, samples = recognizer.new_features(), torch.from_numpy(speechlike(0.1, 1))

    def loss(count: int) -> float:
        inputs = features.inputs([samples[:count]], None)
        (found,) = recognizer.recognize(inputs, [[3, END]], Decoding(GenerationPart(max_length=4)))
        assert found.loss is not None
        return found.loss

    assert math.isfinite(loss(recognizer.limits.least_samples))
    try:
        assert not math.isfinite(loss(recognizer.limits.least_samples - 1))
    except RuntimeError as error:
        assert "Kernel size can't be greater" in str(error)


def test_nothing_is_masked_or_skipped_that_no_field_asks_for(folder: Path) -> None:
    encoder = opened(folder).model.get_encoder()
    assert not getattr(encoder.config, "apply_spec_augment", False)
    assert not getattr(encoder.config, "layerdrop", 0.0)


@pytest.mark.integration
def test_it_says_what_it_has_learned(learned: Seq2SeqRecognizer) -> None:
    found = learned.recognize(batch(learned), learned.encode_labels(TEXTS), Decoding(GenerationPart(max_length=30)))
    assert [item.text for item in found] == TEXTS
    for item, ids in zip(found, learned.encode_labels(TEXTS), strict=True):
        assert item.loss is not None
        assert item.avg_logprob == pytest.approx(-item.loss / len(ids), rel=1e-3)
        assert item.nbest is None


def test_the_first_of_the_n_best_is_the_hypothesis(learned: Seq2SeqRecognizer) -> None:
    labels = learned.encode_labels(TEXTS)
    found = learned.recognize(batch(learned), labels, Decoding(GenerationPart(max_length=30, num_beams=3), nbest=2))
    assert [item.text for item in found] == TEXTS
    for item in found:
        assert item.nbest is not None and len(item.nbest) == 2
        assert item.nbest[0].text == item.text and item.nbest[0].avg_logprob > item.nbest[1].avg_logprob


def test_what_was_saved_opens_as_the_same(learned: Seq2SeqRecognizer, tmp_path: Path) -> None:
    learned.model.save_pretrained(tmp_path)
    learned.processor.save_pretrained(tmp_path)
    again = family_of_folder(tmp_path).open_exported(tmp_path)
    inputs, labels = batch(learned), learned.encode_labels(TEXTS)
    assert again.recognize(inputs, labels, Decoding(GenerationPart(max_length=30))) == learned.recognize(
        inputs, labels, Decoding(GenerationPart(max_length=30))
    )


def test_weights_of_a_checkpoint_begin_a_run_unless_they_are_of_another_model(
    learned: Seq2SeqRecognizer, folder: Path, tmp_path: Path
) -> None:
    saved = tmp_path / "checkpoint"
    learned.model.save_pretrained(saved)
    learned.processor.save_pretrained(saved)
    FAMILY.adopt_description(saved, tmp_path / "description", part(folder))
    began = FAMILY.load_recognizer(part(folder), tmp_path / "description", seed=1, weights=saved)
    for name, weight in learned.model.state_dict().items():
        assert torch.equal(began.model.state_dict()[name], weight), name
    content = json.loads((saved / "config.json").read_text())
    (saved / "config.json").write_text(json.dumps({**content, "pad_token_id": 5}))
    with pytest.raises(ConfigError, match="differs from the config's"):
        FAMILY.adopt_description(saved, tmp_path / "other", part(folder))


def test_positions_that_all_of_a_state_has_are_no_weights(tmp_path: Path) -> None:
    network, extractor = speech_to_text(len(tokenizer()))
    for what in (network, extractor, tokenizer()):
        what.save_pretrained(tmp_path)
    held = load_file(tmp_path / "model.safetensors")
    computed = {f"model.{part}.embed_positions.weights": torch.ones(POSITIONS, 16) for part in ("encoder", "decoder")}
    save_file({**held, **computed}, tmp_path / "model.safetensors", metadata={"format": "pt"})
    assert torch.equal(opened(tmp_path).model.state_dict()["lm_head.weight"], network.lm_head.weight)


def test_a_config_without_a_start_token_is_refused(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    content = json.loads((tmp_path / "config.json").read_text())
    content["eos_token_id"] = None
    content.get("decoder", {})["eos_token_id"] = None
    (tmp_path / "config.json").write_text(json.dumps(content))
    with pytest.raises(ConfigError, match="eos_token_id"):
        FAMILY.open_processor(part(tmp_path), None)


def test_a_tokenizer_with_more_tokens_than_the_decoder_is_refused_by_name(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    longer = tokenizer()
    longer.add_tokens(["žaba"])
    longer.save_pretrained(tmp_path)
    with pytest.raises(ConfigError, match=r"1 tokens beyond them: žaba \(\d+\); use a tokenizer"):
        FAMILY.open_processor(part(tmp_path), None)


def test_a_new_one_is_refused() -> None:
    with pytest.raises(ConfigError, match="the family seq2seq begins with weights"):
        config({"model": {"init": "scratch", "family": "seq2seq"}})


@pytest.mark.integration
def test_a_run_trains_scores_and_exports_one(folder: Path, tmp_path: Path) -> None:
    manifests = {
        f"data.{split}": str(write_corpus(tmp_path, TEXTS, durations_s=[0.5, 0.7, 0.7], name=split))
        for split in ("train", "validation", "test")
    }
    result = fit(
        config(
            {
                **manifests,
                "run.name": "small",
                "run.storage_path": str(tmp_path),
                "model": {"name_or_path": str(folder), "language": "English"},
                "training.max_steps": 4,
                "training.save_steps": 2,
                "decode.max_length": 8,
                "training.report_to": [],
            }
        ),
        LocalEngine(),
    )
    assert result.totals["utterances"] == 3
    model = tmp_path / "small" / "model"
    recognize: Any = pipeline("automatic-speech-recognition", model=str(model))
    assert isinstance(recognize(speechlike(0.7).astype("float32") / 32768)["text"], str)
