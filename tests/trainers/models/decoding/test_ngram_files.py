"""Files of language models and word lists that cannot serve are told by their first bytes."""

import gzip
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.trainers.models.decoding.ngrams import Ngrams, binary, tokenizer_of
from tests.trainers.run_folder.test_checkpoint_parts import ThreadSession
from trainers.config.storage_location import DEFAULT_STORAGE_OPTIONS, StorageOptions
from trainers.data.sources.located_files import read_start
from trainers.distributed.session import LocalSession
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_decode_part import CtcDecodePart
from trainers.models.ctc.decoding import decode_files
from trainers.models.ctc.decoding.decode_files import (
    DecodeFiles,
    check_files,
    local_files,
    read_entries,
    recognize,
    spell,
    words_of,
)
from trainers.storage import open_storage

MAGIC = b"mmap lm http://kheafield.com/code "


def beam(**fields: object) -> CtcDecodePart:
    return CtcDecodePart.model_validate({"method": "beam", **fields})


@pytest.fixture
def arpa(tmp_path: Path) -> Path:
    return Ngrams(["one two", "two three"]).write(tmp_path / "lm.arpa")


def test_an_arpa_file_says_its_order_and_its_words(arpa: Path) -> None:
    found = recognize(read_start(str(arpa), DEFAULT_STORAGE_OPTIONS), str(arpa))
    assert (found.kind, found.order, found.is_arpa) == ("ARPA", 2, True)
    assert sorted(words_of(arpa)) == ["one", "three", "two"]


@pytest.mark.parametrize("kind", ["probing", "trie"])
def test_a_binary_says_its_order_and_its_kind_and_needs_a_list_of_its_words(tmp_path: Path, kind: str) -> None:
    path = binary(kind)
    found = recognize(read_start(str(path), DEFAULT_STORAGE_OPTIONS), str(path))
    assert (found.kind, found.order, found.is_arpa) == ("KenLM binary", 2, False)
    with pytest.raises(ConfigError, match=r"is a KenLM binary, and decode\.lexicon is null: name a file"):
        check_files(beam(lm=str(path)), DEFAULT_STORAGE_OPTIONS)
    words = tmp_path / "words.txt"
    words.write_text("ab")
    assert check_files(beam(lm=str(path), lexicon=str(words)), DEFAULT_STORAGE_OPTIONS) == found
    assert check_files(beam(lm=str(path), lm_unit="tokens"), DEFAULT_STORAGE_OPTIONS) == found


@pytest.mark.parametrize(
    ("content", "wanted"),
    [
        (b"one two\n", r"its first line is 'one two', not \\data"),
        (b"", "its first line is ''"),
        (b"\n\\data\\\nngram 1=2\nngram 3=2\n", "'ngram 3=2' is not a count"),
        (b"\\data\\\nngram 1=2\n", "ends before its 1-grams"),
        (b"\\data\\\n\n\\1-grams:\n", "ends before its order"),
        (b"\\data\\\n" + b"".join(b"ngram %d=1\n" % each for each in range(1, 8)) + b"\\1-grams:\n", "of order 7, but"),
        (gzip.compress(b"\\data\\\n", mtime=0), "its first line is .*an ARPA file, unpacked"),
        (MAGIC + b"incomplete\n" + bytes(200), "its first line is '.*incomplete', .* a complete KenLM binary"),
        (MAGIC + b"format version 4\n" + bytes(200), "its first line is '.*format version 4', .* of version 5"),
        (MAGIC + b"format version 5\n", "ends before its order"),
    ],
)
def test_what_kenlm_does_not_read_is_refused_by_its_start(tmp_path: Path, content: bytes, wanted: str) -> None:
    path = tmp_path / "lm"
    path.write_bytes(content)
    with pytest.raises(ConfigError, match=rf"decode\.lm: {path}.*{wanted}"):
        check_files(beam(lm=str(path)), DEFAULT_STORAGE_OPTIONS)


@pytest.mark.parametrize("field", ["lm", "lexicon"])
def test_a_file_that_is_not_there_is_named_by_its_field(tmp_path: Path, field: str) -> None:
    with pytest.raises(ConfigError, match=rf"decode\.{field}: .*nowhere: no such file"):
        check_files(beam(**{field: str(tmp_path / "nowhere")}), DEFAULT_STORAGE_OPTIONS)


