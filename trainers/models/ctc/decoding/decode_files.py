"""Reads the files of a beam search: words, an n-gram language model, a causal model's description. Loads no torch."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trainers.config.storage_location import StorageOptions, is_url
from trainers.data.node_cache import NodeCache
from trainers.data.sources.located_files import describe, read_location, read_start, reason_of
from trainers.errors import ConfigError
from trainers.findings import named
from trainers.models.ctc.ctc_decode_part import CtcDecodePart
from trainers.models.pretrained import open_named
from trainers.storage import open_storage, sha256_of

if TYPE_CHECKING:
    # Loads torch, which the checks before a run do not need.
    from trainers.distributed.session import Session

# Entries in the vocabularies of language models that are not words.
SENTENCE_MARKS = ("<s>", "</s>", "<unk>", "<UNK>")


@dataclass(frozen=True)
class Lexicon:
    """The words that the vocabulary can spell, and `left_out`, the words that it cannot.

    Attributes:
        spellings: Label ids of each word, without a delimiter; one or more spellings.
        at_first: Additional spellings of a word at the beginning of a text.
    """

    spellings: dict[str, list[tuple[int, ...]]]
    left_out: list[str]
    at_first: dict[str, list[tuple[int, ...]]]

    @property
    def problem(self) -> str | None:
        if not self.left_out:
            return None
        left_out, total = len(self.left_out), len(self.left_out) + len(self.spellings)
        return f"{left_out} of {total} words cannot be spelled in the model's vocabulary ({named(self.left_out)})"


def read_entries(content: bytes, location: str) -> list[tuple[str, list[str]]]:
    """Returns each word of a word list with its spelling in tokens, which is [] if the tokenizer must spell it.

    The content is UTF-8, one word per line, optionally followed by the tokens that spell it, separated by whitespace.
    Marks of sentence ends and unknown words are left out. Raises ConfigError for other content.
    """
    try:
        lines = content.decode("utf-8-sig").split("\n")
    except UnicodeDecodeError as error:
        raise ConfigError(f"decode.lexicon: {location} is not UTF-8: save it as UTF-8") from error
    rows = [fields for line in lines if (fields := line.split())]
    entries = [(fields[0], fields[1:]) for fields in rows if fields[0] not in SENTENCE_MARKS]
    if not entries:
        raise ConfigError(f"decode.lexicon: {location} has no words: write one a line")
    return entries


def spell(entries: Iterable[tuple[str, list[str]]], tokenizer: Any, origin: str) -> Lexicon:
    """Spells the words from `read_entries` with a model's vocabulary.

    If no token stands for the space between words, the space is part of the following word's tokens. At the beginning
    of a text such a word is spelled without the space, which elsewhere would join it to the word before.

    Raises:
        ConfigError: None of the words can be spelled; the message begins with `origin`.
    """
    delimiter = delimiter_of(tokenizer)
    unusable = {tokenizer.unk_token_id, tokenizer.pad_token_id, delimiter}
    vocabulary = tokenizer.get_vocab()
    found: dict[str, list[tuple[int, ...]]] = {}
    at_first: dict[str, list[tuple[int, ...]]] = {}
    left_out: dict[str, None] = {}

    def usable(ids: list[int]) -> list[tuple[int, ...]]:
        return [tuple(ids)] if ids and unusable.isdisjoint(ids) else []

    def spelled(text: str) -> list[tuple[int, ...]]:
        return usable(tokenizer(text, add_special_tokens=False).input_ids)

    for word, tokens in entries:
        first: list[tuple[int, ...]] = []
        if tokens:
            given = [vocabulary.get(token, tokenizer.unk_token_id) for token in tokens]
            # Lexicons of other decoders include the delimiter.
            ways = usable(given[:-1] if given[-1] == delimiter else given)
        elif delimiter is not None:
            ways = spelled(word)
        else:
            first = spelled(word)
            # Without a token for spaces, a word has the same spelling everywhere.
            ways = spelled(f" {word}") or first
        if not ways:
            left_out[word] = None
            continue
        for known, each in ((found, ways), (at_first, first)):
            known[word] = [*dict.fromkeys([*known.get(word, ()), *each])]
    # A spelling that is valid everywhere is listed once.
    at_first = {word: [way for way in ways if way not in found[word]] for word, ways in at_first.items()}
    lexicon = Lexicon(found, [word for word in left_out if word not in found], at_first)
    if not found:
        raise ConfigError(f"{origin}: {lexicon.problem}: write them as the transcripts are written")
    return lexicon


def delimiter_of(tokenizer: Any) -> int | None:
    """Returns the id of the token between words; None if there is none."""
    token = getattr(tokenizer, "word_delimiter_token", None)
    return tokenizer.get_vocab().get(token) if token is not None else None


# Limit of KenLM as built by flashlight-text.
MAX_ORDER = 6
_FIX = "give an ARPA file, unpacked, or a complete KenLM binary of version 5"
# The beginning of a finished binary, and where its header has the order (lm/binary_format.cc).
_BINARY, _ORDER_AT = b"mmap lm http://kheafield.com/code format version 5\n", 88


@dataclass(frozen=True)
class NgramFile:
    """Description of a language model in a file: its kind, and the order of its n-grams of words or tokens."""

    is_arpa: bool
    order: int

    @property
    def kind(self) -> str:
        return "ARPA" if self.is_arpa else "KenLM binary"


def recognize(start: bytes, location: str) -> NgramFile:
    """Returns the kind of language model in a file, by its first bytes; raises ConfigError if KenLM cannot read it."""
    is_binary = start.startswith(_BINARY)
    order = next(iter(start[_ORDER_AT:]), 0) if is_binary else _arpa_order(start, location)
    if not order:
        raise ConfigError(f"decode.lm: {location} ends before its order: {_FIX}")
    found = NgramFile(not is_binary, order)
    if order > MAX_ORDER:
        raise ConfigError(
            f"decode.lm: {location}: is an n-gram model of order {order}, but KenLM reads up to {MAX_ORDER}: "
            "estimate a model of a lower order"
        )
    return found


def _arpa_order(start: bytes, location: str) -> int:
    head, grams, _ = start.decode("utf-8", errors="replace").partition("\n\\1-grams:")
    first, *counts = [line.strip() for line in head.splitlines() if line.strip()] or [""]
    if first != "\\data\\":
        raise ConfigError(f"decode.lm: {location}: its first line is {first[:60]!r}, not \\data\\ as in ARPA: {_FIX}")
    for order, count in enumerate(counts, start=1):
        if re.fullmatch(rf"ngram\s+{order}\s*=\s*\d+", count) is None:
            raise ConfigError(f"decode.lm: {location}: {count[:40]!r} is not a count of n-grams: {_FIX}")
    if not grams:
        raise ConfigError(f"decode.lm: {location} ends before its 1-grams: {_FIX}")
    return len(counts)


def words_of(arpa: Path) -> Iterator[str]:
    """Yields the words of an ARPA file, except the marks of sentence ends and unknown words."""
    with arpa.open(encoding="utf-8", errors="replace", newline="\n") as file:
        for line in file:
            if line.startswith("\\1-grams:"):
                break
        for line in file:
            fields = line.split()
            if not fields:
                continue
            if fields[0].startswith("\\") and len(fields) == 1:
                return
            if len(fields) > 1 and fields[1] not in SENTENCE_MARKS:
                yield fields[1]


@dataclass(frozen=True)
class DecodeFiles:
    """Word list and n-gram model of a config's decode part on this node, and the SHA-256 of each by field."""

    lexicon: Path | None
    lm: Path | None
    sha256: Mapping[str, str] = field(default_factory=dict)

    def words(self, part: CtcDecodePart, tokenizer: Any) -> Lexicon | None:
        """Returns the words of the word list, or of a model of words, that hypotheses may have; None for any text.

        Raises as `read_entries` and `spell`.
        """
        if self.lexicon is not None:
            return _listed(part, tokenizer, self.lexicon.read_bytes())
        if self.lm is None or part.lm_unit == "tokens":
            return None
        return spell(((word, []) for word in words_of(self.lm)), tokenizer, f"decode.lm: {part.lm}")


