"""The base of every part of a config that users write, and what the fields of several parts have in common."""

from typing import Annotated

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationInfo
from pydantic_core import PydanticCustomError

from trainers.config.reading import Reading
from trainers.config.storage_location import unsupported_url

URL = r"^https?://[^@\s]+$"
# Type of the error of a URL that no storage opens; the URL, which may hold a password, is not repeated.
UNSUPPORTED_URL = "unsupported_url"


class Part(BaseModel):
    """A frozen part of a config that refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), str_strip_whitespace=True, allow_inf_nan=False
    )


def refuse_unsupported(location: str) -> str:
    """Returns a location; refuses a URL that no storage opens."""
    problem = unsupported_url(location)
    if problem is not None:
        raise PydanticCustomError(UNSUPPORTED_URL, "{problem}", {"problem": problem})
    return location


def trains(info: ValidationInfo) -> bool:
    """Whether the config is read to train with it, see `Reading`."""
    return not isinstance(info.context, Reading) or info.context.trains


# A path, a URL of a storage, or where a field says so a Hub id.
Location = Annotated[str, AfterValidator(refuse_unsupported)]
Positive = Annotated[int, Field(gt=0)]
NotNegative = Annotated[int, Field(ge=0)]
PositiveFloat = Annotated[float, Field(gt=0)]
