"""The model of the config under inspection, as far as it can be opened here without its weights."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import lru_cache, wraps
from pathlib import Path
from typing import Any

from trainers.errors import ConfigError, StorageError
from trainers.findings import Finding, problem, skipped
from trainers.inspection.subject import Subject
from trainers.models.families import refuse_unsupported, resolve_model
from trainers.models.family import Family, OpenModel


@dataclass(frozen=True)
class Opened:
    """What could be opened of a model.

    Attributes:
        family: Its family.
        model: Its part of the config, and its processor.
    """

    family: Family[Any]
    model: OpenModel

    @property
    def processor(self) -> Any:
        return self.model.processor


ModelCheck = Callable[[Subject, Opened], Iterator[Finding]]


def needs_model(family: str | None = None) -> Callable[[ModelCheck], Callable[[Subject], Iterator[Finding]]]:
    """Makes a check, of one family or of all, report that it was skipped where the model is not open."""

    def decorate(run: ModelCheck) -> Callable[[Subject], Iterator[Finding]]:
        @wraps(run)
        def check(subject: Subject) -> Iterator[Finding]:
            opened = open_model(subject)
            if isinstance(opened, Finding):
                yield skipped("the model could not be opened")
            elif family not in (None, opened.family.name):
                yield skipped(f"does not apply to a {opened.family.name} model")
            else:
                yield from run(subject, opened)

        return check

    return decorate


@lru_cache(maxsize=1)
def open_model(subject: Subject) -> Opened | Finding:
    """Opens what the checks need, once; a finding where that is not possible."""
    part = subject.config.model
    try:
        config, family = resolve_model(subject.config)
        part = config.model
        refuse_unsupported(config, family)
        if part.token_language is not None:
            family.language_code(part.token_language)
        if not family.learns_processor(part):
            return Opened(family, OpenModel(part, family.open_processor(part, None)))
        train = subject.split("train")
        if train is not None:
            return Opened(family, OpenModel(part, family.new_processor(train.texts, part)))
    except StorageError as error:
        return subject.unreachable(str(error))
    except ConfigError as error:
        # What could be read and does not fit is as wrong on the nodes; what could not be read here, they may have.
        unread = isinstance(error.__cause__, OSError | ValueError) and not Path(str(part.name_or_path)).exists()
        return subject.unreachable(str(error)) if unread else problem(str(error))
    return skipped("the vocabulary is learned from data.train, which could not be opened here")
