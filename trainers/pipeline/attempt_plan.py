"""What an attempt will be: found from its request and the run's journal, before anything is prepared or written."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainers.config.schema import TrainConfig
from trainers.config.unused_fields import refuse_unused_fields
from trainers.distributed.console import print_line
from trainers.errors import ConfigError, LostNodeError, ResourceError, ResumeError
from trainers.models.adaptation.trained_weights import describe_trained
from trainers.models.clip_languages import language_tokens, languages_in
from trainers.models.families import check_decoder, refuse_unsupported, resolve_model
from trainers.models.family import Family
from trainers.pipeline.continuation import (
    Continuation,
    decide,
    finished,
    has_ended,
    previous_config,
    refuse_without_checkpoint,
    refuse_without_journal,
    resolve_config,
)
from trainers.pipeline.engine import Engine
from trainers.pipeline.splits import OpenedData, check_storage
from trainers.run_folder.attempt_status import Phase, StatusWriter
from trainers.run_folder.fencing import refuse_superseded
from trainers.run_folder.journal import Journal, State
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.resume import named_checkpoint
from trainers.scoring.recipe_metrics import RecipeMetrics


@dataclass(frozen=True)
class AttemptRequest:
    """The request for an attempt.

    Attributes:
        number: The attempt's number where a service counts. None: the next.
        expected: A checkpoint that a service knows the run has. None: it knows of none.
    """

    config: TrainConfig
    engine: Engine
    folder: RunFolder
    overrides: Sequence[str]
    number: int | None
    expected: str | None = None


@dataclass(frozen=True)
class AttemptPlan:
    """An attempt on one state of the journal; on another it is resolved anew.

    Attributes:
        continuation: How the run begins or goes on, with the config that the attempt runs with.
        family: That of its weights.
        data: What it is trained and scored on, opened.
        processor: That of pretrained weights. None: the run has one of its own, or learns it.
        has_finished: There is nothing to train: the result of the run is shown again.
    """

    request: AttemptRequest
    state: State
    continuation: Continuation
    family: Family[Any]
    data: OpenedData
    processor: Any
    has_finished: bool

    @property
    def config(self) -> TrainConfig:
        return self.continuation.config


def resolve(request: AttemptRequest, journal: Journal, status: StatusWriter) -> AttemptPlan:
    """Plans an attempt; what would stop it after hours of preparing is found here.

    Raises:
        RayscribeError: the attempt cannot be begun, or cannot succeed.
    """
    config = request.config
    check_storage(config)
    state = journal.read()
    refuse_superseded(request.folder, state, request.number)
    refuse_without_journal(state, request.folder)
    refuse_without_checkpoint(state, request.folder, request.expected)
    _check_cluster(request)
    status.show(Phase.PREPARING_DATA, detail="opening the data")
    config, family = resolve_model(config)
    request, trains = replace(request, config=config), not has_ended(state, config)
    refuse_unsupported(config, family)
    if not state.has_begun:
        refuse_unused_fields(config)
    processor = _check_model(config, family, state) if trains else None
    data, continuation = _decide(request, state, trains=trains)
    if trains:
        _check_languages(config, family, data, processor)
    if continuation.began_from is not None and not state.checkpoints:
        named_checkpoint(continuation.began_from, config.run.storage_options)
    has_finished = finished(state, request.folder, config, data.keys(config.data, state))
    return AttemptPlan(request, state, continuation, family, data, processor, has_finished)


def _decide(request: AttemptRequest, state: State, *, trains: bool) -> tuple[OpenedData, Continuation]:
    """Opens the data as the run began with it, and decides on the hashes of it."""
    config, folder, begun = request.config, request.folder, state
    retried = request.number is not None and request.number > 1
    previous = previous_config(folder, state)
    while True:
        resolved = resolve_config(begun, config)
        data = OpenedData.of(resolved, trains=trains)
        try:
            keys = data.keys(config.data, begun)
            continuation = decide(folder.url, begun, previous, config, keys, retried=retried)
        except ResumeError as error:
            raise ResumeError(f"{error}{data.changed_recordings(config, state)}") from None
        if continuation.config.data == resolved.data:
            return data, continuation
        # Another experiment begins, to which the defaults of now apply.
        begun = replace(state, experiment=None)


def _check_cluster(request: AttemptRequest) -> None:
    try:
        request.engine.check(request.config, trains=True)
    except ResourceError as error:
        if request.number is None:
            raise
        # Nodes that join again come and go; the queue starts the run when there is room again.
        raise LostNodeError(f"the cluster has lost a node since the queue found room there: {error}") from None


def _check_model(config: TrainConfig, family: Family[Any], state: State) -> Any:
    """Opens what a model is trained, decoded and scored with; prints which of its weights are trained.

    Returns:
        The processor of pretrained weights; None: the run has one of its own, or learns it.
    """
    check_decoder(config.decode, config.run.storage_options)
    if (metrics := RecipeMetrics.of(config.scoring)) is not None:
        metrics.check()
    processor = None
    is_saved = state.checkpoints and family.keeps_saved_processor(config.model)
    if not is_saved and not family.learns_processor(config.model):
        # Weights that cannot be opened, a language without a token.
        processor = family.open_processor(config.model, None)
    if config.adapt.method != "full":
        print_line(f"adapt: {config.adapt.method}; {describe_trained(config.adapt, config.model, family)}")
    return processor


def _check_languages(config: TrainConfig, family: Family[Any], data: OpenedData, processor: Any) -> None:
    for source in data.sources:
        try:
            language_tokens(family, processor, languages_in(source.table), config.model.language)
        except ConfigError as error:
            raise ConfigError(f"data.{source.split}: {error}") from None
