"""The base of every part of a config that users write."""

from pydantic import BaseModel, ConfigDict


class Part(BaseModel):
    """A frozen part of a config that refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), str_strip_whitespace=True, allow_inf_nan=False
    )
