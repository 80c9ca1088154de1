"""Everything of an attempt before training: refuse early, prepare, open the attempt, write what it begins with."""

import hashlib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Self

from trainers.config.locations import cache_url_of
from trainers.config.schema import TrainConfig
from trainers.config.unread_fields import refuse_unread_fields
from trainers.data.preparation import prepared_key
from trainers.data.prepared_set import PreparedSet
from trainers.data.selection import select_scored, select_training
from trainers.data.sources.fingerprint import changed_since, remember
from trainers.data.sources.opening import Source
from trainers.distributed.console import print_line
from trainers.errors import ConfigError, DataError, LostNodeError, ResourceError, ResumeError
from trainers.models.adaptation.skeletons import describe_trained
from trainers.models.ctc.decoding.decode_files import check_search
from trainers.models.family import masking_problem, matching_problem
from trainers.models.known_families import family_of, refuse_foreign_fields
from trainers.models.labels import labels_of
from trainers.models.processor import keep_saved_processor, settle_processor
from trainers.pipeline.continuation import (
    Continuation,
    decide,
    finished,
    has_ended,
    previous_config,
    refuse_without_journal,
    settled,
)
from trainers.pipeline.engine import Engine
from trainers.pipeline.experiment import content_name
from trainers.pipeline.splits import check_storage, open_config_mixed, open_config_sources, prepare_splits
from trainers.run_folder import layout
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.fencing import Driver, refuse_superseded
from trainers.run_folder.journal import Journal, State
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.publish import publish
from trainers.run_folder.resume import named_checkpoint
from trainers.storage import open_storage
from trainers.training.planning import bounds_of, cut_references, label_sizes
from trainers.training.rank import WorkOrder


@dataclass(frozen=True)
class AttemptRequest:
    """The request for an attempt.

    Attributes:
        config: The config; `run.name` given and paths absolute.
        engine: Where it runs.
        folder: The run folder.
        overrides: What the command line changed, for the record.
        number: The attempt's number where a service counts. None: the next.
        previous: Configs of earlier attempts that were read, by the attempt: an attempt is decided on several times.
    """

    config: TrainConfig
    engine: Engine
    folder: RunFolder
    overrides: Sequence[str]
    number: int | None
    previous: dict[int | None, dict[str, Any] | None] = field(default_factory=dict)

    def decide(self, state: State, data_keys: Mapping[str, str]) -> Continuation:
        """See `continuation.decide`."""
        retried = self.number is not None and self.number > 1
        if state.prepared not in self.previous:
            self.previous[state.prepared] = previous_config(self.folder, state)
        previous = self.previous[state.prepared]
        return decide(self.folder.url, state, previous, self.config, data_keys, retried=retried)


@dataclass(frozen=True)
class _Opened:
    """What an attempt is trained with, before it is prepared.

    Attributes:
        sources: Data of the splits.
        mixed: Recordings that are mixed into clips.
        contents: Hash of each other file that is known: see `describe`.
    """

    sources: Sequence[Source]
    mixed: Sequence[Source]
    contents: Mapping[str, str]

    @classmethod
    def of(cls, config: TrainConfig, *, trains: bool = True) -> Self:
        """Opens what a config names; without training, recordings to mix may be gone."""
        mixed: Sequence[Source] = ()
        try:
            mixed = open_config_mixed(config)
        except DataError:
            if trains:
                raise
        contents = {}
        if config.model.vocabulary_file is not None:
            # Where it is gone, a run that has read it goes on without; to another, the family says what is wrong.
            with suppress(OSError):
                content = Path(config.model.vocabulary_file).read_bytes()
                contents["model.vocabulary_file"] = hashlib.sha256(content).hexdigest()
        return cls(open_config_sources(config), mixed, contents)

    def keys(self, prepared: Mapping[str, str]) -> dict[str, str]:
        """Hash of each content, given those of the prepared sets."""
        return {**prepared, **self.contents, **{source.split: source.fingerprint for source in self.mixed}}


def begin(request: AttemptRequest, status: StatusWriter) -> WorkOrder | None:
    """Begins an attempt; None where the run has finished already.

    Raises:
        RayscribeError: the attempt cannot be begun, or cannot succeed.
    """
    journal = Journal(request.folder)
    opened = _refuse_early(request, journal, status)
    sets = _prepare(request, opened, status)
    data_keys = opened.keys({split: prepared.key for split, prepared in sets.items()})
    if _has_finished(request, journal, data_keys):
        return None
    driver, continuation = _open_attempt(request, journal, data_keys)
    return _write_attempt(replace(request, config=continuation.config), driver, continuation, sets)


