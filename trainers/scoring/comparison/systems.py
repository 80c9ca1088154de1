"""Systems to compare, with the hypotheses of a run, or of any other system, by utterance id."""

import json
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from trainers.config.strict_loading import load_json
from trainers.errors import ConfigError, DataError
from trainers.run_folder.layout import CONFIG, ENVIRONMENT, EVALUATION, EXPERIMENT, RunFolder
from trainers.scoring.error_rate import differences
from trainers.scoring.normalizers import DEFAULT, NORMALIZERS, Normalizer, normalizer_named
from trainers.scoring.transcripts import read_hypotheses, read_references

IDS_SHOWN = 3
_TEXTS = ("id", "reference", "hypothesis")


@dataclass(frozen=True)
class System:
    """A recognizer's output on a set.

    Attributes:
        name: Name from the user.
        references: References by id; None if those of another system apply.
        normalizer: Name and version of its score's normalizer; "" if not known; None if the system has no score yet.
        language: Language of the speech, if known.
        full_context: For a model that is trained at a shorter context than its full one, the rates at the full context
            by metric name, whose hypotheses are not kept; None without such a score.
        settings: Fields of its experiment, and versions of its packages.
    """

    name: str
    hypotheses: Mapping[str, str]
    references: Mapping[str, str] | None = None
    normalizer: str | None = None
    language: str | None = None
    full_context: Mapping[str, float | None] | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def of_folder(cls, name: str, folder: RunFolder, split: str) -> "System":
        """Reads the system of a run folder, or of a folder that `rayscribe evaluate` wrote.

        Raises ConfigError if the split has not been scored, and DataError if the file of the split is damaged.
        """
        key = f"{EVALUATION}/{split}.jsonl"
        if not folder.storage.exists(key):
            found = sorted(entry.key for entry in folder.storage.list_files(EVALUATION))
            splits = [key.removeprefix(f"{EVALUATION}/").removesuffix(".jsonl") for key in found if ".jsonl" in key]
            has = f"it has {' and '.join(splits)} (--split)" if splits else "it has no scores yet"
            raise ConfigError(f"{folder.url}: {split} has not been scored: {has}")
        rows = rows_of(folder, key)
        totals = folder.read_json(f"{EVALUATION}/{split}.json") or {}
        normalizer = f"{totals['normalizer']} {totals['normalizer_version']}" if "normalizer" in totals else ""
        config = folder.read_yaml(CONFIG) or {}
        return cls(
            name,
            {row["id"]: row["hypothesis"] for row in rows},
            {row["id"]: row["reference"] for row in rows},
            normalizer,
            # The score of a validation has no language, but the config next to it has.
            totals.get("language") or (config.get("model") or {}).get("language"),
            totals.get("full_context"),
            _settings_of(folder),
        )

    def of_utterances(self, ids: Collection[str]) -> "System":
        """Returns the system with only some of its utterances, without its rates at the full context."""
        references = self.references or {}
        return replace(
            self,
            hypotheses={id: text for id, text in self.hypotheses.items() if id in ids},
            references={id: text for id, text in references.items() if id in ids},
            full_context=None,
        )

    @classmethod
    def of_file(cls, name: str, path: Path, references: Path | None = None) -> "System":
        """Reads the system of a file, see `transcripts`; raises as `read_hypotheses`."""
        texts = read_references(references).texts if references is not None else None
        return cls(name, read_hypotheses(path).texts, texts)


def rows_of(folder: RunFolder, key: str) -> list[dict[str, Any]]:
    """Returns the utterances of an evaluation; raises DataError for an invalid line."""
    rows = []
    # str.splitlines would also split where JSON does not, such as at U+2028.
    for number, line in enumerate(folder.storage.read_bytes(key).splitlines(), start=1):
        try:
            row = load_json(line.decode())
        except ValueError as error:
            raise DataError(f"{folder.storage.url(key)}: line {number} is not JSON ({error}): score it again") from None
        if not isinstance(row, dict) or not all(isinstance(row.get(name), str) for name in _TEXTS):
            raise DataError(f"{folder.storage.url(key)}: line {number} lacks {', '.join(_TEXTS)}: score it again")
        rows.append(row)
    return rows


def _settings_of(folder: RunFolder) -> dict[str, Any]:
    described = folder.read_json(EXPERIMENT) or {}
    environment = folder.read_json(ENVIRONMENT) or {}
    lengths = described.get("lengths") or [{}]
    return {
        **(described.get("experiment") or {}),
        **{f"training.{name}": value for name, value in lengths[-1].items()},
        **{f"data.{split}": key for split, key in (environment.get("data") or {}).items()},
        **{f"packages.{name}": version for name, version in (environment.get("packages") or {}).items()},
    }


def differing_settings(systems: Sequence[System]) -> dict[str, list[Any]]:
    """Returns the fields in which systems with settings differ, with the value of each such system."""
    described = [system.settings for system in systems if system.settings]
    names = dict.fromkeys(name for settings in described for name in settings)
    return {
        name: [system.settings.get(name) for system in systems]
        for name in names
        if len({json.dumps(settings.get(name), sort_keys=True) for settings in described}) > 1
    }


def language_of(systems: Iterable[System]) -> str | None:
    """Returns the language of the first system that has one."""
    return next((system.language for system in systems if system.language), None)


def common_normalizer(systems: Iterable[System], requested: str | None) -> Normalizer:
    """Returns the normalizer for all texts: the requested one, or that of the scores.

    Raises ConfigError if the scores have different normalizers, or one that this version does not have.
    """
    scored = {system.name: system.normalizer or "unknown" for system in systems if system.normalizer is not None}
    if requested is not None or not scored:
        return normalizer_named(requested or DEFAULT)
    used = {*scored.values()}
    ours = {str(known): known for known in NORMALIZERS.values()}
    if len(used) == 1 and (found := ours.get(used.pop())) is not None:
        return found
    each = ", ".join(f"{name}: {normalizer}" for name, normalizer in scored.items())
    raise ConfigError(
        f"the scores were not made with one normalizer that this version has ({each}), so they do not compare: "
        f"name one with which all are scored again (--normalizer {DEFAULT})"
    )


def common_references(systems: Sequence[System], normalize: Normalizer) -> dict[str, str]:
    """Returns the normalized references by id, which all systems have in common.

    Raises ConfigError if no system has references, and DataError if the ids or the texts of two systems differ.
    """
    first = next((system for system in systems if system.references is not None), None)
    if first is None or first.references is None:
        raise ConfigError("none of these has references: add a run to them, or a file of references (--reference FILE)")
    references = {id: normalize(text) for id, text in first.references.items()}
    for system in systems:
        if found := differences([*references], [*system.hypotheses]):
            raise DataError(
                f"the utterances of {system.name} are not the {len(references)} of {first.name}: {found}. Systems "
                "compare on one set only: score both on the same manifest, and give an utterance in which nothing was "
                "recognized an empty text"
            )
        texts = system.references or {}
        others = [id for id, text in texts.items() if normalize(text) != references[id]]
        if others:
            shown = "; ".join(f"{id}: {first.references[id]!r} and {texts[id]!r}" for id in others[:IDS_SHOWN])
            raise DataError(
                f"{len(others)} references of {system.name} are not those of {first.name} ({shown}), so their scores "
                "do not compare: score both on the same manifest"
            )
    return references
