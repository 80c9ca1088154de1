"""What a model makes of an utterance: hypothesis, its average log-probability, and the n best of a beam search."""

from pathlib import Path
from typing import Any

import pytest
import torch

from tests.trainers.synthetic import config, speechlike
from trainers.config.parts.decode_part import GenerationPart
from trainers.data.features import LogMel
from trainers.models.family import Family
from trainers.models.recognizer import Decoding, Recognition, label_loss
from trainers.models.whisper import whisper_recognizer
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.models.whisper.whisper_recognizer import WhisperRecognizer, input_frames

TEXTS = ["one two three", "four", "здраво свете", "日本語"]
FAMILY: Family[Any] = WhisperFamily()
LIMIT = 5


def how(num_beams: int, nbest: int | None = None) -> Decoding:
    return Decoding(GenerationPart(max_length=LIMIT, num_beams=num_beams), nbest)


@pytest.fixture(scope="module")
def recognizer(tmp_path_factory: pytest.TempPathFactory) -> WhisperRecognizer:
    """A model that has learned its four utterances half by heart, so that it ends some by itself and not others."""
    folder = tmp_path_factory.mktemp("description")
    model = config({"model.language": "Serbian", "model.d_model": 32}).model
    FAMILY.write_description(folder, TEXTS, model)
    recognizer = FAMILY.load_recognizer(model, folder, seed=1)
    assert isinstance(recognizer, WhisperRecognizer)
    network, labels = recognizer.model, recognizer.encode_labels(TEXTS)
    optimizer = torch.optim.AdamW(network.parameters(), lr=5e-3)
    network.train()
    with input_frames(recognizer.model, 300):
        for _ in range(30):
            inputs = recognizer.collate_labels(labels, [])
            targets = inputs.pop("labels")
            loss = label_loss(network(features_of(recognizer), **inputs).logits, targets, None)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
    network.eval()
    return recognizer


def recognized(recognizer: WhisperRecognizer, features: torch.Tensor, *rest: Any) -> list[Recognition]:
    return recognizer.recognize({"input_features": features}, *rest)


def features_of(recognizer: WhisperRecognizer) -> torch.Tensor:
    extractor = LogMel(recognizer.processor.feature_extractor)
    clips = [torch.from_numpy(speechlike(1.0 + seed / 4, seed)) for seed in range(len(TEXTS))]
    return torch.stack([extractor(clip, 300) for clip in clips])


def greedy(recognizer: WhisperRecognizer, clip: torch.Tensor) -> tuple[list[int], float]:
    """A plain greedy search of one utterance, without a cache: its tokens, and their mean log-probability."""
    model, tokenizer = recognizer.model, recognizer.processor.tokenizer
    first_time = tokenizer.convert_tokens_to_ids("<|notimestamps|>") + 1
    ids: list[int] = [model.config.decoder_start_token_id, *tokenizer.prefix_tokens[1:]]
    start, sums = len(ids), []
    with torch.no_grad(), input_frames(recognizer.model, 300):
        while len(ids) - start < LIMIT and (len(ids) == start or ids[-1] != tokenizer.eos_token_id):
            logits = model(clip[None], decoder_input_ids=torch.tensor([ids])).logits[0, -1]
            ids.append(int(logits[:first_time].argmax()))
            sums.append(float(torch.log_softmax(logits, dim=0)[ids[-1]]))
    return ids[start:], sum(sums) / len(sums)


def test_the_average_log_probability_is_that_of_the_tokens_one_by_one(recognizer: WhisperRecognizer) -> None:
    features = features_of(recognizer)
    found = recognized(recognizer, features, recognizer.encode_labels(TEXTS), how(1))
    expected = [greedy(recognizer, clip) for clip in features]
    decode = recognizer.processor.tokenizer.decode
    assert [item.text for item in found] == [decode(ids, skip_special_tokens=True).strip() for ids, _ in expected]
    assert [item.avg_logprob for item in found] == pytest.approx([mean for _, mean in expected], rel=1e-4)
    assert {ids[-1] == recognizer.processor.tokenizer.eos_token_id for ids, _ in expected} == {True, False}
    assert [item.nbest for item in found] == [None] * len(TEXTS)


def test_the_n_best_are_different_and_begin_with_the_hypothesis(recognizer: WhisperRecognizer) -> None:
    features, labels = features_of(recognizer), recognizer.encode_labels(TEXTS)
    found = recognized(recognizer, features, labels, how(4, nbest=3))
    for item in found:
        assert item.nbest is not None
        assert item.nbest[0].text == item.text
        assert item.nbest[0].avg_logprob == pytest.approx(item.avg_logprob, rel=1e-4)
        assert len({other.text for other in item.nbest}) == 3
        scores = [other.avg_logprob for other in item.nbest]
        assert scores == sorted(scores, reverse=True), "beams are ordered by it, with a length penalty of 1"


