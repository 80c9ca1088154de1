import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import WhisperForConditionalGeneration, WhisperProcessor

from tests.trainers.synthetic import config, speechlike
from trainers.errors import ConfigError
from trainers.models.family import Family
from trainers.models.recognizer import IGNORED_LABEL, Recognizer, Segment, given_token, label_loss, pad_labels
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.models.whisper.whisper_part import language_code
from trainers.models.whisper.whisper_recognizer import WhisperRecognizer, input_frames
from trainers.models.whisper.whisper_scratch import START

TEXTS = ["one two three", "four five", "здраво свете", "日本語", 'a "quoted" word', ""]
FAMILY: Family[Any] = WhisperFamily()
MODEL = config({"model.language": "Serbian"}).model


@pytest.fixture(scope="module")
def description(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("description")
    FAMILY.write_description(folder, TEXTS, MODEL)
    return folder


@pytest.fixture
def recognizer(description: Path) -> WhisperRecognizer:
    recognizer = FAMILY.load_recognizer(MODEL, description, seed=1)
    assert isinstance(recognizer, WhisperRecognizer)
    return recognizer


class TestScratch:
    def test_every_rank_builds_the_same_weights(self, description: Path) -> None:
        first, second = (FAMILY.load_recognizer(MODEL, description, seed=1).model.state_dict() for _ in range(2))
        other = FAMILY.load_recognizer(MODEL, description, seed=2).model.state_dict()
        assert all(torch.equal(first[name], second[name]) for name in first)
        assert any(not torch.equal(first[name], other[name]) for name in first)

    def test_a_description_holds_no_weights(self, description: Path) -> None:
        assert not [*description.glob("*.safetensors"), *description.glob("*.bin")]

    def test_any_text_comes_back_from_its_tokens(self, recognizer: Recognizer) -> None:
        tokenizer = recognizer.processor.tokenizer
        for text in [*TEXTS, "never seen: ß 🎉"]:
            assert tokenizer.decode(tokenizer(text)["input_ids"], skip_special_tokens=True) == text

    def test_the_vocabulary_is_all_that_the_model_knows(self, recognizer: Recognizer) -> None:
        tokenizer = recognizer.processor.tokenizer
        assert recognizer.model.config.vocab_size == len(tokenizer)
        assert tokenizer.pad_token_id == tokenizer.eos_token_id
        assert recognizer.model.config.decoder_start_token_id == tokenizer.convert_tokens_to_ids(START)

    def test_the_context_is_the_config_s(self, recognizer: Recognizer) -> None:
        assert recognizer.limits.context_s == 3.0
        assert recognizer.model.config.max_source_positions == 150

    def test_what_was_saved_opens_as_the_same(self, recognizer: Recognizer, tmp_path: Path) -> None:
        recognizer.model.save_pretrained(tmp_path)
        recognizer.processor.save_pretrained(tmp_path)
        opened = FAMILY.open_exported(tmp_path)
        assert opened.encode_labels(TEXTS) == recognizer.encode_labels(TEXTS)
        weights, again = recognizer.model.state_dict(), opened.model.state_dict()
        assert all(torch.equal(weights[name], again[name]) for name in weights)
        assert opened.limits.context_s == 3.0
        assert opened.model.generation_config.language == "serbian"

    def test_a_tokenizer_with_more_tokens_than_the_decoder_is_refused(
        self, recognizer: WhisperRecognizer, tmp_path: Path
    ) -> None:
        recognizer.model.save_pretrained(tmp_path)
        recognizer.processor.save_pretrained(tmp_path)
        model = config({"model": {"init": "pretrained", "name_or_path": str(tmp_path), "language": "sr"}}).model
        tokenizer = FAMILY.open_processor(model, None).tokenizer
        # No label has them: times, and what is only special.
        tokenizer.add_tokens(["<|30.02|>"])
        tokenizer.save_pretrained(tmp_path)
        FAMILY.open_processor(model, None)
        tokenizer.add_tokens(["žaba"])
        tokenizer.save_pretrained(tmp_path)
        with pytest.raises(ConfigError, match=r"1 tokens beyond them: žaba \(\d+\); use a tokenizer"):
            FAMILY.open_processor(model, None)

    def test_a_plain_pipeline_transcribes_with_it(self, recognizer: Recognizer, tmp_path: Path) -> None:
        recognizer.model.save_pretrained(tmp_path)
        recognizer.processor.save_pretrained(tmp_path)
        recognize: Any = transformers.pipeline("automatic-speech-recognition", model=str(tmp_path), device="cpu")
        samples = speechlike(1.0).astype("float32") / 32768
        answer = recognize(samples, generate_kwargs={"max_new_tokens": 4})
        assert isinstance(answer["text"], str)

    def test_plain_classes_open_it(self, recognizer: Recognizer, tmp_path: Path) -> None:
        recognizer.model.save_pretrained(tmp_path)
        recognizer.processor.save_pretrained(tmp_path)
        assert WhisperForConditionalGeneration.from_pretrained(tmp_path).config.d_model == 16
        prefix = WhisperProcessor.from_pretrained(tmp_path).tokenizer.prefix_tokens
        assert WhisperProcessor.from_pretrained(tmp_path).tokenizer.convert_ids_to_tokens(prefix) == [
            START,
            "<|sr|>",
            "<|transcribe|>",
            "<|notimestamps|>",
        ]


class TestLanguages:
    @pytest.mark.parametrize(
        ("given", "code"),
        [
            ("Serbian", "sr"),
            ("sr", "sr"),
            ("castilian", "es"),
            ("ENGLISH", "en"),
            ("sr-RS", "sr"),
            ("zh_Hant_TW", "zh"),
        ],
    )
    def test_names_codes_and_aliases_are_known(self, given: str, code: str) -> None:
        assert language_code(given) == code

    def test_an_unknown_one_is_refused_with_the_way_out(self) -> None:
        with pytest.raises(ConfigError, match=r"no token for 'Xhosa'.*borrow"):
            language_code("Xhosa")

    def test_one_that_is_nearly_known_is_suggested(self) -> None:
        with pytest.raises(ConfigError, match=r"no token for 'Englsh'; did you mean English\?"):
            language_code("Englsh")

    def test_one_that_only_later_models_know_is_refused_by_others(self, recognizer: Recognizer, tmp_path: Path) -> None:
        recognizer.model.save_pretrained(tmp_path)
        recognizer.processor.save_pretrained(tmp_path)
        spoken: Any = config({"model": {"name_or_path": str(tmp_path), "language": "zh-HK"}}).model
        assert FAMILY.open_processor(spoken, None).tokenizer.language == "cantonese"
        # The tokenizer of the models before large-v3.
        tokenizer = json.loads((tmp_path / "tokenizer.json").read_bytes())
        for token in tokenizer["added_tokens"]:
            token["content"] = token["content"].replace("<|yue|>", "<|none|>")
        (tmp_path / "tokenizer.json").write_text(json.dumps(tokenizer))
        with pytest.raises(
            ConfigError, match=r"has no token <\|yue\|> of Cantonese: use weights that have one, or set"
        ):
            FAMILY.open_processor(spoken, None)
        wanted: Any = config({"model": {"name_or_path": str(tmp_path), "language": "zh-TW"}}).model
        earlier = FAMILY.open_processor(wanted, None)
        with pytest.raises(ConfigError, match=r"the model has no token <\|yue\|> of Cantonese"):
            FAMILY.language_prefix(earlier, "zh-HK")


class TestLabels:
    def test_the_start_token_is_left_to_the_model(self, recognizer: Recognizer) -> None:
        tokenizer = recognizer.processor.tokenizer
        start = tokenizer.convert_tokens_to_ids(START)
        for labels, text in zip(recognizer.encode_labels(TEXTS), TEXTS, strict=True):
            assert start not in labels
            assert tokenizer.convert_ids_to_tokens(labels[:3]) == ["<|sr|>", "<|transcribe|>", "<|notimestamps|>"]
            assert labels.count(tokenizer.eos_token_id) == 1
            assert labels[-1] == tokenizer.eos_token_id
            assert tokenizer.decode(labels, skip_special_tokens=True) == text

    def test_the_decoder_hears_it_once(self, recognizer: Recognizer) -> None:
        tokenizer = recognizer.processor.tokenizer
        start = tokenizer.convert_tokens_to_ids(START)
        inputs = recognizer.collate_labels(recognizer.encode_labels(TEXTS), [])["decoder_input_ids"]
        assert (inputs[:, 0] == start).all()
        assert not (inputs[:, 1:] == start).any()

    def test_padding_is_known_by_length_and_not_by_token(self) -> None:
        end = 7
        labels, inputs = pad_labels([[1, end], [1, 2, 3, end], [end]], start_id=9, pad_id=end).values()
        ignored = IGNORED_LABEL
        assert labels.tolist() == [[1, end, ignored, ignored], [1, 2, 3, end], [end, ignored, ignored, ignored]]
        assert inputs.tolist() == [[9, 1, end, end], [9, 1, 2, 3], [9, end, end, end]]

    def test_ignored_labels_stay_ignored(self) -> None:
        labels, inputs = pad_labels([[IGNORED_LABEL] * 2, [1]], start_id=9, pad_id=7).values()
        assert labels.tolist() == [[IGNORED_LABEL] * 2, [1, IGNORED_LABEL]]
        assert inputs.tolist() == [[9, 7], [9, 1]]

    def test_given_tokens_are_inputs_and_no_targets(self) -> None:
        rows = [[given_token(50), given_token(3), given_token(9), 1, 7], [1, 2, 7], [IGNORED_LABEL] * 2]
        labels, inputs = pad_labels(rows, start_id=9, pad_id=7).values()
        ignored = IGNORED_LABEL
        assert labels.tolist() == [
            [ignored, ignored, 1, 7, ignored],
            [1, 2, 7, ignored, ignored],
            [ignored] * 5,
        ]
        assert inputs.tolist() == [[50, 3, 9, 1, 7], [9, 1, 2, 7, 7], [9, 7, 7, 7, 7]]
        alone = pad_labels(rows[:1], start_id=9, pad_id=7)
        assert alone["labels"].tolist() == [[ignored, ignored, 1, 7, ignored]]

    def test_labels_with_timestamps_have_those_of_their_segments(self, recognizer: Recognizer) -> None:
        (label,) = recognizer.encode_labels(["one two three"])
        segments = [Segment("one", 0.0, 0.5), Segment("two three", 0.52, 1.96)]
        timed = recognizer.timed_label(label, segments, 1.97)
        tokenizer = recognizer.processor.tokenizer
        tokens = tokenizer.convert_ids_to_tokens(timed)
        assert tokens[:2] == ["<|sr|>", "<|transcribe|>"] and tokens[-1] == tokenizer.eos_token
        assert [token for token in tokens if "." in token] == ["<|0.00|>", "<|0.50|>", "<|0.52|>", "<|1.96|>"]
        assert tokenizer.decode(timed, skip_special_tokens=True).split() == ["one", "two", "three"]

    @pytest.mark.parametrize(
        ("times", "duration_s", "found"),
        [
            # The second segment begins before the first one ends.
            ([(0.0, 0.5), (0.46, 1.0)], 1.0, ["0.00", "0.50", "0.50", "1.00"]),
            # The clip is shorter than the manifest says, or longer than the model's context of 3 s.
            ([(0.0, 1.0), (1.0, 2.04)], 2.01, ["0.00", "1.00", "1.00", "2.00"]),
            ([(0.0, 2.0), (2.5, 4.0)], 4.0, ["0.00", "2.00", "2.50", "3.00"]),
        ],
    )
    def test_times_never_decrease_and_are_within_clip_and_context(
        self, recognizer: Recognizer, times: list[tuple[float, float]], duration_s: float, found: list[str]
    ) -> None:
        (label,) = recognizer.encode_labels(["one two"])
        timed = recognizer.timed_label(label, [Segment("one", *each) for each in times], duration_s)
        tokens = recognizer.processor.tokenizer.convert_ids_to_tokens(timed)
        assert [token.strip("<|>") for token in tokens if "." in token] == found

    def test_a_label_after_a_text_begins_with_the_text(self, recognizer: Recognizer) -> None:
        (label,) = recognizer.encode_labels(["one two three"])
        after = recognizer.label_after(label, "four five")
        batch = recognizer.collate_labels([after, label], [])
        tokenizer, given = recognizer.processor.tokenizer, len(after) - len(label)
        tokens = tokenizer.convert_ids_to_tokens(batch["decoder_input_ids"][0])
        assert tokens[0] == "<|startofprev|>" and tokens[given - 1 : given + 2] == [START, "<|sr|>", "<|transcribe|>"]
        assert tokenizer.decode(batch["decoder_input_ids"][0][1 : given - 1]).strip() == "four five"
        assert batch["labels"][0][: given - 1].eq(IGNORED_LABEL).all()
        assert batch["labels"][0][given - 1 :].tolist()[: len(label)] == label

    def test_a_text_before_has_what_room_the_label_leaves(self, recognizer: Recognizer) -> None:
        (label,) = recognizer.encode_labels(["one two three"])
        after = recognizer.label_after(label, "four five " * 1000)
        assert len(label) + 2 < len(after) <= recognizer.limits.label_tokens

    def test_they_are_what_a_call_of_the_tokenizer_gives_whatever_it_was_called_with_before(
        self, recognizer: Recognizer
    ) -> None:
        tokenizer = recognizer.processor.tokenizer
        texts = [*TEXTS, "", " two  blanks ", "<|endoftext|> <|nospeech|>", "e\u0301 \u200d 🎉 ไทย\n", "word " * 600]
        tokenizer(texts, padding=True, truncation=True, max_length=4)
        labels = recognizer.encode_labels(texts)
        assert labels == [ids[1:] for ids in tokenizer(texts, add_special_tokens=True)["input_ids"]]

    def test_no_texts_have_no_labels(self, recognizer: Recognizer) -> None:
        assert recognizer.encode_labels([]) == []


class TestLoss:
    @pytest.fixture
    def batch(self) -> tuple[torch.Tensor, torch.Tensor]:
        generator = torch.Generator().manual_seed(0)
        logits = torch.randn(6, 5, 11, generator=generator, dtype=torch.float32)
        labels = torch.randint(0, 11, (6, 5), generator=generator)
        for row, length in enumerate([5, 1, 3, 2, 4, 5]):
            labels[row, length:] = IGNORED_LABEL
        return logits, labels

    @pytest.mark.parametrize("smoothing", [0.0, 0.1])
    def test_alone_it_is_the_mean_cross_entropy(self, batch: tuple[Any, Any], smoothing: float) -> None:
        logits, labels = batch
        expected = torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), ignore_index=IGNORED_LABEL, label_smoothing=smoothing
        )
        torch.testing.assert_close(label_loss(logits, labels, None, smoothing), expected)

    @pytest.mark.parametrize("parts", [[slice(0, 3), slice(3, 6)], [slice(0, 1), slice(1, 2), slice(2, 6)]])
    def test_parts_of_a_global_batch_add_up_to_the_whole(self, batch: tuple[Any, Any], parts: Sequence[slice]) -> None:
        logits, labels = batch
        count = labels.ne(IGNORED_LABEL).sum()
        added = sum(label_loss(logits[part], labels[part], count) for part in parts)
        torch.testing.assert_close(added, label_loss(logits, labels, None))

    def test_a_part_without_labels_adds_nothing_and_has_a_gradient(self, batch: tuple[Any, Any]) -> None:
        logits = batch[0].requires_grad_()
        loss = label_loss(logits, torch.full((6, 5), IGNORED_LABEL), 20)
        loss.backward()
        assert loss.item() == 0
        assert logits.grad is not None
        assert not logits.grad.any()