def _refuse_early(request: AttemptRequest, journal: Journal, status: StatusWriter) -> _Opened:
    """Finds before hours of preparing what would stop the attempt; gives the opened data."""
    config = request.config
    check_storage(config)
    state = journal.read()
    refuse_superseded(request.folder, state, request.number)
    refuse_without_journal(state, request.folder)
    _check_cluster(request)
    status.show(Phase.PREPARING_DATA, detail="opening the data")
    refuse_foreign_fields(config, family_of(config.model))
    if not state.has_begun:
        refuse_unread_fields(config)
    trains = not has_ended(state, config)
    if trains:
        _check_model(config, state)
    as_begun = settled(state, config)
    opened = _Opened.of(as_begun, trains=trains)
    data_keys = opened.keys({source.split: prepared_key(source, config.data) for source in opened.sources})
    try:
        continuation = request.decide(state, data_keys)
    except ResumeError as error:
        raise ResumeError(f"{error}{_changed_recordings(config, state, opened)}") from None
    if continuation.config.data.fingerprint != as_begun.data.fingerprint:
        # Another experiment begins, to which the defaults of now apply.
        opened = _Opened.of(continuation.config, trains=trains)
    if continuation.began_from is not None and not state.checkpoints:
        named_checkpoint(continuation.began_from, config.run.storage_options)
    return opened


def _check_cluster(request: AttemptRequest) -> None:
    try:
        request.engine.check(request.config, trains=True)
    except ResourceError as error:
        if request.number is None:
            raise
        # Nodes that join again come and go; the queue starts the run when there is room again.
        raise LostNodeError(f"the cluster has lost a node since the queue found room there: {error}") from None


def _check_model(config: TrainConfig, state: State) -> None:
    """Opens what a model is trained and decoded with; says which of its weights are trained."""
    family = family_of(config.model)
    check_search(config.decode, config.run.storage_options)
    is_saved = state.checkpoints and family.keeps_saved_processor(config.model)
    if not is_saved and not family.learns_processor(config.model):
        # Weights that cannot be opened, a language without a token.
        family.open_processor(config.model, None)
    if config.adapt.method != "full":
        print_line(f"adapt: {config.adapt.method}; {describe_trained(config.adapt, config.model, family)}")


def _changed_recordings(config: TrainConfig, state: State, opened: _Opened) -> str:
    """Which recordings have changed since the run began, for the message; "" where that is not known."""
    known = state.experiment["experiment"] if state.experiment is not None else {}
    cache, lines = open_storage(cache_url_of(config), config.run.storage_options), []
    keys = {source.split: known.get(f"data.{source.split}") for source in opened.sources}
    keys |= {source.split: known.get(content_name(source.split)) for source in opened.mixed}
    for source in (*opened.sources, *opened.mixed):
        key = keys[source.split]
        changed = changed_since(cache, key, source.marks) if key is not None else []
        if changed:
            shown = ", ".join(changed[:5]) + (", …" if len(changed) > 5 else "")
            lines.append(f"\n{source.split}: {len(changed)} recordings have changed since: {shown}")
    return "".join(lines)


def _prepare(request: AttemptRequest, opened: _Opened, status: StatusWriter) -> dict[str, PreparedSet]:
    sets = prepare_splits(
        request.config,
        opened.sources,
        request.engine,
        show=lambda detail: status.show(Phase.PREPARING_DATA, detail=detail),
    )
    cache = open_storage(cache_url_of(request.config), request.config.run.storage_options)
    for source in opened.sources:
        remember(cache, sets[source.split].key, source.marks)
    for source in opened.mixed:
        remember(cache, source.fingerprint, source.marks)
    return sets


def _has_finished(request: AttemptRequest, journal: Journal, data_keys: Mapping[str, str]) -> bool:
    """Whether there is nothing to train; the result of the run is then shown again.

    Raises:
        ResumeError: the run may not be continued with this config.
    """
    state = journal.read()
    refuse_superseded(request.folder, state, request.number)
    request.decide(state, data_keys)
    if not finished(state, request.folder, request.config, data_keys):
        return False
    print_line(
        f"{request.folder.url}: this run has finished; raise training.max_steps to train on, or name another run"
    )
    # The attempt that finished may have died, or may be paused, before all of it was to be seen.
    publish(request.folder, journal)
    return True


def _open_attempt(
    request: AttemptRequest, journal: Journal, data_keys: Mapping[str, str]
) -> tuple[Driver, Continuation]:
    """Enters the attempt in the journal; the decision that counts is the one on the state that the entry follows."""
    decided: list[Continuation] = []

    def resolve_experiment(state: State) -> dict[str, Any]:
        decided.append(request.decide(state, data_keys))
        return decided[-1].experiment

    driver = Driver.open(request.folder, journal, request.number, resolve_experiment)
    for change in decided[-1].changes:
        print_line(f"changed since the attempt before: {change}")
    return driver, decided[-1]


