"""Word lists: which words hypotheses are made of, and how the model's vocabulary spells them. Loads no torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainers.errors import ConfigError

# Words that a message names.
NAMED = 10
# Entries of vocabularies of language models that are no words.
SENTENCE_MARKS = ("<s>", "</s>", "<unk>", "<UNK>")


@dataclass(frozen=True)
class Lexicon:
    """Words that the vocabulary can spell.

    Attributes:
        spellings: Label ids of each word, without a delimiter; several where it has several spellings.
        left_out: Words that the vocabulary cannot spell.
        at_first: Further spellings of a word that nothing is before.
    """

    spellings: dict[str, list[tuple[int, ...]]]
    left_out: list[str]
    at_first: dict[str, list[tuple[int, ...]]]

    @property
    def problem(self) -> str | None:
        if not self.left_out:
            return None
        names = ", ".join(self.left_out[:NAMED]) + (", …" if len(self.left_out) > NAMED else "")
        total = len(self.left_out) + len(self.spellings)
        return f"{len(self.left_out)} of {total} words cannot be spelled in the model's vocabulary ({names})"


def read_entries(content: bytes, location: str) -> list[tuple[str, list[str]]]:
    """Each word of a word list with its spelling in tokens, [] where the tokenizer is to spell it.

    The content is UTF-8, a word a line; what follows it after whitespace are the tokens that spell it. What marks the
    ends of a sentence and unknown words is left out.

    Raises:
        ConfigError: it holds no words, or is not UTF-8.
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
    """Spells the words of `read_entries` with a model's vocabulary.

    Where no token stands for the space between words, it is part of the tokens of the word behind it. Such a word has
    another spelling at the beginning, which elsewhere would join it to the word before.

    Raises:
        ConfigError: none of the words can be spelled; begins with `origin`.
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
            # As lexicons of other decoders have it.
            ways = usable(given[:-1] if given[-1] == delimiter else given)
        elif delimiter is not None:
            ways = spelled(word)
        else:
            first = spelled(word)
            # Without any token for a space there is one spelling, wherever the word stands.
            ways = spelled(f" {word}") or first
        if not ways:
            left_out[word] = None
            continue
        for known, each in ((found, ways), (at_first, first)):
            known[word] = [*dict.fromkeys([*known.get(word, ()), *each])]
    # A spelling that serves everywhere is counted once.
    at_first = {word: [way for way in ways if way not in found[word]] for word, ways in at_first.items()}
    lexicon = Lexicon(found, [word for word in left_out if word not in found], at_first)
    if not found:
        raise ConfigError(f"{origin}: {lexicon.problem}: write them as the transcripts are written")
    return lexicon


def delimiter_of(tokenizer: Any) -> int | None:
    """The id of the token between words; None where there is none."""
    token = getattr(tokenizer, "word_delimiter_token", None)
    return tokenizer.get_vocab().get(token) if token is not None else None
