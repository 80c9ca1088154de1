"""Searches the outputs of a CTC model with a beam by flashlight-text, with a word list and language models.

The search itself uses an n-gram model of KenLM; a causal language model scores the resulting hypotheses again.

Hypotheses are summed over their alignments (log-add): with an unlimited beam, a hypothesis's acoustic score is
ln P(its labels | clip), as in the CTC loss. If no delimiter ends the words of a word list, flashlight-text omits
alignments in which the last token of a word spans several outputs.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from flashlight.lib.text.decoder import (
    CriterionType,
    LexiconDecoder,
    LexiconDecoderOptions,
    LexiconFreeDecoder,
    LexiconFreeDecoderOptions,
    SmearingMode,
    Trie,
    ZeroLM,
)
from flashlight.lib.text.decoder.kenlm import KenLM
from flashlight.lib.text.dictionary import Dictionary
from transformers import AutoModelForCausalLM

from trainers.distributed.session import Session
from trainers.errors import ConfigError
from trainers.models.adaptation.base_weights import hash_of
from trainers.models.ctc.ctc_decode_part import CtcDecodePart, Weights
from trainers.models.ctc.decoding.decode_files import (
    CausalTokenizer,
    DecodeFiles,
    Lexicon,
    delimiter_of,
    open_tokenizer,
    reading,
    revision_of,
)

# KenLM's logarithms have the base 10.
LN_10 = math.log(10)
# Score of tokens that must not be emitted; far below any threshold, and finite, so that scores remain numbers.
NEVER = -1e9
TEXTS_AT_ONCE = 32
# Limit of the logits of a forward pass: 256 MiB in float32, as for 20 texts of 25 tokens and 128,000 known tokens.
LOGITS_AT_ONCE = 2**26


class Hypothesis(NamedTuple):
    """A text and its scores (natural logarithms), which are 0 for language models that are not configured.

    The acoustic score is that of the labels, summed over the alignments that the beam has kept.
    """

    text: str
    acoustic: float
    lm: float
    rescoring: float = 0.0

    def score(self, weights: Weights) -> float:
        words = len(self.text.split())
        return self.acoustic + weights.lm * self.lm + weights.word * words + weights.rescoring * self.rescoring


class CausalScorer:
    """Scores texts by `decode.rescoring_model`, in float32."""

    def __init__(self, name: str, tokenizer: CausalTokenizer, network: Any, device: torch.device):
        self._name, self._tokenizer = name, tokenizer
        self._revision = getattr(network.config, "_commit_hash", None)
        self._sha256 = hash_of(network.named_parameters())
        self._network = network.eval().to(device)

    @classmethod
    def open(cls, name: str, session: Session, device: torch.device) -> "CausalScorer":
        """Opens a model on every rank; the first rank of each node downloads it. Every rank must call it.

        Raises as `open_tokenizer`, and ConfigError if the model differs between ranks.
        """
        revision = session.broadcast(lambda: revision_of(name), "resolving the model of decode.rescoring_model")

        def load() -> CausalScorer:
            tokenizer, options = open_tokenizer(name, revision), {"revision": revision, "dtype": torch.float32}
            network = reading(name, lambda: AutoModelForCausalLM.from_pretrained(name, **options))
            return cls(name, tokenizer, network, device)

        first = load() if session.local_rank == 0 else None
        session.barrier("downloading the model of decode.rescoring_model")
        opened = first if first is not None else load()
        hashes = session.gather(opened._sha256, "comparing the model of decode.rescoring_model")
        if len({*hashes}) > 1:
            raise ConfigError(
                f"decode.rescoring_model: the weights in {name} differ between ranks: give a folder that all nodes "
                "share, or a Hub id"
            )
        return opened

    @torch.no_grad()
    def logprobs(self, texts: Sequence[str]) -> list[float]:
        """Returns the log-probability of each text and its end, given its start, summed over its tokens."""
        found: list[float] = []
        for rows in self._together([self._tokenizer.ids(text) for text in texts]):
            width, device = max(2, *map(len, rows)), self._network.device
            ids = torch.full((len(rows), width), self._tokenizer.start, dtype=torch.int64)
            mask = torch.zeros_like(ids)
            for number, row in enumerate(rows):
                ids[number, : len(row)] = torch.tensor(row)
                mask[number, : len(row)] = 1
            ids, mask = ids.to(device), mask.to(device)
            logits = self._network(input_ids=ids, attention_mask=mask).logits[:, :-1].float()
            each = logits.log_softmax(dim=-1).gather(2, ids[:, 1:, None])[..., 0]
            found += (each.double() * mask[:, 1:]).sum(dim=1).tolist()
        return found

    def _together(self, rows: Sequence[list[int]]) -> Iterator[list[list[int]]]:
        """Yields the rows of each forward pass, in order; as many as fit into memory, at least one."""
        vocabulary, width = self._network.config.get_text_config().vocab_size, 0
        group: list[list[int]] = []
        for row in rows:
            width = max(width, len(row))
            if group and (len(group) == TEXTS_AT_ONCE or (len(group) + 1) * width * vocabulary > LOGITS_AT_ONCE):
                yield group
                group, width = [], len(row)
            group.append(row)
        if group:
            yield group

    def describe(self) -> dict[str, Any]:
        """Returns the model's name, revision on the Hub, and SHA-256 of its weights."""
        return {"name_or_path": self._name, "revision": self._revision, "sha256": self._sha256}


