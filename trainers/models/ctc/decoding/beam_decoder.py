"""Checks the beam search for errors that would stop a run when its model is scored, and for words never found."""

import hashlib
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from trainers.config.optional_packages import BEAM_SEARCH
from trainers.config.storage_location import StorageOptions, is_url
from trainers.data.sources.located_files import read_location
from trainers.errors import ConfigError, StorageError
from trainers.findings import Finding, named, ok, problem, unread, warning
from trainers.models.ctc.ctc_decode_part import CtcDecodePart
from trainers.models.ctc.decoding.decode_files import NgramFile, check_files, local_words, open_tokenizer, words_of
from trainers.storage import sha256_of


class BeamDecoder:
    """The beam search of CTC outputs, before a model is loaded; see `Decoder`."""

    def check(self, part: CtcDecodePart, storage_options: StorageOptions) -> None:
        if not BEAM_SEARCH.is_installed:
            raise ConfigError(BEAM_SEARCH.problem)
        check_files(part, storage_options)
        if part.rescoring_model is not None:
            open_tokenizer(part.rescoring_model)

    def content_hashes(self, part: CtcDecodePart, storage_options: StorageOptions) -> dict[str, str]:
        """Returns the SHA-256 of each file, except missing files and language models in a bucket, which are large."""
        found = {}
        for name in part.files:
            location = getattr(part, name)
            if location is None or (name == "lm" and is_url(location)):
                continue
            with suppress(OSError):
                if is_url(location):
                    found[name] = hashlib.sha256(read_location(location, storage_options)).hexdigest()
                elif Path(location).is_file():
                    found[name] = sha256_of(location)
        return found

    def inspect(self, part: CtcDecodePart, processor: Any, storage_options: StorageOptions) -> Iterator[Finding]:
        if not BEAM_SEARCH.is_installed:
            yield unread(BEAM_SEARCH.problem)
        try:
            yield from _words(part, processor, check_files(part, storage_options), storage_options)
            if part.rescoring_model is not None:
                open_tokenizer(part.rescoring_model)
                yield ok(f"decode.rescoring_model: {part.rescoring_model} is a causal language model")
        except (ConfigError, StorageError) as error:
            # A file that cannot be read here may be there on the nodes.
            is_unread = isinstance(error, StorageError) or error.__cause__ is not None
            yield unread(str(error)) if is_unread else problem(str(error))
        count = len(part.settings)
        yield ok(f"decode: {count} weights are tried on validation" if count > 1 else "decode: the weights are given")

    def note(self, decoding: Mapping[str, Any]) -> str:
        parts = [f"beam_size {decoding['beam_size']}"]
        for name in CtcDecodePart.files:
            if name in decoding:
                parts.append(f"{name} {Path(decoding[name]['path']).name} (SHA-256 {decoding[name]['sha256']})")
        if "rescoring_model" in decoding:
            name = decoding["rescoring_model"]["name_or_path"]
            parts.append(f"rescoring_model {Path(name).name if Path(name).is_absolute() else name}")
        parts += [f"{name} {decoding[name]:g}" for name in CtcDecodePart.tuned]
        return (
            f"The score on test is of a beam search, whose files are not part of this folder: {', '.join(parts)}. "
            "`pipeline` uses the best path, as do the scores on validation."
        )


def _words(
    part: CtcDecodePart, processor: Any, lm: NgramFile | None, storage_options: StorageOptions
) -> Iterator[Finding]:
    """Reports words that the model's vocabulary cannot spell, or that the language model does not have."""
    if lm is not None:
        yield ok(f"decode.lm: {part.lm}: {lm.kind} of order {lm.order}")
    lexicon = local_words(part, processor.tokenizer, storage_options)
    if lexicon is None:
        return
    if lexicon.problem is not None:
        yield warning(f"decode: {lexicon.problem}, so they cannot appear in a hypothesis")
    else:
        yield ok(f"decode: the vocabulary spells all of {len(lexicon.spellings)} words")
    if part.lexicon is None or lm is None or not lm.is_arpa or is_url(str(part.lm)):
        return
    unknown = [*lexicon.spellings.keys() - set(words_of(Path(str(part.lm))))]
    if unknown:
        yield warning(
            f"decode.lm: {len(unknown)} of {len(lexicon.spellings)} words of decode.lexicon are not in {part.lm} "
            f"({named(sorted(unknown))}), and are as improbable as unknown words: check that both are spelled alike"
        )