def test_files_of_a_bucket_are_opened_by_their_start_and_copied_for_the_search(
    s3_bucket: str, s3_endpoint: str, arpa: Path
) -> None:
    options = StorageOptions(s3_endpoint_url=s3_endpoint)
    storage = open_storage(f"{s3_bucket}/lm", options)
    storage.upload_file(arpa, "lm.arpa")
    storage.write_bytes("words.txt", b"one")
    part = beam(lm=f"{s3_bucket}/lm/lm.arpa", lexicon=f"{s3_bucket}/lm/words.txt")
    files = local_files(part, options, LocalSession(0, 1, 0))
    assert files.lm is not None and files.lm.read_bytes() == arpa.read_bytes()
    assert files.lexicon is not None and files.lexicon.read_bytes() == b"one"
    storage.write_bytes("words.txt", b"two")
    changed = local_files(part, options, LocalSession(0, 1, 0))
    assert changed.lm == files.lm
    assert changed.lexicon is not None and changed.lexicon.read_bytes() == b"two"
    with pytest.raises(ConfigError, match=r"decode\.lm: s3://.*gone\.arpa: no such file"):
        check_files(beam(lm=f"{s3_bucket}/gone.arpa"), options)


def test_ranks_share_a_copy_and_one_of_them_hashes_it(
    s3_bucket: str, s3_endpoint: str, arpa: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = StorageOptions(s3_endpoint_url=s3_endpoint)
    open_storage(f"{s3_bucket}/nodes", options).upload_file(arpa, "lm.arpa")
    together, items, hashed = threading.Barrier(2), [None, None], []

    def sha256_of(path: Path) -> str:
        hashed.append(path)
        return "0a"

    monkeypatch.setattr(decode_files, "sha256_of", sha256_of)

    def node(rank: int) -> DecodeFiles:
        session = ThreadSession(rank, 2, 0, together, items)
        files = local_files(beam(lm=f"{s3_bucket}/nodes/lm.arpa"), options, session)
        assert files.lm is not None and files.lm.read_bytes() == arpa.read_bytes()
        return files

    with ThreadPoolExecutor(2) as pool:
        first, second = pool.map(node, range(2))
    assert first.lm == second.lm and hashed == [first.lm]
    assert first.sha256 == second.sha256 == {"lm": "0a"}


def test_a_word_list_without_words_and_one_that_is_not_utf_8_are_refused(tmp_path: Path) -> None:
    for content, wanted in ((b"\n \n", "has no words"), ("čas".encode("latin2"), "is not UTF-8")):
        with pytest.raises(ConfigError, match=wanted):
            read_entries(content, "words.txt")


def test_words_that_cannot_be_spelled_are_left_out_counted_and_named() -> None:
    assert read_entries("ab\u2028a b\r\nb\n".encode(), "words.txt") == [("ab", ["a", "b"]), ("b", [])], "a word a line"
    entries = read_entries("ab\nžena\nb\n\nx|y\nmy [UNK]\nab b a |\n".encode(), "words.txt")
    lexicon = spell(entries, tokenizer_of("ab ba"), "decode.lexicon: words.txt")
    assert {*lexicon.spellings} == {"ab", "b"} and len(lexicon.spellings["ab"]) == 2
    assert lexicon.problem == "3 of 5 words cannot be spelled in the model's vocabulary (žena, x|y, my)"
    with pytest.raises(ConfigError, match=r"decode\.lexicon: words\.txt: 1 of 1 words cannot be spelled.*\(AB\)"):
        spell(read_entries(b"AB", "words.txt"), tokenizer_of("ab ba"), "decode.lexicon: words.txt")


def test_the_words_of_a_model_are_a_word_list_and_those_of_a_model_of_tokens_are_not(arpa: Path) -> None:
    tokenizer = tokenizer_of("one two three")
    found = DecodeFiles(None, arpa).words(beam(lm=str(arpa)), tokenizer)
    assert found is not None and {*found.spellings} == {"one", "two", "three"}
    assert DecodeFiles(None, arpa).words(beam(lm=str(arpa), lm_unit="tokens"), tokenizer) is None
    assert DecodeFiles(None, None).words(beam(), tokenizer) is None