def test_published_weights_give_the_n_best_with_their_prompt_and_what_they_suppress(hub_whisper: Path) -> None:
    model = config({"model": {"name_or_path": str(hub_whisper), "language": "Serbian"}}).model
    recognizer = FAMILY.load_recognizer(model, None, seed=1)
    assert isinstance(recognizer, WhisperRecognizer)
    features = torch.randn(2, 80, 300, generator=torch.Generator().manual_seed(0))
    labels = recognizer.encode_labels(TEXTS[:2])
    for item in recognized(recognizer, features, labels, how(3, nbest=2)):
        assert item.nbest is not None
        assert item.nbest[0].text == item.text != item.nbest[1].text
        assert item.nbest[0].avg_logprob == pytest.approx(item.avg_logprob, rel=1e-4)


def test_the_decoder_is_given_one_encoded_clip_for_each_of_its_rows(recognizer: WhisperRecognizer) -> None:
    """A beam search repeats the clips that it is given in place; attention over copies gives the same, and is dear."""
    rows = []

    def look(decoder: Any, given: Any, options: dict[str, Any]) -> None:
        rows.append((len(options["input_ids"]), len(options["encoder_hidden_states"])))

    hook = recognizer.model.get_decoder().register_forward_pre_hook(look, with_kwargs=True)
    try:
        recognized(recognizer, features_of(recognizer), recognizer.encode_labels(TEXTS), how(3, nbest=2))
    finally:
        hook.remove()
    assert {ids for ids, _ in rows} == {4, 8, 12}
    assert [ids for ids, _ in rows] == [clips for _, clips in rows]


def test_asking_for_more_changes_no_hypothesis(recognizer: WhisperRecognizer) -> None:
    features, labels = features_of(recognizer), recognizer.encode_labels(TEXTS)
    one, all_four = (recognized(recognizer, features, labels, how(4, nbest=count)) for count in (None, 4))
    assert [(item.text, item.loss, item.avg_logprob) for item in one] == [
        (item.text, item.loss, item.avg_logprob) for item in all_four
    ]


@pytest.mark.parametrize("decoding", [how(1), how(4, nbest=3)])
def test_a_cache_of_fixed_length_as_on_gpus_gives_the_same(
    recognizer: WhisperRecognizer, monkeypatch: pytest.MonkeyPatch, decoding: Decoding
) -> None:
    assert whisper_recognizer.cache_options(torch.device("cpu")) == {}
    features, labels = features_of(recognizer), recognizer.encode_labels(TEXTS)
    expected = recognized(recognizer, features, labels, decoding)
    shorter = recognized(recognizer, features[:2, :, :200], labels[:2], decoding)
    options = whisper_recognizer.cache_options(torch.device("cuda"))
    assert options["cache_implementation"] == "static"
    monkeypatch.setattr(whisper_recognizer, "cache_options", lambda device: options)
    # Buckets, one after the other.
    for found, wanted in (
        (recognized(recognizer, features, labels, decoding), expected),
        (recognized(recognizer, features[:2, :, :200], labels[:2], decoding), shorter),
        (recognized(recognizer, features, labels, decoding), expected),
    ):
        assert [item.text for item in found] == [item.text for item in wanted]
        assert [item.avg_logprob for item in found] == pytest.approx([item.avg_logprob for item in wanted], rel=1e-5)


def test_an_utterance_s_numbers_do_not_depend_on_its_batch(recognizer: WhisperRecognizer) -> None:
    features, labels = features_of(recognizer), recognizer.encode_labels(TEXTS)
    decoding = how(4, nbest=2)
    together = recognized(recognizer, features, labels, decoding)
    for index, item in enumerate(together):
        alone = recognized(recognizer, features[index : index + 1], labels[index : index + 1], decoding)[0]
        assert alone.nbest is not None and item.nbest is not None
        assert [other.text for other in alone.nbest] == [other.text for other in item.nbest]
        assert [other.avg_logprob for other in alone.nbest] == pytest.approx(
            [other.avg_logprob for other in item.nbest], rel=1e-4
        )


@pytest.mark.parametrize("decoding", [how(1), how(3, nbest=2)])
def test_each_utterance_of_a_batch_is_generated_in_the_language_of_its_labels(
    recognizer: WhisperRecognizer, decoding: Decoding
) -> None:
    features, serbian = features_of(recognizer), recognizer.encode_labels(TEXTS)
    tokens = recognizer.processor.tokenizer.convert_tokens_to_ids(["<|sr|>", "<|th|>", "<|sr|>", "<|en|>"])
    mixed = [[token, *ids[1:]] for token, ids in zip(tokens, serbian, strict=True)]
    together = recognized(recognizer, features, mixed, decoding)
    alone = [recognized(recognizer, features[row : row + 1], mixed[row : row + 1], decoding)[0] for row in range(4)]
    assert [item.text for item in together] == [item.text for item in alone]
    assert [item.loss for item in together] == pytest.approx([item.loss for item in alone], rel=1e-5)
    assert [item.avg_logprob for item in together] == pytest.approx([item.avg_logprob for item in alone], rel=1e-5)
    in_serbian = recognized(recognizer, features, serbian, decoding)
    same = [one.avg_logprob == pytest.approx(two.avg_logprob) for one, two in zip(together, in_serbian, strict=True)]
    assert same == [True, False, True, False]
    assert recognizer.model.generation_config.language == "serbian"
