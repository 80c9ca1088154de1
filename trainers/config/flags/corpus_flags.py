"""A corpus with splits that `--dataset` names in its own format: `--dataset common_voice:/data/cv --name sr`."""

from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from trainers.config.overrides import Override
from trainers.config.parts.data_location import FORMATS, WITH_SPLITS, DataLocation
from trainers.errors import ConfigError

_DATASET, _LANGUAGE = ("dataset", "dataset_name"), ("name", "dataset_config_name")
_SPLIT_FLAGS = {"train": "train_split_name", "validation": "eval_split_name", "test": None}


def with_corpus(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Override]]:
    """The values of flags without those that name a corpus, and the fields which these mean.

    Raises:
        ConfigError: the format has one split a location, or the location is wrong.
    """
    given = next((values[flag] for flag in _DATASET if values.get(flag) is not None), None)
    name, colon, path = str(given).partition(":")
    if given is None or not colon or name not in FORMATS:
        return dict(values), []
    if name not in WITH_SPLITS:
        raise ConfigError(
            f"--dataset {given}: {name}: is one split: give each as --set data.train={name}:…, --set "
            f"data.validation={name}:…"
        )
    language = next((values[flag] for flag in _LANGUAGE if values.get(flag) is not None), None)
    fields: list[Override] = []
    for field, flag in _SPLIT_FLAGS.items():
        options = {"language": language, "split": values.get(flag) if flag is not None else None}
        query = "&".join(
            f"{option}={quote(str(value), safe='+')}" for option, value in options.items() if value is not None
        )
        location = f"{given}{'&' if '?' in path else '?'}{query}" if query else given
        try:
            DataLocation.parse(location)
        except ValueError as error:
            raise ConfigError(f"--dataset {given}: {error}") from None
        fields.append((("data", field), location))
    taken = (*_DATASET, *_LANGUAGE, *filter(None, _SPLIT_FLAGS.values()))
    return {flag: value for flag, value in values.items() if flag not in taken}, fields
