"""Decides whether a run continues with a config, as which experiment, and what changes from then on.

Every config field belongs to one of three groups: the experiment, which a begun run keeps; the run's length, which
changes as `training.extend` says; and fields that may change freely, which take effect immediately and are reported.
"""

import uuid
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

import yaml

from trainers.config.locations import cache_url_of
from trainers.config.parts.training_part import TrainingPart
from trainers.config.schema import TrainConfig
from trainers.errors import ResumeError
from trainers.models.families import decoder_of
from trainers.models.sources.model_files import SourcePin
from trainers.pipeline.experiment import (
    BEGAN_FROM,
    RESOLVED,
    SHARDS,
    content_name,
    default_of,
    describe,
    fill_missing_content_hashes,
    fill_new_fields,
    resolve_fields,
)
from trainers.run_folder.journal import State
from trainers.run_folder.layout import ATTEMPTS, CONFIG, RunFolder
from trainers.run_folder.resume import FROM
from trainers.training.schedule import ENDLESS, ZERO_AT_THE_END
from trainers.training.tasks import Length

# Fields that may change, but change the order of sums or the kernels, so that results are equal only up to rounding.
ROUNDING = {
    "scaling.num_workers",
    "scaling.use_gpu",
    "scaling.accelerator",
    "scaling.accelerator_type",
    "scaling.backend",
    "training.per_device_train_batch_size",
    "training.global_batch_size",
    "training.gradient_accumulation_steps",
    "training.gradient_checkpointing",
    "training.torch_compile",
}
# Entries of an experiment that are derived from fields: what the value counts, and the fix that keeps it.
STEP_SIZES = {
    "training.utterances_per_step": ("utterances", "--set training.global_batch_size={} keeps them"),
    "training.forward_passes_per_step": (
        "forward passes",
        "a training.gradient_accumulation_steps that makes them {} with these workers keeps them",
    ),
}
OF_STEPS = (
    "scaling.num_workers",
    "training.per_device_train_batch_size",
    "training.gradient_accumulation_steps",
    "training.global_batch_size",
    "training.max_batch_duration_s",
)
LENGTH = ("max_steps", "num_train_epochs")
# The fix for changes after which workers could not load the checkpoint's shards.
OTHER_SHARDS = (
    "; to continue a checkpoint's weights under another strategy, or with another number of shards, start a new run "
    "with a new optimizer (--set run.name=… --set run.resume=from:<checkpoint>)"
)
# Key in an experiment for the sources that its model had when it began.
SOURCES = "model_sources"
# Fields that identify the run, and fields whose changes other lines report.
UNREPORTED = {"run.name", "run.storage_path", "run.resume"} | {f"training.{name}" for name in (*LENGTH, "extend")}


@dataclass(frozen=True)
class Continuation:
    """The way in which a run begins or continues.

    Attributes:
        config: The config, with the run's values in fields that are null.
        experiment: Id, description and lengths, for the journal.
        changes: Differences from the previous attempt, one line each; empty if the run begins.
    """

    config: TrainConfig
    experiment: dict[str, Any]
    changes: tuple[str, ...] = ()

    @property
    def began_from(self) -> str | None:
        """Folder or URL of the checkpoint that provided weights and vocabulary; None if the run began without one."""
        text: str | None = self.experiment["experiment"][BEGAN_FROM]
        return text.removeprefix(FROM) if text is not None else None

    @property
    def lengths(self) -> list[Length]:
        return [Length(**item) for item in self.experiment["lengths"]]

    def with_sources(self, began_with: Mapping[str, Any] | None, pins: Mapping[str, SourcePin]) -> "Continuation":
        """Returns a copy that records the model's sources as they were when the run began.

        `began_with` is None if the run begins now. A source whose content has changed is reported, since training
        continues from the run's own checkpoint but with the current config and tokenizer.
        """
        records = {name: pin.record for name, pin in pins.items()}
        if began_with is None:
            return replace(self, experiment={**self.experiment, SOURCES: records})
        changed = [
            f"{pin.name}: other content than the run began with (SHA-256 {began_with[name]['sha256']} → {pin.sha256})"
            for name, pin in pins.items()
            if name in began_with and pin.differs_from(began_with[name])
        ]
        kept = {**self.experiment, SOURCES: {**records, **began_with}}
        return replace(self, experiment=kept, changes=(*self.changes, *changed))