class TestInputFrames:
    def test_within_it_a_shorter_input_is_taken(self, recognizer: WhisperRecognizer) -> None:
        model = recognizer.model.eval()
        with torch.no_grad(), input_frames(recognizer.model, 100):
            assert model.get_encoder()(torch.zeros(1, 80, 100)).last_hidden_state.shape == (1, 50, 16)

    def test_afterwards_all_is_as_before(self, recognizer: WhisperRecognizer) -> None:
        model = recognizer.model
        before = json.dumps(model.config.to_dict(), default=str), model.get_encoder().embed_positions.weight.clone()
        with pytest.raises(RuntimeError, match="inside"), input_frames(recognizer.model, 100):
            raise RuntimeError("inside")
        assert json.dumps(model.config.to_dict(), default=str) == before[0]
        positions = model.get_encoder().embed_positions
        assert torch.equal(positions.weight, before[1])
        assert positions.num_embeddings == positions.weight.shape[0] == 150

    def test_the_whole_length_changes_nothing(self, recognizer: WhisperRecognizer) -> None:
        model = recognizer.model.eval()
        features = torch.randn(1, 80, 300, generator=torch.Generator().manual_seed(0))
        with torch.no_grad():
            plain = model.get_encoder()(features).last_hidden_state
            with input_frames(recognizer.model, 300):
                told = model.get_encoder()(features).last_hidden_state
        assert torch.equal(plain, told)


def test_a_language_without_a_token_is_given_that_of_another(hub_whisper: Path, tmp_path: Path) -> None:
    words = {"language": "Xhosa", "borrowed_language": "Swahili"}
    new = config({"model.language": "Xhosa", "model.borrowed_language": "Swahili"}).model
    FAMILY.write_description(tmp_path, TEXTS, new)
    released = config({"model": {"name_or_path": str(hub_whisper), **words}}).model
    for recognizer in (FAMILY.load_recognizer(new, tmp_path, seed=1), FAMILY.load_recognizer(released, None, seed=1)):
        tokens = recognizer.processor.tokenizer.convert_ids_to_tokens(recognizer.encode_labels(["a"])[0])
        assert "<|sw|>" in tokens
        assert recognizer.model.generation_config.language == "swahili"
