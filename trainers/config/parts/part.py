"""Defines the base class of all parts of a config, types of their fields, and the scope of a verb."""

import inspect
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, StringConstraints, ValidationInfo, model_validator
from pydantic_core import PydanticCustomError

from trainers.config.parts.data_location import DataLocation
from trainers.config.storage_location import SUPPORTED, is_url, refused_url, unreadable_url

URL = r"^https?://[^@\s]+$"
# Type of the error for a URL that no storage opens; messages do not repeat it, since it may contain a password.
UNSUPPORTED_URL = "unsupported_url"
# Type of the error of a `rule`; its context has the list `problems`, and the rule's name as `rule`.
RULE = "rule"
STORAGE_FIELDS = (("run", "storage_path"), ("data", "cache_dir"))
DATA_FIELDS = (("data", "train"), ("data", "validation"), ("data", "test"))
AUGMENT_FIELDS = (("augment", "noise_manifest"), ("augment", "rir_manifest"))
# A table of manifests by name.
ALSO_FIELD = ("evaluate", "also")
# The paths whose files `data.ship` adds to a package.
SHIPPED_FIELDS = (*DATA_FIELDS, *AUGMENT_FIELDS, ALSO_FIELD)
# Stands for all fields of a part whose fields depend on the family.
ALL = "*"
DECODE_FIELDS = (("decode", ALL),)
_SOURCES = ("name_or_path", "tokenizer_name", "feature_extractor_name", "encoder", "decoder")
SOURCE_FIELDS = tuple(("model", field) for field in _SOURCES)
# The paths in a family's own fields are in `ModelPart.files`.
PATH_FIELDS = (*STORAGE_FIELDS, *DATA_FIELDS, *AUGMENT_FIELDS, ALSO_FIELD, *DECODE_FIELDS, *SOURCE_FIELDS)
# The largest integer that every JSON reader represents exactly.
MAX_INTEGER = 2**53 - 1


@dataclass(frozen=True)
class ConfigScope:
    """The part of a config that a verb reads.

    Attributes:
        paths: Part and field of each path that is opened; variables in other paths need not be set.
        trains: True if the verb trains, which requires a training set, weights and a length.
        passed_over: Names of the rules whose problems are already reported, see `rule`.
    """

    paths: tuple[tuple[str, str], ...] = PATH_FIELDS
    trains: bool = True
    passed_over: frozenset[str] = frozenset()

    def requires_path(self, part: str, field: str) -> bool:
        """Returns True if the path in a field is opened; a verb that trains opens all paths of the model."""
        return not {(part, field), (part, ALL)}.isdisjoint(self.paths) or (part == "model" and self.trains)

    @classmethod
    def for_scoring(cls, split: str) -> "ConfigScope":
        return cls((*STORAGE_FIELDS, *DECODE_FIELDS, ("data", split)), trains=False)


TRAIN_SCOPE = ConfigScope()
PREPARE_SCOPE = ConfigScope((*STORAGE_FIELDS, *DATA_FIELDS, ALSO_FIELD), trains=False)


class Part(BaseModel):
    """A frozen part of a config that refuses unknown keys."""

    model_config = ConfigDict(
        frozen=True, extra="forbid", protected_namespaces=(), str_strip_whitespace=True, allow_inf_nan=False
    )


def rule(check: Callable[..., Any]) -> Any:
    """Turns a check of several fields of a part into a validator that reports all problems, with those of other rules.

    Args:
        check: A method of a part that yields problems, or raises a ValueError; it is called with a ValidationInfo if it
            takes one.
    """
    takes_info = len(inspect.signature(check).parameters) > 1

    def validate(part: Any, info: ValidationInfo) -> Any:
        if isinstance(info.context, ConfigScope) and check.__qualname__ in info.context.passed_over:
            return part
        problems: list[str] = []
        try:
            found = check(part, info) if takes_info else check(part)
            problems += found if isinstance(found, Iterator) else ()
        except PydanticCustomError:
            raise
        except ValueError as error:
            problems.append(str(error))
        if problems:
            context = {"problems": problems, "rule": check.__qualname__}
            raise PydanticCustomError(RULE, "{text}", {**context, "text": "; ".join(problems)})
        return part

    return model_validator(mode="after")(validate)


def idle_fields(part: Part, names: Iterable[str], reason: str, fix: str) -> Iterator[str]:
    """Yields a problem for each of these fields, which have no effect, whose value is not its default."""
    for name in names:
        value = getattr(part, name)
        if value != type(part).model_fields[name].default:
            yield f"{name} is {value}, but {reason}: {fix}, or leave {name} out"


def refuse_not_finite(settings: dict[str, Any]) -> dict[str, Any]:
    """Returns settings unchanged; refuses NaN and infinities, which JSON cannot represent and would turn into null."""
    # Iterative, since a request may be nested as deeply as its parser allows.
    left: list[tuple[str, Any]] = [(str(name), value) for name, value in settings.items()]
    while left:
        name, value = left.pop()
        if isinstance(value, float) and not math.isfinite(value):
            raise ValueError(f"{name} is {value}, which is not finite: give a finite number, or leave it out")
        if isinstance(value, Mapping):
            left += [(f"{name}.{key}", each) for key, each in value.items()]
        elif isinstance(value, list | tuple):
            left += [(f"{name}.{number}", each) for number, each in enumerate(value)]
    return settings


def refuse_unsupported(location: str) -> str:
    """Returns a location unchanged; refuses a URL that no storage opens."""
    return location if is_url(location) else refuse_url(location, SUPPORTED)


def refuse_unsupported_data(location: str) -> str:
    """Returns a location of rows unchanged; refuses a URL that cannot be read, and options unknown to its format."""
    _refuse(unreadable_url(DataLocation.parse(location).path))
    return location


def refuse_url(location: str, instead: str) -> str:
    """Returns a location unchanged; refuses any URL, with a message that tells what to give `instead`."""
    _refuse(refused_url(location, instead))
    return location


def _refuse(problem: str | None) -> None:
    if problem is not None:
        raise PydanticCustomError(UNSUPPORTED_URL, "{problem}", {"problem": problem})


def trains(info: ValidationInfo) -> bool:
    """Returns True if the config is read for training, see `ConfigScope`."""
    return not isinstance(info.context, ConfigScope) or info.context.trains


# Name of an environment variable.
VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
VariableName = Annotated[str, StringConstraints(pattern=VARIABLE, max_length=200)]
# Names and values that another library reads.
Settings = Annotated[dict[str, Any], AfterValidator(refuse_not_finite)]
# A path, or a URL of a storage.
Location = Annotated[str, AfterValidator(refuse_unsupported)]
# The location of rows, see `data_location`.
RowsLocation = Annotated[str, AfterValidator(refuse_unsupported_data)]
# A folder or Hub id that transformers opens; any other text, even a URL, would be opened as a Hub id.
ModelLocation = Annotated[
    str,
    AfterValidator(
        lambda name: refuse_url(name, "a Hub id, e.g. openai/whisper-tiny, or a folder that every node has")
    ),
]
# Only for int fields without their own `le`, since this bound would replace it.
Positive = Annotated[int, Field(gt=0, le=MAX_INTEGER)]
NotNegative = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
PositiveFloat = Annotated[float, Field(gt=0)]
