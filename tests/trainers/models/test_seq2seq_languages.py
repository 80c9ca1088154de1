"""A multilingual Speech2Text writes the config's language: in its labels, its hypotheses and what it exports."""

from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, GenerationConfig

from tests.trainers.multilingual import TEXTS, write_multilingual, write_tokenizer
from tests.trainers.synthetic import config, speechlike
from trainers.config.parts.decode_part import GenerationPart
from trainers.config.parts.model_part import ModelPart
from trainers.errors import ConfigError
from trainers.models.family import Family
from trainers.models.recognizer import Decoding
from trainers.models.seq2seq.seq2seq_family import Seq2SeqFamily, token_of
from trainers.models.seq2seq.seq2seq_recognizer import Seq2SeqRecognizer

FAMILY: Family[Any] = Seq2SeqFamily()


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny model with tokens of languages, as `save_pretrained` leaves it."""
    made = tmp_path_factory.mktemp("multilingual")
    write_multilingual(made)
    return made


def part(folder: Path, language: str | None) -> ModelPart:
    return config({"model": {"name_or_path": str(folder), "language": language}}).model


def opened(folder: Path, language: str | None) -> Seq2SeqRecognizer:
    recognizer = FAMILY.load_recognizer(part(folder, language), None, seed=1)
    assert isinstance(recognizer, Seq2SeqRecognizer)
    recognizer.model.eval()
    return recognizer


def written(recognizer: Seq2SeqRecognizer, *codes: str, num_beams: int = 1) -> list[list[int]]:
    """Tokens of hypotheses, as `generate` gives them."""
    made: list[torch.Tensor] = []
    plain = recognizer.model.generate

    def generate(**options: Any) -> torch.Tensor:
        made.append(plain(**options))
        return made[-1]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recognizer.model, "generate", generate)
        clips = [torch.from_numpy(speechlike(1.0, seed)) for seed in range(len(TEXTS))]
        inputs = recognizer.new_features().inputs(clips, None)
        labels = recognizer.encode_labels(TEXTS)
        for ids, code in zip(labels, codes, strict=False):
            ids[0] = recognizer.processor.tokenizer.lang_code_to_id[code]
        found = recognizer.recognize(inputs, labels, Decoding(GenerationPart(max_length=6, num_beams=num_beams)))
    assert all("<lang:" not in item.text and item.avg_logprob < 0 for item in found)
    return [row[1:] for row in made[0].tolist()]


@pytest.mark.parametrize(("language", "code"), [("German", "de"), ("fr", "fr")])
def test_labels_and_hypotheses_begin_with_the_language(folder: Path, language: str, code: str) -> None:
    recognizer = opened(folder, language)
    token = recognizer.processor.tokenizer.lang_code_to_id[code]
    labels = recognizer.encode_labels(TEXTS)
    assert [ids[0] for ids in labels] == [token] * 3
    assert [recognizer.processor.tokenizer.decode(ids, skip_special_tokens=True) for ids in labels] == TEXTS
    assert [row[0] for row in written(recognizer)] == [token] * 3


@pytest.mark.parametrize("num_beams", [1, 3])
def test_each_hypothesis_of_a_batch_begins_with_the_language_of_its_labels(folder: Path, num_beams: int) -> None:
    recognizer, codes = opened(folder, "German"), ("fr", "de", "it")
    tokens = [recognizer.processor.tokenizer.lang_code_to_id[code] for code in codes]
    assert [row[0] for row in written(recognizer, *codes, num_beams=num_beams)] == tokens


def test_other_languages_are_other_labels(folder: Path) -> None:
    processors = [FAMILY.open_processor(part(folder, language), None) for language in ("German", "French", None)]
    for one, other in pairwise(processors):
        assert FAMILY.labels_fingerprint(one) != FAMILY.labels_fingerprint(other)


def test_without_a_language_it_is_the_tokenizer_s_own(folder: Path) -> None:
    recognizer = opened(folder, None)
    own = recognizer.processor.tokenizer.lang_code_to_id["pt"]
    assert [ids[0] for ids in recognizer.encode_labels(TEXTS)] == [own] * 3
    assert [row[0] for row in written(recognizer)] == [own] * 3


def test_what_is_exported_writes_the_language_by_itself(folder: Path, tmp_path: Path) -> None:
    recognizer = opened(folder, "German")
    recognizer.model.save_pretrained(tmp_path)
    recognizer.processor.save_pretrained(tmp_path)
    token = recognizer.processor.language_id
    assert GenerationConfig.from_pretrained(tmp_path).forced_bos_token_id == token
    assert AutoTokenizer.from_pretrained(tmp_path).tgt_lang == "de"
    again = FAMILY.open_exported(tmp_path)
    assert again.encode_labels(TEXTS) == recognizer.encode_labels(TEXTS)
    assert isinstance(again, Seq2SeqRecognizer)
    assert [row[0] for row in written(again)] == [token] * 3


def test_a_run_from_a_checkpoint_takes_the_config_s_language(folder: Path, tmp_path: Path) -> None:
    saved = tmp_path / "checkpoint"
    recognizer = opened(folder, "German")
    recognizer.model.save_pretrained(saved)
    recognizer.processor.save_pretrained(saved)
    FAMILY.adopt_description(saved, tmp_path / "description", part(folder, "French"))
    began = FAMILY.load_recognizer(part(folder, "French"), tmp_path / "description", seed=1, weights=saved)
    french = recognizer.processor.tokenizer.lang_code_to_id["fr"]
    assert [ids[0] for ids in began.encode_labels(TEXTS)] == [french] * 3
    assert began.model.generation_config.forced_bos_token_id == french


@pytest.mark.parametrize("language", ["Serbian", "Xhosa"])
def test_a_language_without_a_token_is_refused_with_what_there_is(folder: Path, language: str) -> None:
    with pytest.raises(ConfigError, match=rf"model\.language is {language}, and {folder} has tokens for de, es, fr"):
        FAMILY.open_processor(part(folder, language), None)


def test_a_tokenizer_of_one_language_says_nothing_of_it(folder: Path, tmp_path: Path) -> None:
    for file in folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    write_tokenizer(tmp_path).save_pretrained(tmp_path)
    processors = [FAMILY.open_processor(part(tmp_path, language), None) for language in ("English", None)]
    assert [item.language_id for item in processors] == [None, None]
    one, other = (FAMILY.encode_labels(item, TEXTS) for item in processors)
    assert one == other


def test_a_vocabulary_that_tells_languages_apart_by_codes_has_the_one_that_is_named() -> None:
    codes = ["arb_Arab", "arz_Arab", "zho_Hans", "zho_Hant", "pes_Arab", "prs_Arab"]
    tokenizer = SimpleNamespace(lang_code_to_id={code: number for number, code in enumerate(codes)})
    assert [token_of(tokenizer, code) for code in codes] == codes
    assert [token_of(tokenizer, name) for name in ("Arabic", "zh", "prs")] == ["arb_Arab", "zho_Hans", "pes_Arab"]
    assert token_of(tokenizer, "Serbian") is None