def _write_attempt(
    request: AttemptRequest, driver: Driver, continuation: Continuation, sets: Mapping[str, PreparedSet]
) -> WorkOrder:
    """Writes what an attempt begins with into its own folder, then has the run folder show it."""
    own, state = driver.own, driver.check()
    assert state.experiment is not None
    own.write_json(layout.ATTEMPT, {**layout.describe_start(), "changes": continuation.changes})
    own.write_request(request.config, request.overrides)
    own.write_json(layout.ENVIRONMENT, layout.describe_environment({split: item.key for split, item in sets.items()}))
    own.write_json(layout.EXPERIMENT, state.experiment)
    # A new model's processor is learned, or taken from a checkpoint, by the first attempt that comes so far, and is
    # that one's for all others.
    holder = state.processor or driver.attempt
    origin = None if state.processor is not None or state.checkpoints else continuation.began_from
    model = request.config.model
    family = family_of(model)
    is_own = state.processor is not None or origin is not None or family.learns_processor(model)
    if not is_own and state.checkpoints and family.keeps_saved_processor(model):
        is_own = keep_saved_processor(family, model, driver.folder, state.checkpoints, own)
    _check_utterances(request.config, driver, holder, sets, origin)
    processor = holder if is_own else None
    driver.append(lambda _: {"kind": "prepared", "attempt": driver.attempt, "processor": processor})
    publish(driver.folder, driver.journal)
    return WorkOrder(
        config=request.config,
        sets=sets,
        attempt=driver.attempt,
        run_id=state.experiment["id"],
        processor=f"{layout.ATTEMPTS}/{processor}/{layout.PROCESSOR}" if processor is not None else None,
        weights=continuation.began_from,
        lengths=continuation.lengths,
        numbered=request.number is not None,
    )


def _check_utterances(
    config: TrainConfig, driver: Driver, holder: int, sets: Mapping[str, PreparedSet], origin: str | None
) -> None:
    """Finds what would stop or falsify the run later, and writes which rows are left out and why.

    Args:
        config: The config.
        driver: Of this attempt.
        holder: The attempt whose folder holds a new model's processor, or is to hold it.
        sets: Prepared set of each split.
        origin: The checkpoint whose processor a new run takes over. None: it has one, or learns or opens its own.

    Raises:
        DataError: transcripts or clips do not fit the model; nothing is left to train on.
    """
    home = driver.folder.sub(f"{layout.ATTEMPTS}/{holder}")
    family = family_of(config.model)
    taken_over = named_checkpoint(origin, config.run.storage_options) if origin is not None else None
    texts = sets["train"].index["text"].to_pylist()
    processor = settle_processor(family, config.model, home, texts, taken_over)
    limits = family.limits(config.model, processor)
    problem = masking_problem(config.augment, limits) or matching_problem(config.training, config.model, limits)
    if problem is not None:
        raise ConfigError(problem)
    bounds, left_out, used = bounds_of(config, limits), [], {}
    for split, prepared in sets.items():
        index = prepared.index
        left_out += [{"split": split, **row} for row in prepared.quarantine]
        noted = family.check_texts(processor, (text.as_py() for text in index["text"]))
        if noted is not None:
            print_line(f"warning: {split}: {noted}")
        labels = labels_of(prepared, family, processor)
        if split == "train":
            chosen = select_training(index, label_sizes(labels, bounds), config.data, bounds)
            left_out += [{"split": split, **row} for row in chosen.left_out]
            used[split] = len(chosen.selection.rows)
        else:
            rows = select_scored(index, labels.lengths, config.data, bounds, split)
            used[split] = len(rows)
            cut = cut_references(config, limits, labels.lengths[rows])
            if cut is not None:
                print_line(f"warning: {split}: {cut}")
    driver.own.write_jsonl(layout.QUARANTINE, left_out)
    print_line(_data_line(sets, used))


def _data_line(sets: Mapping[str, PreparedSet], used: Mapping[str, int]) -> str:
    """How many clips there are of each split, and how many of them are left out of training or of the score."""
    parts = []
    for split, prepared in sets.items():
        summary = prepared.summary
        notes = [f"{summary.duration_s / 3600:.2f} h"]
        if left_out := summary.prepared - used[split]:
            notes.append(f"{left_out} {'left out' if split == 'train' else 'too long, not scored'}")
        if summary.quarantined:
            notes.append(f"{summary.quarantined} quarantined")
        parts.append(f"{split} {used[split]} of {summary.rows} clips ({', '.join(notes)})")
    return "data: " + " · ".join(parts)