class BeamSearch:
    """Decodes one utterance at a time, independently of others."""

    def __init__(
        self,
        tokenizer: Any,
        part: CtcDecodePart,
        files: DecodeFiles,
        vocabulary_size: int,
        rescorer: CausalScorer | None = None,
    ):
        self._tokenizer, self._part, self._hashes, self._rescorer = tokenizer, part, files.sha256, rescorer
        self.words = files.words(part, tokenizer)
        self.warning = self.words.problem if self.words is not None else None
        self._size = vocabulary_size
        self._blank = tokenizer.pad_token_id
        self._delimiter = delimiter_of(tokenizer)
        special = {*tokenizer.all_special_ids} - {self._blank, self._delimiter}
        self._spoken = np.array([id for id in range(min(len(tokenizer), vocabulary_size)) if id not in special])
        if self.words is not None:
            self._names = [*self.words.spellings, "<unk>"]
        else:
            names: list[str] = tokenizer.convert_ids_to_tokens(list(range(min(len(tokenizer), self._size))))
            # Also names outputs without a token, and silence, which is not a token of a CTC model.
            self._names = names + [f"<{number}>" for number in range(len(names), self._size + 1)]
        # A token for the beginning only follows the outputs and the silence between words, see `_emissions`.
        begins = self.words is not None and any(self.words.at_first.values())
        self._first = self._size + 1 if begins else None
        self._tokens = self._size + 1 + begins
        self._lm = _load(files, part, self._names)
        self._trie = self._new_trie(self.words) if self.words is not None else None

    def search(self, logprobs: npt.NDArray[np.float32], choices: Sequence[Weights]) -> list[list[Hypothesis]]:
        """Returns the hypotheses of one utterance for each of several weights, the best first; at least one for each.

        `logprobs` are the log-softmax of the utterance's outputs without padding, (T, V), T at least 1.
        """
        pairs = dict.fromkeys((weights.lm, weights.word) for weights in choices)
        emissions = self._emissions(logprobs)
        found = {pair: self._beam(emissions, len(logprobs), *pair) for pair in pairs}
        if self._rescorer is not None:
            texts = sorted({each.text for beam in found.values() for each in beam})
            scores = dict(zip(texts, self._rescorer.logprobs(texts), strict=True))
            found = {
                pair: [each._replace(rescoring=scores[each.text]) for each in beam] for pair, beam in found.items()
            }
        return [_ranked(found[weights.lm, weights.word], weights) for weights in choices]

    def describe(self) -> dict[str, Any]:
        part = self._part
        described: dict[str, Any] = {
            "method": part.method,
            "beam_size": part.beam_size,
            "beam_size_token": part.beam_size_token,
            "beam_threshold": part.beam_threshold,
        }
        for name, sha256 in self._hashes.items():
            described[name] = {"path": getattr(part, name), "sha256": sha256}
        if "lm" in described:
            described["lm"]["unit"] = part.lm_unit
        if self.words is not None:
            described |= {"words": len(self.words.spellings), "words_left_out": len(self.words.left_out)}
        if self._rescorer is not None:
            described["rescoring_model"] = self._rescorer.describe()
        return described

    def _new_trie(self, lexicon: Lexicon) -> Trie:
        """Returns the words by their spellings, each ended by the delimiter if there is one.

        Spellings that are only for the first word begin with the token of the beginning.
        """
        trie, start = Trie(self._tokens, self._size), self._lm.start(False)
        closing = [self._delimiter] if self._delimiter is not None else []
        for number, (word, ways) in enumerate(lexicon.spellings.items()):
            _, logprob = self._lm.score(start, number)
            for way in ways:
                trie.insert([*way, *closing], number, logprob)
            for way in lexicon.at_first[word]:
                trie.insert([self._first, *way], number, logprob)
        # The best score of the words below a node is applied as their letters appear.
        trie.smear(SmearingMode.MAX)
        return trie

    def _emissions(self, logprobs: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
        """Returns the outputs for the decoder, without special tokens, and with up to two additional outputs.

        The last word may lack the delimiter that ends words, so an output with only a delimiter is added. If first
        words have spellings of their own, an added first output selects between the two kinds.
        """
        closes, begins = self._trie is not None and self._delimiter is not None, self._first is not None
        emissions = np.full((begins + len(logprobs) + closes, self._tokens), NEVER, np.float32)
        emissions[begins : begins + len(logprobs), self._spoken] = logprobs[:, self._spoken]
        if begins:
            emissions[0, [self._blank, self._first]] = 0.0
        if closes:
            emissions[-1, self._delimiter] = 0.0
        return emissions

    def _beam(
        self, emissions: npt.NDArray[np.float32], frames: int, lm_weight: float, word_score: float
    ) -> list[Hypothesis]:
        weight = lm_weight * LN_10
        results = self._decoder(weight, word_score).decode(emissions.ctypes.data, *emissions.shape)
        found: dict[str, Hypothesis] = {}
        for result in results:
            inside = 0.0
            if self._trie is None:
                # The outputs without those added. Label sequences that differ only in spaces are one text.
                text = self._tokenizer.decode(result.tokens[1 : frames + 1]).strip()
            else:
                words = [self._names[word] for word in result.words if word >= 0]
                text, inside = " ".join(words), word_score * len(words)
            acoustic = result.score - weight * result.lmScore - inside
            # If no word was complete at the end, the cost of an incomplete word is removed from the acoustic score.
            acoustic -= NEVER if acoustic < NEVER / 2 else 0.0
            found.setdefault(text, Hypothesis(text, acoustic, LN_10 * result.lmScore))
        return [*found.values()] or [Hypothesis("", float(emissions[:frames, self._blank].sum()), 0.0)]

    def _decoder(self, lm_weight: float, word_score: float) -> LexiconDecoder | LexiconFreeDecoder:
        part = self._part
        # At least 2, to keep both kinds of a first word's spellings until outputs distinguish them.
        least = 1 if self._first is None else 2
        size, tokens = max(part.beam_size, least), min(max(part.beam_size_token, least), self._tokens)
        common = {
            "beam_size": size,
            "beam_size_token": tokens,
            "beam_threshold": part.beam_threshold,
            "lm_weight": lm_weight,
            "sil_score": 0.0,
            "log_add": True,
            "criterion_type": CriterionType.CTC,
        }
        if self._trie is None:
            return LexiconFreeDecoder(LexiconFreeDecoderOptions(**common), self._lm, self._size, self._blank, [])
        options = LexiconDecoderOptions(**common, word_score=word_score, unk_score=-math.inf)
        # The decoder allows any number of this token between words.
        between = self._delimiter if self._delimiter is not None else self._size
        unknown = len(self._names) - 1
        return LexiconDecoder(options, self._trie, self._lm, between, self._blank, unknown, [], False)


def _load(files: DecodeFiles, part: CtcDecodePart, names: Sequence[str]) -> Any:
    if files.lm is None:
        return ZeroLM()
    dictionary = Dictionary()
    for number, name in enumerate(names):
        dictionary.add_entry(name, number)
    try:
        return KenLM(str(files.lm), dictionary)
    except RuntimeError as error:
        reason = " ".join(str(error).split())
        raise ConfigError(
            f"decode.lm: {part.lm} cannot be read by KenLM: {reason}; give an ARPA file or a KenLM binary"
        ) from error


def _ranked(beam: Sequence[Hypothesis], weights: Weights) -> list[Hypothesis]:
    return sorted(beam, key=lambda each: (-each.score(weights), each.text))
