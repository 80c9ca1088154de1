"""Word lists: which words hypotheses are made of, and how the model's vocabulary spells them. Loads no torch."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from trainers.errors import ConfigError

# Words that a message names.
NAMED = 10


@dataclass(frozen=True)
class Lexicon:
    """Words that the vocabulary can spell.

    Attributes:
        spellings: Label ids of each word, without a delimiter; several where it has several spellings.
        left_out: Words that the vocabulary cannot spell.
    """

    spellings: dict[str, list[tuple[int, ...]]]
    left_out: list[str]

    @property
    def problem(self) -> str | None:
        """A warning about the words that were left out; None if there are none."""
        if not self.left_out:
            return None
        names = ", ".join(self.left_out[:NAMED]) + (", …" if len(self.left_out) > NAMED else "")
        whole = len(self.left_out) + len(self.spellings)
        return f"{len(self.left_out)} of {whole} words cannot be spelled in the model's vocabulary ({names})"


def read_entries(content: bytes, location: str) -> list[tuple[str, list[str]]]:
    """Each word of a word list with its spelling in tokens, [] where the tokenizer is to spell it.

    Args:
        content: UTF-8, a word a line; what follows it after whitespace are the tokens that spell it.
        location: Where it is, for messages.

    Raises:
        ConfigError: it holds no words, or is not UTF-8.
    """
    try:
        lines = content.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError as error:
        raise ConfigError(f"decode.lexicon: {location} is not UTF-8: save it as UTF-8") from error
    entries = [(fields[0], fields[1:]) for line in lines if (fields := line.split())]
    if not entries:
        raise ConfigError(f"decode.lexicon: {location} has no words: write one a line")
    return entries


def spell(entries: Iterable[tuple[str, list[str]]], tokenizer: Any, origin: str) -> Lexicon:
    """Spells words with a model's vocabulary.

    Where no token stands for the space between words, it is part of the tokens of the word behind it: such a word has
    one spelling after another word, and one at the beginning.

    Args:
        entries: See `read_entries`.
        tokenizer: The model's.
        origin: The config's field and file, for the message.

    Raises:
        ConfigError: none of the words can be spelled.
    """
    delimiter = delimiter_of(tokenizer)
    unusable = {tokenizer.unk_token_id, tokenizer.pad_token_id, delimiter}
    vocabulary = tokenizer.get_vocab()
    found: dict[str, list[tuple[int, ...]]] = {}
    left_out: dict[str, None] = {}
    for word, tokens in entries:
        if tokens:
            given = [vocabulary.get(token, tokenizer.unk_token_id) for token in tokens]
            # As lexicons of other decoders have it.
            ways = [given[:-1] if given[-1] == delimiter else given]
        else:
            written = [word] if delimiter is not None else [f" {word}", word]
            ways = [tokenizer(text, add_special_tokens=False).input_ids for text in written]
        usable = [tuple(way) for way in ways if way and unusable.isdisjoint(way)]
        if usable:
            known = found.setdefault(word, [])
            known += [way for way in dict.fromkeys(usable) if way not in known]
        else:
            left_out[word] = None
    lexicon = Lexicon(found, [word for word in left_out if word not in found])
    if not found:
        raise ConfigError(f"{origin}: {lexicon.problem}: write them as the transcripts are written")
    return lexicon


def delimiter_of(tokenizer: Any) -> int | None:
    """The id of the token between words; None where there is none."""
    token = getattr(tokenizer, "word_delimiter_token", None)
    return tokenizer.get_vocab().get(token) if token is not None else None
