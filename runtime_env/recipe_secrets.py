"""Credentials that are written out in a recipe, which is stored with its run. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from runtime_env.credentials import value_looks_secret
from runtime_env.secret_arguments import literal_secrets

# Of transformers' TrainingArguments: whatever stands there is a secret, whatever it looks like.
TOKEN_FIELDS = frozenset({"hub_token", "push_to_hub_token"})
FIX = (
    "looks like a credential (not shown): take it out; job.runtime_env.secrets brings the job a variable whose value "
    "each node has, and credentials of buckets are the node's own"
)


def find_literal_secrets(content: Any, path: Sequence[str] = ()) -> Iterator[str]:
    """Reports where values below a path look like credentials, without the values."""
    if isinstance(content, Mapping):
        for key, value in content.items():
            yield from find_literal_secrets(value, (*path, str(key)))
    elif isinstance(content, list | tuple):
        for number, item in enumerate(content):
            yield from find_literal_secrets(item, (*path, str(number)))
    elif isinstance(content, str) and content:
        named = any(name in TOKEN_FIELDS for name in path)
        # Of a program's variables, a data source's options, a ds_config. A path may have a = in it.
        named |= path != () and "=" not in path[-1] and literal_secrets([f"{path[-1]}={content}"]) != []
        # job.runtime_env has rules of its own, which are the same.
        if (named or value_looks_secret(content)) and "runtime_env" not in path:
            yield f"{'.'.join(path)}: {FIX}"
