"""The beam search: what would otherwise stop a run when its model is scored, or quietly find no words."""

from collections.abc import Iterator
from pathlib import Path

from trainers.config.parts.decode_part import DecodePart
from trainers.config.storage_location import is_url
from trainers.errors import ConfigError, StorageError
from trainers.inspection.findings import Finding, named, ok, problem, warning
from trainers.inspection.opened_model import Opened, needs_model
from trainers.inspection.subject import Subject
from trainers.models.ctc.decoding.causal_lm import open_tokenizer
from trainers.models.ctc.decoding.decode_files import MISSING, check_files, is_installed, local_words
from trainers.models.ctc.decoding.ngram_files import NgramFile, words_of


@needs_model()
def check_decoding(subject: Subject, opened: Opened) -> Iterator[Finding]:
    """Opens word list, the start of the language model, and config and tokenizer of the model that scores again."""
    part = subject.config.decode
    if not part.is_on:
        yield ok("decode.method: greedy; there is no search of CTC outputs")
        return
    if not is_installed():
        yield subject.unreachable(MISSING)
    try:
        lm = check_files(part, subject.config.run.storage_options)
    except (ConfigError, StorageError) as error:
        yield _unread(subject, error)
    else:
        yield from _words(part, opened, lm, subject)
    if part.rescoring_model is not None:
        try:
            open_tokenizer(part.rescoring_model)
            yield ok(f"decode.rescoring_model: {part.rescoring_model} is a causal language model")
        except (ConfigError, StorageError) as error:
            yield _unread(subject, error)
    count = len(part.grid)
    yield ok(f"decode: {count} weights are tried on validation" if count > 1 else "decode: the weights are given")


def _unread(subject: Subject, error: ConfigError | StorageError) -> Finding:
    """What could be read and cannot serve is as wrong on the nodes; what could not be read here, they may have."""
    unread = isinstance(error, StorageError) or error.__cause__ is not None
    return subject.unreachable(str(error)) if unread else problem(str(error))


def _words(part: DecodePart, opened: Opened, lm: NgramFile | None, subject: Subject) -> Iterator[Finding]:
    """What the model's vocabulary cannot spell, and what the language model does not know."""
    if lm is not None:
        yield ok(f"decode.lm: {part.lm}: {lm.kind} of order {lm.order}")
    lexicon = local_words(part, opened.processor.tokenizer, subject.config.run.storage_options)
    if lexicon is None:
        return
    if lexicon.problem is not None:
        yield warning(f"decode: {lexicon.problem}, and no hypothesis will have them")
    else:
        yield ok(f"decode: the vocabulary spells all of {len(lexicon.spellings)} words")
    if part.lexicon is None or lm is None or not lm.is_arpa or is_url(str(part.lm)):
        return
    unknown = [*lexicon.spellings.keys() - set(words_of(Path(str(part.lm))))]
    if unknown:
        yield warning(
            f"decode.lm: {len(unknown)} of {len(lexicon.spellings)} words of decode.lexicon are not in {part.lm} "
            f"({named(sorted(unknown))}), and are as improbable as unknown words: are both written alike?"
        )
