"""fit(config): prepare, train, score, export; and the two verbs that do a part of it: prepare_all and evaluate."""

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Protocol, TypeVar

import pyarrow as pa

from trainers.config.locations import cache_url_of, storage_path_of
from trainers.config.schema import EVALUATIONS, S3_SCHEME, TrainConfig
from trainers.data.preparation import Runner, ShardTask, prepare, run_here
from trainers.data.prepared_set import PreparedSet
from trainers.data.selection import check_scorable, select_training
from trainers.data.sources import SPLITS, Source, open_sources
from trainers.distributed.session import LocalSession
from trainers.errors import ConfigError, RayscribeError
from trainers.models.processor import (
    check_label_lengths,
    context_and_labels,
    encode_labels,
    load_processor,
    settle_processor,
)
from trainers.pipeline.root_cause import naming_memory
from trainers.run_folder import layout
from trainers.run_folder.attempt_status import FinalStatus, Phase, StatusWriter
from trainers.run_folder.fencing import Driver, refuse_superseded
from trainers.run_folder.journal import Journal, State
from trainers.run_folder.layout import RunFolder
from trainers.run_folder.publish import publish
from trainers.run_folder.resume import FROM, named_checkpoint
from trainers.storage import open_storage
from trainers.training.experiment import finished, refuse_without_journal, settle
from trainers.training.planning import context_of
from trainers.training.rank import WorkOrder
from trainers.training.scoring_worker import EvaluateOrder, evaluate_here
from trainers.training.worker import work_here

Made = TypeVar("Made")


class Engine(Protocol):
    """Where preparing and training run: on Ray (`ray_engine`), or in this process."""

    @property
    def runner(self) -> Runner:
        """Runs the tasks that prepare data."""

    def once(self, make: Callable[[], Made]) -> Made:
        """What `make` returns, made by one process and known to all that call."""

    def check(self, config: TrainConfig) -> None:
        """Refuses what can never run here."""

    def train(self, order: WorkOrder, folder: RunFolder) -> None:
        """Runs the training workers to their end."""

    def evaluate(self, order: EvaluateOrder, folder: RunFolder) -> None:
        """Runs scoring workers to their end."""


class LocalEngine:
    """This process, or those that torchrun started: the same core without Ray."""

    runner: Runner = staticmethod(run_here)

    def once(self, make: Callable[[], Made]) -> Made:
        """Made by rank 0."""
        made: Made = LocalSession.of_this_process().broadcast(make)
        return made

    def check(self, config: TrainConfig) -> None:
        """Nothing is placed, so everything fits."""

    def train(self, order: WorkOrder, folder: RunFolder) -> None:
        """Runs this process's rank."""
        with naming_memory():
            work_here(order)

    def evaluate(self, order: EvaluateOrder, folder: RunFolder) -> None:
        """Runs this process's rank."""
        with naming_memory():
            evaluate_here(order)


@dataclass(frozen=True)
class RunResult:
    """What a run came to.

    Attributes:
        folder: The run folder's path or URL.
        totals: Totals of the split that was scored last: test, or validation where there is no test.
        split: Its name.
    """

    folder: str
    totals: Mapping[str, Any]
    split: str

    @property
    def headline(self) -> str:
        """`WER 4.2% on test (200 utterances) · <folder>`, or `(199 of 200 utterances)`."""
        asked, scored = self.totals["utterances"], self.totals["scored"]
        count = f"{scored}" if scored == asked else f"{scored} of {asked}"
        return f"WER {self.totals['wer']:.1f}% on {self.split} ({count} utterances) · {self.folder}"


def say(line: str) -> None:
    """Shows a line at once, through pipes too; under torchrun, once for all ranks."""
    if os.environ.get("RANK", "0") == "0":
        print(line, flush=True)


def fit(config: TrainConfig, engine: Engine, *, overrides: Sequence[str] = (), attempt: int | None = None) -> RunResult:
    """Runs one experiment from manifests to an exported, scored model; continues it where it was interrupted.

    Args:
        config: The config; `run.name` given and paths absolute.
        engine: Where it runs.
        overrides: What the command line changed, for the record.
        attempt: The attempt's number where a service counts; it takes the run over from all before. None: the next.

    Raises:
        FencedError: a later attempt has taken the run over.
        RayscribeError: with the thing, the value and the fix; before training wherever it can be known.
    """
    # Rank 0's, since a name that is made from the time may differ between ranks.
    config = engine.once(lambda: config)
    folder = RunFolder.of(config)
    with FinalStatus(config, folder, attempt) as final:
        with StatusWriter(folder, attempt) as status:
            order = engine.once(lambda: _stage(config, engine, folder, overrides, attempt, status))
        if order is not None:
            final.attempt = order.attempt
            engine.train(order, folder)
        result = _result_of(folder, order)
        final.headline = result.headline
    return result


