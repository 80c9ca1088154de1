"""Each clip has the language of its manifest's column `language`: in its labels, and where it is counted."""

import pickle
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from tests.trainers.multilingual import write_multilingual
from tests.trainers.prepared import prepared_train
from tests.trainers.synthetic import add_languages, config, write_corpus
from trainers.data.prepared_set import JoinedMember, JoinedSet, PreparedSet
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_family import CtcFamily
from trainers.models.family import Family
from trainers.models.labels import NOT_NAMED, clip_languages, labels_of, language_prefixes, languages_in
from trainers.models.seq2seq.seq2seq_family import Seq2SeqFamily
from trainers.models.whisper.whisper_family import WhisperFamily

TEXTS = ["one two", "", "four", "пет", "six"]
FAMILY: Family[Any] = WhisperFamily()


@pytest.fixture(scope="module")
def processor() -> Any:
    """Of English."""
    return FAMILY.new_processor(TEXTS * 20, config().model)


def prepared(folder: Path, languages: list[str] | None) -> PreparedSet:
    manifest = write_corpus(folder, TEXTS, durations_s=[0.2] * len(TEXTS))
    return prepared_train(
        add_languages(manifest, languages) if languages is not None else manifest, str(folder / "prepared")
    )


def column(*languages: str | None) -> pa.ChunkedArray:
    return pa.chunked_array([pa.array(languages, pa.string())])


def test_labels_begin_with_the_clip_s_own_language(tmp_path: Path, processor: Any) -> None:
    made = prepared(tmp_path, ["sr", "", "Thai", "sr-RS", "English"])
    labels = labels_of(made, FAMILY, processor, "English")
    begin = processor.tokenizer.convert_ids_to_tokens([labels[position][0] for position in range(len(labels))])
    assert begin == ["<|sr|>", "<|en|>", "<|th|>", "<|sr|>", "<|en|>"]
    assert [labels[position][1:] for position in range(len(labels))] == [
        ids[1:] for ids in FAMILY.encode_labels(processor, TEXTS)
    ]
    assert clip_languages(made.index, "English") == ["sr", "en", "th", "sr", "en"]


@pytest.mark.parametrize("languages", [None, [""] * 5, ["en", "English", "", "en-GB", "en"]])
def test_clips_of_the_config_s_language_have_the_labels_of_a_set_without_the_column(
    tmp_path: Path, processor: Any, languages: list[str] | None
) -> None:
    made = prepared(tmp_path, languages)
    labels = labels_of(made, FAMILY, processor, "English")
    assert [labels[position] for position in range(len(labels))] == FAMILY.encode_labels(processor, TEXTS)
    assert [*Path(made.url).glob("labels-*")] == [Path(made.url) / f"labels-{FAMILY.labels_fingerprint(processor)}.bin"]
    named = languages is not None and any(languages)
    assert ("language" in made.index.column_names) == named
    assert clip_languages(made.index, "English") == (["en"] * 5 if named else None)


def test_labels_of_a_mix_are_those_of_its_members_in_their_languages(tmp_path: Path, processor: Any) -> None:
    one, other = prepared(tmp_path / "one", ["sr", "", "", "", ""]), prepared(tmp_path / "other", None)
    joined = JoinedSet.of([JoinedMember("one", "Thai", one), JoinedMember("other", None, other)])
    labels = labels_of(joined, FAMILY, processor, "English")
    assert len(labels) == len(labels.lengths) == len(labels.repeats) == 10
    begin = processor.tokenizer.convert_ids_to_tokens([labels[position][0] for position in range(10)])
    assert begin == ["<|sr|>"] + ["<|th|>"] * 4 + ["<|en|>"] * 5
    assert clip_languages(joined.index, "English") == ["sr"] + ["th"] * 4 + ["en"] * 5
    assert [labels[position][1:] for position in range(5, 10)] == [
        ids[1:] for ids in FAMILY.encode_labels(processor, TEXTS)
    ]
    # The same set by itself, and in another language, has other labels next to them.
    alone = labels_of(one, FAMILY, processor, "English")
    assert processor.tokenizer.convert_ids_to_tokens(alone[1][0]) == "<|en|>"
    again = labels_of(JoinedSet.of([JoinedMember("one", "sr", one)]), FAMILY, processor, "English")
    assert processor.tokenizer.convert_ids_to_tokens([again[0][0], again[1][0]]) == ["<|sr|>", "<|sr|>"]
    assert [pickle.loads(pickle.dumps(labels))[position] for position in range(10)] == [
        labels[position] for position in range(10)
    ]


def test_a_language_without_a_token_is_refused_with_its_clips_and_the_fix(processor: Any) -> None:
    wrong = column("Klingon", "sr", None, "Klingon", "qqq")
    for each in (processor, None):
        with pytest.raises(ConfigError, match=r"2 clips have the language 'Klingon' \(Whisper has no token") as caught:
            language_prefixes(FAMILY, each, wrong, "English")
        assert "1 clip has the language 'qqq'" in str(caught.value)
        assert "--set data.use_language_column=false" in str(caught.value)


def test_the_config_s_language_has_the_token_that_it_borrows(processor: Any) -> None:
    assert language_prefixes(FAMILY, processor, column("Xhosa", None), "xhosa") == {}


def test_an_english_only_model_takes_english_clips_alone(processor: Any) -> None:
    class EnglishOnly(WhisperFamily):
        def encode_labels(self, processor: Any, texts: Any) -> list[list[int]]:
            return [ids[2:] for ids in super().encode_labels(processor, texts)]

    assert language_prefixes(EnglishOnly(), processor, column("en", "English"), None) == {}
    with pytest.raises(ConfigError, match=r"1 clip has the language 'sr' \(the model knows only English\)"):
        language_prefixes(EnglishOnly(), processor, column("en", "sr"), None)


def test_a_speech2text_has_the_languages_of_its_tokenizer(tmp_path: Path) -> None:
    write_multilingual(tmp_path)
    family = Seq2SeqFamily()
    model: Any = config({"model": {"name_or_path": str(tmp_path), "language": "fr"}}).model
    processor = family.open_processor(model, None)
    of_german = processor.tokenizer.lang_code_to_id["de"]
    assert language_prefixes(family, processor, column("German", "French", None), "fr") == {"German": [of_german]}
    with pytest.raises(ConfigError, match=r"1 clip has the language 'sr' \(the model has tokens for de, es, fr"):
        language_prefixes(family, processor, column("sr"), "fr")


def test_a_ctc_model_takes_any_language_and_counts_each() -> None:
    table = pa.table({"language": ["Klingon", None, "sr-RS"]})
    assert language_prefixes(CtcFamily(), None, languages_in(table), None) == {}
    assert clip_languages(table, None) == ["tlh", NOT_NAMED, "sr"]
