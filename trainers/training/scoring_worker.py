"""Scores a split on every rank, after training or, for `evaluate`, by itself."""

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from trainers.config.parts.conditions import VALIDATION
from trainers.config.parts.decode_part import Setting
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import StorageOptions, is_absolute
from trainers.data.prepared_set import PreparedSet
from trainers.data.sounds import SOUNDS
from trainers.distributed.console.events import Stage
from trainers.distributed.session import Session
from trainers.errors import ConfigError, DamagedError, RayscribeError
from trainers.models.adaptation.lora import merge_folder
from trainers.models.families import decoded_by, family_of, model_config_for_scoring
from trainers.models.labels import languages_in
from trainers.models.recognizer import Recognizer, Search
from trainers.models.sources.damaged_files import refuse_damaged_description
from trainers.models.sources.opened_model import open_once_a_node, pin_sources, with_model
from trainers.run_folder import layout
from trainers.run_folder.checkpoints import fetch_base
from trainers.run_folder.layout import RunFolder, at_full_context
from trainers.scoring.invented_words import count_invented_words
from trainers.scoring.normalizers import hidden_marks, normalizer_named
from trainers.scoring.ranking import ranking_rate
from trainers.scoring.recipe_metrics import RecipeMetrics
from trainers.scoring.scorer import CutShort, Scorer, SplitScore, never, show_rates
from trainers.scoring.tuning import tune
from trainers.storage import open_storage
from trainers.training.arguments import silence_libraries
from trainers.training.planning import (
    cache_bytes,
    context_of,
    cut_references,
    for_other_sets,
    has_full_context,
    scored_clips,
    scoring_options,
)
from trainers.training.tasks import ScoreTask

LOADING = Stage("model", "loading")


def score_task(task: ScoreTask, session: Session) -> None:
    """Scores one split with a finished model. Every rank calls this."""
    silence_libraries()
    session.show_from_main(LOADING)
    folder = RunFolder(open_storage(task.folder_url, task.config.run.storage_options))
    recognizer = open_model(task.config, task.model, session)
    config = decoded_by(task.config, recognizer.codec)
    for note in recognizer.notes:
        session.show_from_main(f"model: {note}")
    session.show_from_main(Stage(task.split, "scoring"))
    recognizer.model.to("cuda" if config.scaling.use_gpu else "cpu")
    search = open_search(config, task.validation, session, folder, recognizer)
    score_split(config, task.prepared, session, folder, recognizer, task.split, search, task.nbest)
    session.barrier("writing the scores")


def open_model(config: TrainConfig, model: str, session: Session) -> Recognizer:
    """Opens a finished model, with the config's language and task if it has them. Every rank calls this.

    `model` is the folder or URL of a model in the run's storage, or another source, such as a Hub id. Raises
    ConfigError if the model cannot be opened, and StorageError if it cannot be read.
    """
    if not is_absolute(model):
        source = with_model(config, model)
        pins = session.broadcast(lambda: pin_sources(source), "resolving the model")
        opened = open_once_a_node(source, pins, session)
        with opened.named_in_errors():
            return _load(config, str(opened.folder))
    with downloaded_model(model, config.run.storage_options) as folder:
        try:
            return _load(config, str(folder))
        except (ConfigError, DamagedError) as error:
            raise _naming(model, folder, error) from error


@contextmanager
def downloaded_model(model: str, storage_options: StorageOptions) -> Iterator[Path]:
    """Downloads the model of a run, of a checkpoint or in a folder for a block, with its adapter merged, if it has one.

    Raises ConfigError or DamagedError if it is not a model, and StorageError if it cannot be read.
    """
    parent, _, name = model.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="rayscribe-model-") as temporary:
        storage, local = open_storage(parent, storage_options), Path(temporary) / "model"
        storage.download_folder(name, local)
        try:
            fetch_base(storage, local, trains=False)
            merged = merge_folder(local)
            refuse_damaged_description(merged, str(merged))
        except (ConfigError, DamagedError) as error:
            raise _naming(model, local, error) from error
        yield merged


def _naming(model: str, folder: Path, error: RayscribeError) -> RayscribeError:
    return type(error)(f"the model {model}: {str(error).replace(str(folder), 'it')}")


def _load(config: TrainConfig, folder: str) -> Recognizer:
    """Loads a model with the config's language and task or, without them, the weights' own."""
    part = model_config_for_scoring(config.model, folder)
    return family_of(part).load_recognizer(part, None, config.run.seed)


def open_search(
    config: TrainConfig, validation: PreparedSet | None, session: Session, folder: RunFolder, recognizer: Recognizer
) -> Search | None:
    """Returns the search of a config with its setting; None without a search. Every rank calls this.

    Of several settings, chooses the best on `validation`, and writes it to evaluation/decoding.json in `folder`.
    """
    part = config.decode
    if not part.settings:
        return None
    searcher = recognizer.open_search(part, config.run.storage_options, session)
    if searcher.warning is not None:
        session.show_from_main(f"warning: decode: {searcher.warning}, so they cannot appear in a hypothesis")
    if not part.is_tuned:
        return Search(searcher, (part.settings[0],))
    assert validation is not None
    clips = scored_clips(config, validation, recognizer, VALIDATION)
    scorer = Scorer(clips, recognizer, session, cache_bytes=cache_bytes(config))

    def score(settings: tuple[Setting, ...]) -> SplitScore:
        options = scoring_options(config, recognizer.limits, search=Search(searcher, settings))
        return scorer.score(options, what=f"choose among {len(settings)} settings of decode on {VALIDATION}")

    ranks = config.checkpoint.score_attribute.removeprefix("eval_")
    # A metric of the recipe cannot rank settings, since it is not computed for their hypotheses.
    rate = ranking_rate(config.model.language) if ranks in config.scoring.metrics else ranks
    tuning = tune(part, rate, score)
    if session.is_main_process:
        content = {"data": validation.key, "rate": rate, **searcher.describe(), **tuning.to_json_dict()}
        folder.write_json(f"{layout.EVALUATION}/{layout.DECODING}", content)
    session.show_from_main(f"decode: {tuning.line(rate)}")
    return Search(searcher, (tuning.best.setting,), validation.key)