def _result_of(folder: RunFolder, order: WorkOrder | None) -> RunResult:
    finish = Journal(folder).read().finished
    if finish is None or (order is not None and finish.attempt < order.attempt):
        raise RayscribeError(f"{folder.url}: the workers ended without a result; look into {layout.ATTEMPTS}/")
    split = "validation" if finish.result["test"] is None else "test"
    totals = folder.read_json(f"{finish.outputs}/{layout.EVALUATION}/{split}.json")
    return RunResult(folder.url, totals or {}, split)


def prepare_all(config: TrainConfig, engine: Engine, splits: tuple[str, ...] = SPLITS) -> dict[str, PreparedSet]:
    """Prepares every split of the config, or finds it prepared.

    Raises:
        DataError: a manifest is wrong, or too many recordings cannot be decoded.
        StorageError: the storage cannot be written.
    """
    _check_storage(config)
    return _prepare_splits(config, engine, splits)


def _check_storage(config: TrainConfig) -> None:
    """Finds within seconds what would stop the run; before anything else that asks the storage with patience."""
    open_storage(storage_path_of(config), s3_endpoint_url=config.run.s3_endpoint_url).check_writable()


def _prepare_splits(
    config: TrainConfig, engine: Engine, splits: tuple[str, ...] = SPLITS, show: Callable[[str], None] = lambda _: None
) -> dict[str, PreparedSet]:
    """Prepares the splits; `show` takes how far it is."""
    sources = open_sources(config.data, s3_endpoint_url=config.run.s3_endpoint_url, splits=splits)
    engine.check(config)
    return {source.split: _prepare(config, source, engine, show) for source in sources}


def evaluate(config: TrainConfig, engine: Engine, *, model: str, split: str) -> RunResult:
    """Scores a model on a split of the config's data, into a new folder under the storage path.

    Args:
        config: Says data, scaling and how to score.
        engine: Where it runs.
        model: A run folder, a folder or s3:// URL with a model, or a Hub id.
        split: train, validation or test.

    Raises:
        ConfigError: there is no such model, or the config has no such split.
    """
    name = model.rstrip("/").rpartition("/")[2]

    def stage() -> EvaluateOrder:
        stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
        url = f"{storage_path_of(config)}/{EVALUATIONS}/{name}-{split}-{stamp}"
        address = find_model(model, config.run.s3_endpoint_url)
        sets = prepare_all(config, engine, (split,))
        if split not in sets:
            raise ConfigError(f"data.{split}: there is none to score (--set data.{split}=my/{split}.csv)")
        return EvaluateOrder(config, sets[split], split, address, url)

    order = engine.once(stage)
    folder = RunFolder(open_storage(order.folder_url, s3_endpoint_url=config.run.s3_endpoint_url))
    engine.evaluate(order, folder)
    totals = folder.read_json(f"{layout.EVALUATION}/{split}.json")
    return RunResult(folder.url, totals or {}, split)


def find_model(model: str, s3_endpoint_url: str | None) -> str:
    """The folder or URL that holds the model of a run, or the text itself where it is one, or a Hub id.

    A run's is the one that its journal names, not the copy at the root that people see.

    Raises:
        ConfigError: a folder or URL was given that holds no model.
    """
    local = Path(model).expanduser()
    if not model.startswith(S3_SCHEME) and not local.exists():
        if local.is_absolute() or model.startswith("."):
            raise ConfigError(f"--model {model}: no such folder; give a run folder, or a folder with a model")
        return model
    address = model.rstrip("/") if model.startswith(S3_SCHEME) else str(local.resolve())
    state = Journal(RunFolder(open_storage(address, s3_endpoint_url=s3_endpoint_url))).read()
    home = address if state.finished is None else f"{address}/{state.finished.outputs}"
    for candidate in (f"{home}/{layout.MODEL}", home):
        if open_storage(candidate, s3_endpoint_url=s3_endpoint_url).exists("config.json"):
            return candidate
    raise ConfigError(f"--model {model}: holds no config.json, nor a {layout.MODEL}/ folder; has the run finished?")


def _stage(
    config: TrainConfig,
    engine: Engine,
    folder: RunFolder,
    overrides: Sequence[str],
    attempt: int | None,
    status: StatusWriter,
) -> WorkOrder | None:
    """Everything before training; None where the run has finished already."""
    _check_storage(config)
    journal = Journal(folder)
    # Also before hours of preparing.
    refuse_superseded(folder, journal.read(), attempt)
    refuse_without_journal(journal.read(), folder)
    status.show(Phase.PREPARING_DATA, detail="opening the data")
    if config.model.init == "pretrained":
        # Before hours of preparing: weights that cannot be opened, a language without a token.
        load_processor(config.model, None)
    sets = _prepare_splits(config, engine, show=lambda detail: status.show(Phase.PREPARING_DATA, detail=detail))
    data_keys = {split: prepared.key for split, prepared in sets.items()}
    retried = attempt is not None and attempt > 1

    def experiment(state: State) -> dict[str, Any]:
        return settle(state, folder, config, data_keys, retried=retried)

    state = journal.read()
    refuse_superseded(folder, state, attempt)
    experiment(state)
    if finished(state, folder, config, data_keys):
        say(f"{folder.url}: this run has finished; raise training.max_steps to train on, or name another run")
        # The attempt that finished may have died, or may be paused, before all of it was to be seen.
        publish(folder, journal)
        return None
    if config.run.resume.startswith(FROM):
        named_checkpoint(config.run.resume.removeprefix(FROM), config.run.s3_endpoint_url)
    driver = Driver.open(folder, journal, attempt, experiment)
    return _prepare_attempt(config, driver, sets, overrides, numbered=attempt is not None)