def _listed(part: CtcDecodePart, tokenizer: Any, content: bytes) -> Lexicon:
    return spell(read_entries(content, str(part.lexicon)), tokenizer, f"decode.lexicon: {part.lexicon}")


def local_words(part: CtcDecodePart, tokenizer: Any, storage_options: StorageOptions) -> Lexicon | None:
    """See `DecodeFiles.words`; also returns None if the words are in a language model in a bucket, which is large."""
    if part.lexicon is not None:
        return _listed(part, tokenizer, read_location(part.lexicon, storage_options))
    local = part.lm is not None and not is_url(part.lm)
    return DecodeFiles(None, Path(str(part.lm))).words(part, tokenizer) if local else None


def check_files(part: CtcDecodePart, storage_options: StorageOptions) -> NgramFile | None:
    """Finds within seconds what would stop the search; returns the kind of language model, or None if there is none.

    Raises ConfigError if a file is missing, or of another format, and StorageError if a bucket cannot be read.
    """
    if part.lexicon is not None:
        read_entries(_read("lexicon", part.lexicon, storage_options, read_location), part.lexicon)
    if part.lm is None:
        return None
    found = recognize(_read("lm", part.lm, storage_options, read_start), part.lm)
    if not found.is_arpa and part.lexicon is None and part.lm_unit == "words":
        raise ConfigError(
            f"decode.lm: {part.lm} is a KenLM binary, and decode.lexicon is null: name a file with its words, a word a "
            "line (--set decode.lexicon=…), or give the ARPA file"
        )
    return found


