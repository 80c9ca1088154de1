"""A causal language model's config and tokenizer. Loads no torch."""

from dataclasses import dataclass
from typing import Any

from transformers import AutoConfig, AutoTokenizer
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from trainers.errors import ConfigError
from trainers.models.pretrained import open_named

# The branch of a repository of the Hub that is opened where none is named.
MAIN = "main"
# Without it, transformers asks at the terminal whether to run code that comes with a model.
_NO_CODE = {"trust_remote_code": False}


@dataclass(frozen=True)
class CausalTokenizer:
    """What a text is for a language model: ids between `start` and, where the model has one, `end`."""

    tokenizer: Any
    start: int
    end: int | None

    def ids(self, text: str) -> list[int]:
        """Ids of a text with its start and end; the first is given, and not predicted."""
        inner: list[int] = self.tokenizer(text, add_special_tokens=False).input_ids
        return [self.start, *inner, *([self.end] if self.end is not None else [])]


def revision_of(name: str) -> str:
    """The commit of the Hub's main branch, for all who open it; main for a folder. Errors as of `open_tokenizer`."""
    config = reading(name, lambda: AutoConfig.from_pretrained(name, **_NO_CODE))
    return getattr(config, "_commit_hash", None) or MAIN


def open_tokenizer(name: str, revision: str = MAIN) -> CausalTokenizer:
    """Opens the tokenizer of `decode.rescoring_model`, whose config must be a causal language model's.

    Raises:
        ConfigError: it cannot be opened, is another kind of model, or has no token to begin with.
        StorageError: the Hub does not respond.
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
    """Calls what reads files of `decode.rescoring_model`; errors as of `open_tokenizer`."""
    return open_named("decode.rescoring_model", name, call, "a causal language model")
