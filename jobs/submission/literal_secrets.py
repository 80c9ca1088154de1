"""Credentials that were written into a recipe: found before they are in a ledger, a package or a log. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runtime_env.credentials import value_looks_secret

# Of transformers' TrainingArguments: whatever stands there is a secret, whatever it looks like.
TOKEN_FIELDS = frozenset({"hub_token", "push_to_hub_token"})
FIX = (
    "looks like a credential (not shown): take it out; job.runtime_env.secrets brings the job a variable whose value "
    "each node has, and S3 credentials are the node's own"
)


def find_literal_secrets(content: Any, path: Sequence[str] = ()) -> Iterator[str]:
    """Reports where values look like credentials, without the values.

    Args:
        content: A recipe, a part of one, or a list of overrides.
        path: Keys that lead to it.
    """
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from find_literal_secrets(value, (*path, str(key)))
    elif isinstance(content, list | tuple):
        for number, item in enumerate(content):
            yield from find_literal_secrets(item, (*path, str(number)))
    elif isinstance(content, str) and content:
        # job.runtime_env has rules of its own.
        named = any(name in TOKEN_FIELDS for name in path)
        if (named or value_looks_secret(content)) and "runtime_env" not in path:
            yield f"{'.'.join(path)}: {FIX}"