def score_sounds(
    name: str, config: TrainConfig, session: Session, folder: RunFolder, recognizer: Recognizer, search: Search | None
) -> dict[str, Any]:
    """Counts the words that a model writes for the set `name` of `sounds.SOUNDS`, and writes its two files."""
    totals, rows = count_in_sounds(name, config, session, recognizer, search)
    if session.is_main_process:
        folder.write_evaluation(name, totals, rows)
    return totals


def count_in_sounds(
    name: str,
    config: TrainConfig,
    session: Session,
    recognizer: Recognizer,
    search: Search | None = None,
    cut_short: CutShort = never,
) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """Counts the words that a model writes for the set `name` of `sounds.SOUNDS`; see `count_invented_words`."""
    options = scoring_options(for_other_sets(config), recognizer.limits, search=search)
    sounds, language = SOUNDS[name](), config.model.language
    return count_invented_words(
        sounds, recognizer, session, options, language=language, what=f"score {name}", cut_short=cut_short
    )


def score_split(
    config: TrainConfig,
    prepared: PreparedSet,
    session: Session,
    folder: RunFolder,
    recognizer: Recognizer,
    split: str,
    search: Search | None,
    nbest: int | None = None,
) -> dict[str, Any]:
    """Scores a split and writes its two files; scores a bucketed model at its full context, too.

    Sets of evaluate.also are scored at the model's own context only, in their language if all of their clips have one.
    """
    config, about = _about(config, prepared, split)
    scorer = _scorer(config, prepared, session, recognizer, **about)
    limits = recognizer.limits
    options = scoring_options(config, limits, full_context=has_full_context(config, limits), nbest=nbest, search=search)
    result = scorer.score(options, what=f"score {split}")
    show_rates(result, split, session)
    totals = {**about, **result.to_json_dict()}
    if search is not None and search.chosen_on == prepared.key:
        totals["decoding"]["weights_chosen_on_this_set"] = True
    if session.is_main_process:
        if (full := result.full_context) is not None:
            _write_score(folder, at_full_context(split), {**about, **full.to_json_dict()}, full)
        # The totals show that all is written.
        _write_score(folder, split, totals, result)
    return totals


def score_initial(
    config: TrainConfig,
    prepared: PreparedSet,
    session: Session,
    folder: RunFolder,
    recognizer: Recognizer,
    split: str,
    search: Search | None,
) -> None:
    """Scores the weights with which a run begins, as `score_split`.

    If the run is at a shorter context than the model's own, they are scored at their own context only, since they
    recognize next to nothing at another: the totals have nothing but that score.
    """
    config, about = _about(config, prepared, split)
    limits = recognizer.limits
    if not has_full_context(config, limits) or context_of(config, limits.context_s) == limits.context_s:
        score_split(config, prepared, session, folder, recognizer, split, search)
        return
    scorer = _scorer(config, prepared, session, recognizer, **about)
    options = scoring_options(config, limits, full_context=True, search=search).of_full_context
    score = scorer.score(options, what=f"score {split} at {limits.context_s:g} s")
    totals = score.to_json_dict()
    if session.is_main_process:
        _write_score(folder, at_full_context(split), {**about, **totals}, score)
        full = {"context_s": limits.context_s, **totals}
        folder.write_json(f"{layout.EVALUATION}/{split}.json", {**about, "full_context": full})


def _about(config: TrainConfig, prepared: PreparedSet, split: str) -> tuple[TrainConfig, dict[str, Any]]:
    """Returns the config by which a split is scored, and what its totals begin with."""
    language = config.model.language
    if split in config.evaluate.also:
        config = for_other_sets(config)
        languages = {*languages_in(prepared.index).to_pylist()}
        language = languages.pop() or language if len(languages) == 1 else language
    # The language determines the metric that ranks, since results of `evaluate` have no config next to them.
    return config, {"split": split, "language": language}


def _scorer(
    config: TrainConfig,
    prepared: PreparedSet,
    session: Session,
    recognizer: Recognizer,
    split: str,
    language: str | None,
) -> Scorer:
    """Returns the scorer of a split; warns of references that cannot be recognized completely."""
    clips = scored_clips(config, prepared, recognizer, split)
    cut = cut_references(config, recognizer.limits, clips.labels.lengths[clips.rows])
    if cut is not None:
        session.show_from_main(f"warning: {split}: {cut}")
    references = prepared.index.take(clips.rows)["text"].to_pylist()
    marks = hidden_marks(normalizer_named(config.data.normalizer_name), references, language)
    if marks is not None:
        session.show_from_main(f"warning: {split}: {marks} (--set data.normalizer=basic)")
    metrics = RecipeMetrics(config.scoring.metrics)
    return Scorer(clips, recognizer, session, cache_bytes=cache_bytes(config), metrics=metrics)


def _write_score(folder: RunFolder, name: str, totals: dict[str, Any], score: SplitScore) -> None:
    folder.write_evaluation(name, totals, (item.to_json_dict() for item in score.utterances))