def _read(
    field: str, location: str, storage_options: StorageOptions, read: Callable[[str, StorageOptions], bytes]
) -> bytes:
    try:
        return read(location, storage_options)
    except OSError as error:
        raise ConfigError(
            f"decode.{field}: {location}: {reason_of(error)}; give a file that every node reads "
            f"(--set decode.{field}=…)"
        ) from error


def local_files(part: CtcDecodePart, storage_options: StorageOptions, session: "Session") -> DecodeFiles:
    """Returns the files; those in a bucket are copied once per node. Every rank calls it; one computes their hashes.

    Raises as `check_files`.
    """
    locations = {name: location for name in part.files if (location := getattr(part, name)) is not None}
    with session.failing_together("opening the files of decode"):
        check_files(part, storage_options)
        local = {name: _on_this_node(location, storage_options) for name, location in locations.items()}
    hashes = session.broadcast(
        lambda: {name: sha256_of(path) for name, path in local.items()}, "hashing the files of decode"
    )
    return DecodeFiles(local.get("lexicon"), local.get("lm"), hashes)


def _on_this_node(location: str, storage_options: StorageOptions) -> Path:
    if not is_url(location):
        return Path(location)
    entry, (parent, _, name) = describe(location, storage_options), location.rpartition("/")
    cache = NodeCache(location, f"{entry.size_bytes} {entry.etag}", "decode")
    return cache.once(name, lambda path: open_storage(parent, storage_options).download_file(name, path))


# Default branch of a repository on the Hub.
MAIN = "main"
# Otherwise transformers prompts on the terminal before running a model's code.
_NO_CODE = {"trust_remote_code": False}


@dataclass(frozen=True)
class CausalTokenizer:
    """Tokenizes texts for a language model: ids between `start` and, if the model has one, `end`."""

    tokenizer: Any
    start: int
    end: int | None

    def ids(self, text: str) -> list[int]:
        """Returns the ids of a text with its start and end; the start is given, not predicted."""
        inner: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return [self.start, *inner, *([self.end] if self.end is not None else [])]


def revision_of(name: str) -> str:
    """Returns the commit of the Hub's main branch, for all ranks; main for a folder. Raises as `open_tokenizer`."""
    config = reading(name, lambda: AutoConfig.from_pretrained(name, **_NO_CODE))
    return getattr(config, "_commit_hash", None) or MAIN


def open_tokenizer(name: str, revision: str = MAIN) -> CausalTokenizer:
    """Opens the tokenizer of `decode.rescoring_model`, whose config must be that of a causal language model.

    Raises ConfigError if the tokenizer cannot be opened, is that of another kind of model, or has no start token, and
    StorageError if the Hub does not respond.
    """
    config = reading(name, lambda: AutoConfig.from_pretrained(name, revision=revision, **_NO_CODE))
    if config.model_type not in MODEL_FOR_CAUSAL_LM_MAPPING_NAMES:
        raise ConfigError(
            f"decode.rescoring_model: {name} has model_type {config.model_type}, which AutoModelForCausalLM does not "
            "open: name a causal language model, such as a GPT-2"
        )
    tokenizer = reading(name, lambda: AutoTokenizer.from_pretrained(name, revision=revision, **_NO_CODE))
    start = next((id for id in (tokenizer.bos_token_id, tokenizer.eos_token_id) if id is not None), None)
    if start is None:
        raise ConfigError(
            f"decode.rescoring_model: {name}: its tokenizer has neither bos_token nor eos_token, so that the first "
            "word of a text has no probability: set one in its tokenizer_config.json"
        )
    return CausalTokenizer(tokenizer, start, tokenizer.eos_token_id)


def reading(name: str, call: Any) -> Any:
    """Calls a function that reads files of `decode.rescoring_model`; raises as `open_tokenizer`."""
    return open_named("decode.rescoring_model", name, call, "a causal language model")