def _prepare_attempt(
    config: TrainConfig, driver: Driver, sets: Mapping[str, PreparedSet], overrides: Sequence[str], *, numbered: bool
) -> WorkOrder:
    """Writes what an attempt begins with into its own folder, then has the run folder show it."""
    own, state = driver.own, driver.check()
    assert state.experiment is not None
    own.write_json(layout.ATTEMPT, layout.describe_start())
    own.write_request(config, overrides)
    own.write_json(layout.ENVIRONMENT, layout.describe_environment({split: item.key for split, item in sets.items()}))
    own.write_json(layout.EXPERIMENT, state.experiment)
    # A new model's processor is learned by the first attempt that comes so far, and is that one's for all others.
    holder = state.processor or driver.attempt
    _check_utterances(config, driver, holder, sets)
    processor = holder if config.model.init == "scratch" else None
    driver.append(lambda _: {"kind": "prepared", "attempt": driver.attempt, "processor": processor})
    publish(driver.folder, driver.journal)
    return WorkOrder(
        config=config,
        sets=sets,
        attempt=driver.attempt,
        run_id=state.experiment["id"],
        processor=f"{layout.ATTEMPTS}/{processor}/{layout.PROCESSOR}" if processor is not None else None,
        numbered=numbered,
    )


def _prepare(config: TrainConfig, source: Source, engine: Engine, show: Callable[[str], None]) -> PreparedSet:
    def counting(blocks: list[pa.Table], task: ShardTask) -> Iterator[pa.Table]:
        done, total = 0, sum(map(len, blocks))
        show(f"{source.split} 0 of {total} clips")
        for part in engine.runner(blocks, task):
            done += len(part)
            show(f"{source.split} {done} of {total} clips")
            yield part

    return prepare(
        source,
        config.data,
        cache_url=cache_url_of(config),
        s3_endpoint_url=config.run.s3_endpoint_url,
        runner=counting,
        say=say,
    )


def _check_utterances(config: TrainConfig, driver: Driver, holder: int, sets: Mapping[str, PreparedSet]) -> None:
    """Finds what would stop or falsify the run later, and writes which rows are left out and why.

    Args:
        config: The config.
        driver: Of this attempt.
        holder: The attempt whose folder holds a new model's processor, or is to hold it.
        sets: Prepared set of each split.

    Raises:
        DataError: transcripts or clips do not fit the model; nothing is left to train on.
    """
    home = driver.folder.sub(f"{layout.ATTEMPTS}/{holder}")
    processor = settle_processor(config, home, sets["train"].index["text"].to_pylist())
    model_context_s, most_labels = context_and_labels(config.model, processor)
    context_s = context_of(config, model_context_s)
    chosen = select_training(
        sets["train"].index,
        min_duration_s=config.data.min_duration_s,
        max_duration_s=config.data.max_duration_s,
        context_s=context_s,
    )
    trained = set(chosen.selection.rows.tolist())
    left_out = [{"split": "train", **row} for row in chosen.left_out]
    for split, prepared in sets.items():
        index = prepared.index
        left_out += [{"split": split, **row} for row in prepared.quarantine]
        if split != "train":
            check_scorable(index, context_s=context_s, split=split)
        rows = [row for row in range(len(index)) if split != "train" or row in trained]
        ids, texts = index["id"].take(rows).to_pylist(), index["text"].take(rows).to_pylist()
        check_label_lengths(
            [len(labels) for labels in encode_labels(processor.tokenizer, texts)], ids, most_labels, split
        )
    driver.own.write_jsonl(layout.QUARANTINE, left_out)
    say(_data_line(sets, len(trained), len(chosen.left_out)))


def _data_line(sets: Mapping[str, PreparedSet], trained: int, left_out: int) -> str:
    parts = []
    for split, prepared in sets.items():
        summary = prepared.summary
        counts = f"{split} {trained if split == 'train' else summary.prepared} of {summary.rows} clips"
        notes = [f"{summary.duration_s / 3600:.2f} h"]
        if split == "train" and left_out:
            notes.append(f"{left_out} left out")
        if summary.quarantined:
            notes.append(f"{summary.quarantined} quarantined")
        parts.append(f"{counts} ({', '.join(notes)})")
    return "data: " + " · ".join(parts)
