"""Scores texts by a causal language model of Hugging Face."""

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from trainers.distributed.session import Session
from trainers.errors import ConfigError
from trainers.models.adaptation.base_weights import hash_of
from trainers.models.ctc.decoding.decode_files import CausalTokenizer, open_tokenizer, reading, revision_of

# Maximum number of texts in one forward pass.
TEXTS_AT_ONCE = 32
# Logits of one forward pass, 256 MiB in float32; 20 texts of 25 tokens with a vocabulary of 128,000 have as many.
LOGITS_AT_ONCE = 2**26


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

        Raises:
            ConfigError: the model cannot be opened, is not a causal language model, or differs between ranks.
            StorageError: the Hub does not respond.
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
        """Returns the log-probability of each text and its end, given its start: the sum over its tokens."""
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
        """Yields the rows of each forward pass, in order: as many as fit into memory, at least one."""
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
