"""The beam search against sums over all paths, and what it must not depend on."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from transformers import Wav2Vec2CTCTokenizer

from tests.trainers.models.decoding.ngrams import SENTENCES, Ngrams, binary, every_text, random_logprobs, tokenizer_of
from tests.trainers.models.test_ctc import build, clip, part
from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS
from trainers.distributed.session import LocalSession
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_decode_part import CtcDecodePart, Weights
from trainers.models.ctc.decoding.beam_search import BeamSearch, Hypothesis
from trainers.models.ctc.decoding.decode_files import DecodeFiles, local_files
from trainers.models.recognizer import Decoding, Recognition, Search
from trainers.storage import sha256_of

NOTHING = DecodeFiles(None, None)
NO_WEIGHTS = Weights()
WIDE = {"beam_size": 100_000, "beam_threshold": 1e4}
TEXTS = ("ab ba", "a b")
WORDS = ("ab", "ba", "a", "b", "abba")


def searching(tokenizer: Any, files: DecodeFiles = NOTHING, **fields: Any) -> BeamSearch:
    """A search that drops nothing."""
    wanted = CtcDecodePart.model_validate({"method": "beam", **WIDE, **fields})
    return BeamSearch(tokenizer, wanted, files, len(tokenizer))


def best(search: BeamSearch, logprobs: Any, weights: Weights = NO_WEIGHTS) -> list[Hypothesis]:
    (found,) = search.search(logprobs, [weights])
    return found


@pytest.fixture
def word_list(tmp_path: Path) -> Path:
    path = tmp_path / "words.txt"
    path.write_text("\n".join(WORDS))
    return path


def words_alone(texts: Mapping[str, float]) -> dict[str, float]:
    """Those of all texts that are of listed words, however many delimiters there are; none at all is one, too."""
    found: dict[str, float] = {}
    for text, score in texts.items():
        if set(text.split()) <= set(WORDS):
            spaced = " ".join(text.split())
            found[spaced] = float(np.logaddexp(found.get(spaced, -np.inf), score))
    return found


def without_spaces(logprobs: npt.NDArray[np.float32], tokenizer: Any) -> npt.NDArray[np.float32]:
    """Outputs without delimiters, at the ends of a text these would make several label sequences of it."""
    logprobs[:, tokenizer.word_delimiter_token_id] = -50.0
    return logprobs


def assert_ranked(found: list[Hypothesis], scores: Mapping[str, float], weights: Weights) -> None:
    wanted = sorted(scores.items(), key=lambda item: -item[1])
    assert [each.text for each in found] == [text for text, _ in wanted]
    assert [each.score(weights) for each in found] == pytest.approx([score for _, score in wanted], abs=1e-4)


class TestAgainstAllPaths:
    @pytest.mark.parametrize("seed", range(4))
    def test_any_text_is_summed_over_its_alignments(self, seed: int) -> None:
        tokenizer = tokenizer_of("ab")
        logprobs = without_spaces(random_logprobs(5, len(tokenizer), seed), tokenizer)
        found, wanted = best(searching(tokenizer), logprobs), every_text(logprobs, tokenizer)
        likely = {text: score for text, score in wanted.items() if " " not in text and score > -40}
        assert_ranked([each for each in found if each.text in likely], likely, NO_WEIGHTS)

    @pytest.mark.parametrize("seed", range(4))
    def test_a_word_list_leaves_its_words_with_all_their_alignments(self, word_list: Path, seed: int) -> None:
        tokenizer = tokenizer_of(*TEXTS)
        logprobs = random_logprobs(6, len(tokenizer), seed)
        found = best(searching(tokenizer, DecodeFiles(word_list, None), lexicon=str(word_list)), logprobs)
        assert_ranked(found, words_alone(every_text(logprobs, tokenizer)), Weights())

    @pytest.mark.parametrize("listed", [True, False])
    @pytest.mark.parametrize("weights", [Weights(0.7, 0.5), Weights(2.0, -1.0), Weights(0.0, 1.0)])
    def test_an_n_gram_model_of_words_weighs_in_natural_logarithms(
        self, tmp_path: Path, word_list: Path, weights: Weights, listed: bool
    ) -> None:
        tokenizer, ngrams = tokenizer_of(*TEXTS), Ngrams(SENTENCES)
        files = DecodeFiles(word_list if listed else None, ngrams.write(tmp_path / "lm.arpa"))
        lexicon = str(word_list) if listed else None
        search = searching(tokenizer, files, lm="lm.arpa", lexicon=lexicon)
        logprobs = random_logprobs(6, len(tokenizer), 7)
        texts = words_alone(every_text(logprobs, tokenizer))
        scores = {
            text: acoustic + weights.lm * ngrams.logprob(text.split()) + weights.word * len(text.split())
            for text, acoustic in texts.items()
        }
        assert_ranked(best(search, logprobs, weights), scores, weights)

    @pytest.mark.parametrize("kind", ["probing", "trie"])
    def test_a_kenlm_binary_is_the_model_of_its_arpa_file(self, tmp_path: Path, word_list: Path, kind: str) -> None:
        tokenizer, listed = tokenizer_of(*TEXTS), {"lexicon": str(word_list), "lm": "lm"}
        arpa = Ngrams(SENTENCES).write(tmp_path / "lm.arpa")
        logprobs = random_logprobs(30, len(tokenizer), 2)
        of_arpa, of_binary = (
            best(
                searching(tokenizer, DecodeFiles(word_list, each), beam_size=20, **listed), logprobs, Weights(0.7, 0.5)
            )
            for each in (arpa, binary(kind))
        )
        assert of_binary == of_arpa

    @pytest.mark.parametrize("lm_weight", [0.0, 0.8])
    def test_an_n_gram_model_of_tokens_scores_any_text(self, tmp_path: Path, lm_weight: float) -> None:
        tokenizer, ngrams = tokenizer_of("ab"), Ngrams(("a b", "b a b", "a b"))
        files = DecodeFiles(None, ngrams.write(tmp_path / "lm.arpa"))
        search = searching(tokenizer, files, lm="lm.arpa", lm_unit="tokens")
        logprobs = without_spaces(random_logprobs(5, len(tokenizer), 3), tokenizer)
        texts = {text: each for text, each in every_text(logprobs, tokenizer).items() if " " not in text and each > -40}
        scores = {text: acoustic + lm_weight * ngrams.logprob([*text]) for text, acoustic in texts.items()}
        found = [each for each in best(search, logprobs, Weights(lm_weight)) if each.text in texts]
        assert_ranked(found, scores, Weights(lm_weight))

    @given(seed=st.integers(0, 10_000), frames=st.integers(1, 12))
    def test_without_weights_nothing_is_less_probable_than_the_best_path_s_text(self, seed: int, frames: int) -> None:
        tokenizer = tokenizer_of("abc d")
        logprobs = random_logprobs(frames, len(tokenizer), seed)
        logprobs[:, tokenizer.unk_token_id] = -50.0
        greedy = tokenizer.decode(logprobs.argmax(axis=1).tolist()).strip()
        found = best(searching(tokenizer, beam_size=500, beam_threshold=50.0), logprobs)
        of_greedy = next(each for each in found if each.text == greedy)
        assert found[0].acoustic >= of_greedy.acoustic >= float(logprobs.max(axis=1).sum()) - 1e-4


class TestVocabularies:
    def test_special_tokens_are_never_emitted(self) -> None:
        tokenizer = tokenizer_of("ab")
        logprobs = random_logprobs(6, len(tokenizer), 0)
        logprobs[:, tokenizer.unk_token_id] = 0.0
        assert all("UNK" not in each.text for each in best(searching(tokenizer), logprobs))

    def test_words_are_spelled_in_byte_level_tokens_after_a_word_and_at_the_beginning(self, word_list: Path) -> None:
        tokenizer = tokenizer_of("ab ba ab ba a b abba", vocabulary="bpe", vocab_size=300)
        search = searching(tokenizer, DecodeFiles(word_list, None), lexicon=str(word_list), beam_size=50)
        logprobs = np.full((6, len(tokenizer)), -30.0, np.float32)
        ids = tokenizer("ba ab").input_ids
        path = [id for each in ids for id in (each, tokenizer.pad_token_id)]
        path += [tokenizer.pad_token_id] * (6 - len(path))
        logprobs[np.arange(6), path[:6]] = -0.01
        found = best(search, logprobs)[0]
        assert found.text == "ba ab"
        assert found.acoustic == pytest.approx(-0.06, abs=1e-3)

    @pytest.mark.parametrize("seed", range(3))
    def test_a_word_stands_in_a_text_of_byte_level_tokens_only_where_they_separate_it(
        self, tmp_path: Path, seed: int
    ) -> None:
        learned = ["to to to day day day xx xx"] * 3 + ["day day", "to to"]
        tokenizer = tokenizer_of(*learned, vocabulary="bpe", vocab_size=300)
        assert tokenizer.tokenize("today") == ["to", "day"] and tokenizer.tokenize(" today") == ["Ġto", "day"]
        vocabulary = tokenizer.get_vocab()
        ids = [vocabulary[each] for each in (tokenizer.pad_token, "to", "day", "Ġto", "Ġday")]
        path = tmp_path / "words.txt"
        path.write_text("to\nday\ntoday")
        logprobs = np.full((5, len(tokenizer)), -90.0, np.float32)
        logprobs[:, ids] = random_logprobs(5, len(ids), seed)
        likely = every_text(logprobs, tokenizer, ids)
        listed = {text: score for text, score in likely.items() if {*text.split()} <= {"to", "day", "today"}}
        files = DecodeFiles(path, None)
        found = best(searching(tokenizer, files, lexicon=str(path)), logprobs, Weights(word=2.0))
        assert {each.text for each in found} == listed.keys()
        assert all(each.acoustic <= listed[each.text] + 1e-4 for each in found)
        narrow = best(searching(tokenizer, files, lexicon=str(path), beam_size=1, beam_size_token=1), logprobs)
        assert {each.text for each in narrow} <= listed.keys()

    def test_any_text_of_byte_level_tokens_is_what_greedy_decoding_writes(self) -> None:
        texts = ["ab ba", "šum 3"]
        tokenizer = tokenizer_of(*texts, vocabulary="bpe", vocab_size=300)
        for text in texts:
            ids = [id for each in tokenizer(text).input_ids for id in (each, tokenizer.pad_token_id)]
            logprobs = np.full((len(ids), len(tokenizer)), -30.0, np.float32)
            logprobs[np.arange(len(ids)), ids] = -0.01
            assert best(searching(tokenizer, beam_size=20), logprobs)[0].text == text

    def test_a_word_list_spells_in_the_tokens_that_it_names(self, tmp_path: Path) -> None:
        path = tmp_path / "words.txt"
        path.write_text("Anna\ta b |\nOtto b a\n")
        tokenizer = tokenizer_of("ab ba")
        search = searching(tokenizer, DecodeFiles(path, None), lexicon=str(path))
        logprobs = random_logprobs(5, len(tokenizer), 1)
        assert {each.text for each in best(search, logprobs)} == {"", "Anna", "Otto", "Anna Otto", "Otto Anna"} | {
            "Anna Anna",
            "Otto Otto",
        }

    def test_what_a_language_model_s_vocabulary_has_beside_words_is_none(self, tmp_path: Path) -> None:
        path, arpa = tmp_path / "words.txt", Ngrams(["a b", "b"]).write(tmp_path / "lm.arpa")
        path.write_text("<unk> a b\n<s> a\n</s>\na\n<UNK> b\nb\n")
        tokenizer = tokenizer_of("ab ba")
        for lm in (None, arpa):
            files = DecodeFiles(path, lm)
            search = searching(tokenizer, files, lexicon=str(path), lm=None if lm is None else str(lm))
            found = best(search, random_logprobs(4, len(tokenizer), 1))
            assert {word for each in found for word in each.text.split()} == {"a", "b"}

    def test_released_vocabularies_of_capitals_and_special_tokens_spell_lists_that_name_the_tokens(
        self, tmp_path: Path
    ) -> None:
        tokens = ["<pad>", "<s>", "</s>", "<unk>", "|", "A", "B"]
        (tmp_path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
        tokenizer = Wav2Vec2CTCTokenizer(str(tmp_path / "vocab.json"))
        listed = DecodeFiles(tmp_path / "words.txt", None)
        (tmp_path / "words.txt").write_text("ab\nba\n")
        with pytest.raises(ConfigError, match=r"2 of 2 words cannot be spelled .* write them as the transcripts"):
            searching(tokenizer, listed, lexicon="words.txt")
        (tmp_path / "words.txt").write_text("ab A B |\nba B A |\n")
        logprobs = np.full((6, len(tokens)), -9.0, np.float32)
        path = [tokens.index(token) for token in ("A", "B", "|", "B", "A", "<pad>")]
        logprobs[np.arange(6), path] = -1.0
        logprobs[:, 1:4] = 0.0
        assert best(searching(tokenizer, listed, lexicon="words.txt"), logprobs)[0].text == "ab ba"
        assert best(searching(tokenizer), logprobs)[0].text == "AB BA"


class TestRecognizer:
    def test_best_path_and_the_other_weights_stand_beside_and_a_clip_too_short_is_heard_as_nothing(
        self, tmp_path: Path, word_list: Path
    ) -> None:
        recognizer = build(tmp_path, part(architecture="wav2vec2"))
        word_list.write_text("one\ntwo")
        wanted = CtcDecodePart(method="beam", lexicon=str(word_list))
        search = recognizer.open_search(wanted, DEFAULT_STORAGE_OPTIONS, LocalSession(0, 1, 0))
        inputs = recognizer.new_features().inputs([clip(0.8), clip(0.8)[:100]], None)
        labels, both = recognizer.encode_labels(["one", ""]), Search(search, (Weights(), Weights(word=90.0)))
        greedy = recognizer.recognize(inputs, labels, Decoding(wanted))
        found, nothing = recognizer.recognize(inputs, labels, Decoding(wanted, nbest=2, search=both))
        assert (found.greedy, found.loss) == (greedy[0].text, greedy[0].loss)
        assert len(found.by_other_settings) == 1 and len(found.by_other_settings[0].split()) > len(found.text.split())
        assert found.nbest is not None and 1 <= len(found.nbest) <= 2 and found.nbest[0].text == found.text
        assert found.nbest[0].avg_logprob == found.avg_logprob < 0
        assert nothing == Recognition("", 0.0, 0.0, greedy="", by_other_settings=("",))


class TestEdges:
    def test_a_clip_too_short_for_any_word_has_the_empty_hypothesis(self, tmp_path: Path) -> None:
        path = tmp_path / "words.txt"
        path.write_text("abba")
        tokenizer = tokenizer_of("ab ba")
        logprobs = random_logprobs(2, len(tokenizer), 0)
        (found,) = best(searching(tokenizer, DecodeFiles(path, None), lexicon=str(path)), logprobs)
        assert found.text == "" and -50 < found.acoustic < 0

    def test_where_no_word_was_whole_at_the_end_of_a_narrow_beam_the_score_is_of_the_outputs(
        self, tmp_path: Path
    ) -> None:
        path = tmp_path / "words.txt"
        path.write_text("abba")
        tokenizer = tokenizer_of("ab ba")
        logprobs = np.full((3, len(tokenizer)), -30.0, np.float32)
        logprobs[np.arange(3), tokenizer("abb").input_ids] = -0.01
        search = searching(tokenizer, DecodeFiles(path, None), lexicon=str(path), beam_size=1)
        (found,) = best(search, logprobs)
        assert found.text == "" and -100 < found.acoustic < 0

    def test_what_is_decoded_before_changes_nothing(self, word_list: Path) -> None:
        tokenizer = tokenizer_of(*TEXTS)
        search = searching(tokenizer, DecodeFiles(word_list, None), lexicon=str(word_list), beam_size=20)
        clips = [random_logprobs(frames, len(tokenizer), frames) for frames in (30, 5, 60, 1)]
        first = [best(search, clip) for clip in clips]
        assert [best(search, clip) for clip in reversed(clips)] == first[::-1]

    def test_several_weights_at_once_are_each_as_alone(self, tmp_path: Path, word_list: Path) -> None:
        tokenizer = tokenizer_of(*TEXTS)
        files = DecodeFiles(word_list, Ngrams(SENTENCES).write(tmp_path / "lm.arpa"))
        search = searching(tokenizer, files, lm="lm.arpa", lexicon=str(word_list), beam_size=20)
        choices = [Weights(0.5, 1.0), Weights(0.0, 0.0), Weights(0.5, -1.0)]
        logprobs = random_logprobs(30, len(tokenizer), 2)
        assert search.search(logprobs, choices) == [best(search, logprobs, each) for each in choices]

    def test_a_model_that_kenlm_cannot_read_is_an_error_of_the_config(self, tmp_path: Path, word_list: Path) -> None:
        path = tmp_path / "lm.arpa"
        path.write_text("\\data\\\nngram 1=2\n\n\\1-grams:\nnumber\ta\n")
        with pytest.raises(ConfigError, match=r"decode\.lm: lm\.arpa cannot be read by KenLM: .*; give an ARPA"):
            searching(tokenizer_of("ab"), DecodeFiles(word_list, path), lm="lm.arpa", lexicon=str(word_list))


def test_the_record_names_files_by_their_content_when_they_were_opened(tmp_path: Path, word_list: Path) -> None:
    arpa = Ngrams(SENTENCES).write(tmp_path / "lm.arpa")
    wanted = CtcDecodePart(method="beam", lm=str(arpa), lexicon=str(word_list))

    def said() -> dict[str, Any]:
        files = local_files(wanted, DEFAULT_STORAGE_OPTIONS, LocalSession(0, 1, 0))
        search = searching(tokenizer_of(*TEXTS), files, lm=str(arpa), lexicon=str(word_list))
        arpa.write_text(arpa.read_text() + "\n")
        return search.describe()

    first = said()
    assert first["lm"].keys() == {"path", "sha256", "unit"} and first["lm"]["path"] == str(arpa)
    assert first["lexicon"]["sha256"] == sha256_of(word_list)
    assert first["words"] == len(WORDS) and first["words_left_out"] == 0
    second = said()
    assert sha256_of(arpa) not in (first["lm"]["sha256"], second["lm"]["sha256"]) and first["lm"] != second["lm"]


def test_the_test_s_own_model_is_a_distribution() -> None:
    ngrams = Ngrams(SENTENCES)
    words = list(ngrams.unigrams)
    for history in ngrams.backoffs:
        assert sum(math.exp(ngrams._logprob((history, word))) for word in words) == pytest.approx(1.0)
