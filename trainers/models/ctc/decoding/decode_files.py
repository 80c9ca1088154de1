"""The files that a beam search reads, on this node's disk."""

import hashlib
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from trainers.config.storage_location import StorageOptions, is_url
from trainers.data.sources.located_files import read_location, read_start, reason_of
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_decode_part import CtcDecodePart
from trainers.models.ctc.decoding.lexicon import Lexicon, read_entries, spell
from trainers.models.ctc.decoding.ngram_files import NgramFile, recognize, words_of
from trainers.storage import open_storage, sha256_of

if TYPE_CHECKING:
    # It loads torch, which the checks before a run do without.
    from trainers.distributed.session import Session


@dataclass(frozen=True)
class DecodeFiles:
    """Word list and n-gram model of a config's decode part on this node, and SHA-256 of each by its field's name."""

    lexicon: Path | None
    lm: Path | None
    sha256: Mapping[str, str] = field(default_factory=dict)

    def words(self, part: CtcDecodePart, tokenizer: Any) -> Lexicon | None:
        """The words that hypotheses are made of: of the word list, else of a model of words; None: any text.

        Raises:
            ConfigError: a file cannot be used, or none of its words can be spelled.
        """
        if self.lexicon is not None:
            return _listed(part, tokenizer, self.lexicon.read_bytes())
        if self.lm is None or part.lm_unit == "tokens":
            return None
        return spell(((word, []) for word in words_of(self.lm)), tokenizer, f"decode.lm: {part.lm}")


def _listed(part: CtcDecodePart, tokenizer: Any, content: bytes) -> Lexicon:
    return spell(read_entries(content, str(part.lexicon)), tokenizer, f"decode.lexicon: {part.lexicon}")


def local_words(part: CtcDecodePart, tokenizer: Any, storage_options: StorageOptions) -> Lexicon | None:
    """See `DecodeFiles.words`; None, too, where they are in a language model in a bucket, which is large."""
    if part.lexicon is not None:
        return _listed(part, tokenizer, read_location(part.lexicon, storage_options))
    local = part.lm is not None and not is_url(part.lm)
    return DecodeFiles(None, Path(str(part.lm))).words(part, tokenizer) if local else None


def check_files(part: CtcDecodePart, storage_options: StorageOptions) -> NgramFile | None:
    """Finds in seconds what would stop the search; gives what the language model is, or None where there is none.

    Raises:
        ConfigError: a file is missing, or of another kind.
        StorageError: a bucket cannot be read.
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


@contextmanager
def local_files(part: CtcDecodePart, storage_options: StorageOptions, session: "Session") -> Iterator[DecodeFiles]:
    """The files, those of a bucket copied once a node, and deleted at the end. Every rank calls it.

    The main process alone hashes them, once.

    Raises:
        ConfigError: see `check_files`.
        StorageError: a bucket or disk cannot be read.
    """
    with session.failing_together("opening the files of decode"):
        check_files(part, storage_options)
    locations = {name: location for name in part.files if (location := getattr(part, name)) is not None}
    remote = {name: location for name, location in locations.items() if is_url(location)}
    token = session.broadcast(lambda: uuid4().hex, "naming the folder of the files of decode")
    # Nodes may share their temporary folder.
    node = hashlib.sha256(session.node.encode()).hexdigest()[:8]
    folder = Path(tempfile.gettempdir()) / f"rayscribe-decode-{token}-{node}"
    local = {name: folder / name if name in remote else Path(location) for name, location in locations.items()}
    try:
        if session.local_rank == 0:
            for name, location in remote.items():
                parent, _, key = location.rpartition("/")
                open_storage(parent, storage_options).download_file(key, folder / name)
        session.barrier("downloading the files of decode")
        hashes = session.broadcast(
            lambda: {name: sha256_of(path) for name, path in local.items()}, "hashing the files of decode"
        )
        yield DecodeFiles(local.get("lexicon"), local.get("lm"), hashes)
        session.barrier("closing the files of decode")
    finally:
        if remote and session.local_rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