def decide(
    url: str,
    state: State,
    previous: Mapping[str, Any] | None,
    config: TrainConfig,
    data_keys: Mapping[str, str],
    *,
    retried: bool = False,
) -> Continuation:
    """Decides whether a run may begin or continue, and as which experiment.

    `previous` is the config of the newest attempt; `data_keys` are those of `describe`. `retried` is True if a service
    retries the run, which `resume: never` allows.

    Raises:
        ResumeError: the run has begun and has `resume: never`, or a begun run does not allow the change.
    """
    if not state.has_begun:
        return _begin(state.experiment, config, data_keys)
    if config.run.resume == "never" and not retried:
        raise ResumeError(
            f"{url}: this run has begun, and run.resume is never: "
            "name another run (--set run.name=…), or continue it (--set run.resume=auto)"
        )
    assert state.experiment is not None
    before = state.experiment["experiment"]
    resolved = resolve_config(state, config)
    wanted = fill_missing_content_hashes(describe(resolved, data_keys, began_from=before.get(BEGAN_FROM)), before)
    before = fill_new_fields(fill_missing_content_hashes(before, wanted), wanted, resolved)
    if wanted != before:
        changed = [name for name in sorted({*before, *wanted}) if before.get(name) != wanted.get(name)]
        fields = _free_changes(previous, resolved)
        raise ResumeError(
            f"{url}: holds another experiment, so it is not continued:\n"
            + "\n".join(f"  - {_difference(name, before.get(name), wanted.get(name), fields)}" for name in changed)
            + "\nname another run (--set run.name=…), or set these back"
            + (OTHER_SHARDS if any(name == SHARDS or name.startswith("strategy.") for name in changed) else "")
        )
    return _go_on(url, state, previous, resolved, wanted)


def _difference(name: str, before: object, wanted: object, fields: Mapping[str, tuple[Any, Any]]) -> str:
    """Returns a line about a difference in an experiment; `fields` has old and new values of changed fields."""
    if name in ("data.train", "data.validation") and before and wanted:
        # Hashes of prepared sets.
        return f"{name}: other recordings, transcripts or ways to prepare them ({before} → {wanted})"
    if name.endswith(content_name("")):
        return f"{name.removesuffix(content_name(''))}: the file has other content ({before} → {wanted})"
    if name in STEP_SIZES:
        what, keep = STEP_SIZES[name]
        of_step = f"{what} of an optimizer step: {before} → {wanted}"
        why = [f"{field}: {old} → {new}" for field, (old, new) in fields.items() if field in OF_STEPS]
        keeping = f"; {keep.format(before)}" if before is not None and wanted is not None else ""
        return f"{', '.join(why) or ' × '.join(OF_STEPS[:3])}: {of_step}{keeping}"
    return f"{name}: {before!r} → {wanted!r}"


def known_sources(state: State) -> Mapping[str, Any] | None:
    """Returns the sources of a run's model when it began, by field; None if the run has not begun."""
    if not state.has_begun or state.experiment is None:
        return None
    found: Mapping[str, Any] = state.experiment.get(SOURCES, {})
    return found


def resolve_config(state: State, config: TrainConfig) -> TrainConfig:
    """Returns the config with null fields set to the values that they had when the run began."""
    known = state.experiment["experiment"] if state.experiment is not None else None
    return resolve_fields(config, cache_url_of(config), known)


def _begin(known: Mapping[str, Any] | None, config: TrainConfig, data_keys: Mapping[str, str]) -> Continuation:
    """Begins a run; keeps the id of an equal experiment, whose attempt may have staged a checkpoint."""
    lengths = [_length(config.training)]
    if known is not None:
        before = known["experiment"]
        resolved = resolve_fields(config, cache_url_of(config), before)
        wanted = fill_missing_content_hashes(describe(resolved, data_keys), before)
        if wanted == fill_new_fields(fill_missing_content_hashes(before, wanted), wanted, resolved):
            return Continuation(resolved, _experiment(known["id"], wanted, lengths))
    resolved = resolve_fields(config, cache_url_of(config), None)
    return Continuation(resolved, _experiment(uuid.uuid4().hex, describe(resolved, data_keys), lengths))


def _go_on(
    url: str, state: State, previous: Mapping[str, Any] | None, config: TrainConfig, wanted: dict[str, Any]
) -> Continuation:
    assert state.experiment is not None
    known = [Length(**item) for item in state.experiment["lengths"]]
    lengths = _extended(url, known, config.training)
    most, last = lengths[-1].max_steps, max((item.step for item in state.checkpoints), default=0)
    if most is not None and most < last:
        raise ResumeError(
            f"{url}: training.max_steps is {most}, but the run is at step {last}: raise max_steps, or name another run "
            "(--set run.name=…)"
        )
    changes = _free_changes(previous, config)
    reported = [f"{name}: {old!r} → {new!r}" for name, (old, new) in changes.items()]
    before, now = (previous or {}).get("training", {}).get("extend"), config.training.extend
    if lengths == known and before != now:
        reported.append(f"training.extend: {before!r} → {now!r}, which has no effect: the run's length is the same")
    if lengths != known:
        name, extend = config.training.lr_scheduler_type, config.training.extend
        is_endless = name in ENDLESS
        how = f"; the learning rate ({name}) does not depend on it" if is_endless else f" (training.extend {extend})"
        reported.append(f"the run ends at {lengths[-1].text}, not {known[-1].text}{how}")
    if ROUNDING & set(changes):
        reported.append("sums are computed in another order from here on, so weights are equal only up to rounding")
    return Continuation(config, _experiment(state.experiment["id"], wanted, lengths), tuple(reported))


def _experiment(run_id: str, description: dict[str, Any], lengths: list[Length]) -> dict[str, Any]:
    return {"id": run_id, "experiment": description, "lengths": [asdict(length) for length in lengths]}


def _length(part: TrainingPart) -> Length:
    return Length(part.max_steps, part.num_train_epochs)


def _extended(url: str, known: list[Length], part: TrainingPart) -> list[Length]:
    """Returns the lengths, with the requested length appended if it is new; raises ResumeError if not allowed."""
    last, asked = known[-1], _length(part)
    if (last.max_steps, last.num_train_epochs) == (asked.max_steps, asked.num_train_epochs):
        return known
    change = f"{url}: this run ends at training.{last.text}, and {asked.text} is asked for"
    if (last.max_steps is None) != (asked.max_steps is None):
        raise ResumeError(f"{change}: keep the one that the run began with, and set the other to null")
    name = part.lr_scheduler_type
    if name in ENDLESS or part.extend == "rescale":
        # Extensions that would begin after the new end are dropped.
        before = [length for length in known[:-1] if length.amount < asked.amount]
        return [*before, replace(asked, extend=known[len(before)].extend)]
    if part.extend is None:
        raise ResumeError(
            f"{change}: the learning rate ({name}) depends on it, so choose how the schedule "
            "continues: --set training.extend=rescale "
            "(the schedule over the new length), restart (warm-up and decay once more over the added steps) or "
            f"constant (the added steps at the last rate); or keep {last.text}"
        )
    if asked.amount < last.amount:
        raise ResumeError(f"{change}: training.extend {part.extend} adds steps; to end earlier, set it to rescale")
    if part.extend == "constant" and name in ZERO_AT_THE_END:
        raise ResumeError(
            f"{change}: training.extend is constant, but the last rate of {name} is 0; set it to rescale or restart"
        )
    return [*known, replace(asked, extend=part.extend)]


def _free_changes(previous: Mapping[str, Any] | None, config: TrainConfig) -> dict[str, tuple[Any, Any]]:
    """Returns old and new value of each changed field that is not part of the experiment."""
    changes: dict[str, tuple[Any, Any]] = {}
    if previous is None:
        return changes
    for part, fields in config.model_dump(mode="json", exclude={"trainer", "job"}).items():
        for name, value in fields.items():
            before = previous.get(part, {}).get(name, default_of(config, part, name))
            # The value was null, and is now resolved to the run's own value.
            is_resolved = before is None and f"{part}.{name}" in RESOLVED
            if before != value and not is_resolved and f"{part}.{name}" not in UNREPORTED:
                changes[f"{part}.{name}"] = (before, value)
    return changes


def previous_config(folder: RunFolder, state: State) -> dict[str, Any] | None:
    """Returns the config of the newest attempt; None if no attempt has written one. Raises ResumeError if damaged."""
    damaged = []
    for key in (f"{ATTEMPTS}/{state.prepared}/{CONFIG}", CONFIG):
        if state.prepared is not None and folder.storage.exists(key):
            try:
                content = yaml.safe_load(folder.storage.read_bytes(key))
            except yaml.YAMLError:
                content = None
            if isinstance(content, dict):
                return content
            damaged.append(folder.storage.url(key))
    if damaged:
        raise ResumeError(f"{' and '.join(damaged)}: damaged; put one back from a copy, or give the run another name")
    return None


def has_ended(state: State, config: TrainConfig) -> bool:
    """Returns True if a run has a result for the config's length, so that nothing is left to train."""
    if state.finished is None:
        return False
    result = state.finished.result
    return [result[name] for name in LENGTH] == [getattr(config.training, name) for name in LENGTH]


def finished(state: State, folder: RunFolder, config: TrainConfig, data_keys: Mapping[str, str]) -> bool:
    """Returns True if a run has reached its last step and has the requested result.

    Raises:
        ResumeError: the run has finished, but was scored on another test set or with other decode settings.
    """
    if state.finished is None or not has_ended(state, config):
        return False
    is_other_set = state.finished.result["test_data"] != data_keys.get("test")
    if not is_other_set and not _decodes_otherwise(state.finished.result, config):
        return True
    other = "on another test set" if is_other_set else "with other decode settings"
    raise ResumeError(
        f"{folder.url}: this run has finished, and was scored {other}; score its model as the recipe is now with: "
        f"rayscribe evaluate SPEC --model {folder.url}"
    )


def _decodes_otherwise(result: Mapping[str, Any], config: TrainConfig) -> bool:
    """Returns True if decode differs from that of a result. Files are compared by content if known, else by name."""
    now = config.decode
    before = type(now).model_validate(result.get("decode", {}))
    files = set(now.files)
    if before.model_dump(exclude=files) != now.model_dump(exclude=files):
        return True
    known = (result.get("test") or {}).get("decoding", {})
    decoder = decoder_of(now)
    contents = decoder.content_hashes(now, config.run.storage_options) if decoder is not None else {}
    for name in now.files:
        if name in contents and "sha256" in known.get(name, {}):
            if contents[name] != known[name]["sha256"]:
                return True
        elif getattr(before, name) != getattr(now, name):
            return True
    return False
