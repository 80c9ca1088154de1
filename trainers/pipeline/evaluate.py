"""Scores an existing model."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainers.config.locations import cache_url_of, storage_path_of, variables_in
from trainers.config.parts.conditions import NEW_SPEAKERS, SOUND_SETS, VALIDATION
from trainers.config.parts.decode_part import DecodePart
from trainers.config.parts.model_part import ModelPart
from trainers.config.parts.run_part import EVALUATIONS
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import is_absolute
from trainers.config.wording import counted
from trainers.data.sources.data_source import SourceSplit
from trainers.errors import ConfigError, StorageError
from trainers.models.families import check_decoder, decoded_by, family_of, model_config_for_scoring
from trainers.models.sources.loaded_weights import refuse_other_weights
from trainers.models.sources.model_files import description_files
from trainers.models.sources.opened_model import OpenedModel, open_sources, pin_sources, with_model
from trainers.models.sources.run_models import find_model
from trainers.pipeline.engine import Engine
from trainers.pipeline.experiment import resolve_fields
from trainers.pipeline.splits import check_languages, check_storage, open_config_sources, prepare_splits
from trainers.run_folder import layout
from trainers.run_folder.checkpoints import BASE
from trainers.run_folder.layout import RunFolder
from trainers.scoring.comparison.verdict import Verdict
from trainers.scoring.ranking import ranking_rate, rates_of, score_line
from trainers.scoring.recipe_metrics import RecipeMetrics
from trainers.scoring.report.model_card import beyond
from trainers.storage import open_storage
from trainers.training.tasks import ScoreTask

# Models that output nothing, or unrelated text, have about 100.
_USELESS_PERCENT = 90.0


@dataclass(frozen=True)
class RunResult:
    """The result of a run.

    Attributes:
        totals: Totals of the split that was scored last: test or, without a test split, validation.
        best_step: Step of the scored checkpoint if later checkpoints were worse on the validation set, else None.
        base: Totals of the weights that the run began with, by split and guard; empty if they were not scored.
        guards: Totals of the model on each guard: sets of evaluate.also, and sounds without speech.
        verdicts: Comparisons with those weights, by name of the set, for those that were scored alike.
    """

    folder: str
    totals: Mapping[str, Any]
    split: str
    model: ModelPart
    best_step: int | None = None
    base: Mapping[str, Any] = field(default_factory=dict)
    guards: Mapping[str, Any] = field(default_factory=dict)
    verdicts: Mapping[str, Verdict] = field(default_factory=dict)

    @property
    def verdict(self) -> Verdict | None:
        """The comparison with the initial weights on the split; None if they were not scored alike."""
        return self.verdicts.get(self.split)

    @property
    def headline(self) -> str:
        """`WER 4.2% on test (200 utterances) · normalizer basic 1 · <folder>`, or `(199 of 200 utterances)`.

        For a model that is trained at a shorter context, also has the score at its full context: `· at 30 s: WER 4.5%`.
        The weights that a run began with, if scored, stand before: `WER 15.4% → 9.8% (base → tuned) on test …`, at the
        model's own context.
        """
        requested, scored, language = self.totals["utterances"], self.totals["scored"], self.model.language
        of_all = "" if scored == requested else f"{scored} of "
        full = beyond(self.model, self.totals)
        # Weights that were not trained at the short context recognize next to nothing at it.
        base = self.base.get(self.split) if full is None else None
        line = score_line(self.totals, f"{self.split} ({of_all}{counted(requested, 'utterance')})", language, base)
        full_context = ""
        if full is not None:
            base = self.base.get(self.split, {}).get("full_context")
            full_context = f" · at {full['context_s']:g} s: {rates_of(full, language, base)}"
        verdict = [str(self.verdict)] if self.verdict is not None else []
        guards = [*self.guards, *(name for name in (NEW_SPEAKERS,) if name in self.verdicts)]
        return " · ".join((f"{line}{full_context}", *verdict, *map(self._of_guard, guards), self.folder))

    def _of_guard(self, name: str) -> str:
        """Returns `silence: 0.0 → 1.5 words/min`, or `librispeech: WER 11.3% → 13.9% (worse)`."""
        if (verdict := self.verdicts.get(name)) is not None:
            rates = f"{verdict.base:.1f}% → {verdict.tuned:.1f}%"
            return f"{name}: {verdict.metric.upper()} {rates} ({verdict.judgment})"
        if name not in SOUND_SETS:
            rate = ranking_rate(self.guards[name].get("language"))
            return f"{name}: {rate.upper()} {self.guards[name][rate]:.1f}%"
        before = f"{self.base[name]['words_per_minute']:.1f} → " if name in self.base else ""
        return f"{name}: {before}{self.guards[name]['words_per_minute']:.1f} words/min"

    @property
    def warning(self) -> str | None:
        """A warning if the model recognizes hardly any words, else None."""
        rate = self.totals.get(ranking_rate(self.model.language))
        if rate is None or rate < _USELESS_PERCENT:
            return None
        return (
            f"warning: at {rates_of(self.totals, self.model.language)} the model recognizes next to nothing yet: train "
            "it for more steps, on more speech, or from pretrained weights"
        )


def evaluate(config: TrainConfig, engine: Engine, *, model: str, split: str, nbest: int | None = None) -> RunResult:
    """Scores a model on a split of the config's data, and writes the result to a new folder under the storage path.

    `model` is a run folder, a folder or URL of a model, or a Hub id; `nbest` is the number of hypotheses for each
    utterance, by default 1.

    Raises:
        ConfigError: there is no such model, the config has no such split, or `nbest` exceeds the beams.
    """
    check_decoder(config.decode, config.run.storage_options)
    unset = variables_in(config.data.validation or "")
    if config.decode.is_tuned and unset:
        why = f"{config.data.validation} names the variable {unset[0]}, which is not set"
        raise ConfigError(f"data.validation: {why}, and {_choice(config.decode)}")
    name = model.rstrip("/").rpartition("/")[2]

    def stage() -> ScoreTask:
        RecipeMetrics(config.scoring.metrics).check()
        stamp = f"{datetime.now(UTC):%Y%m%d-%H%M%S-%f}"
        url = f"{storage_path_of(config)}/{EVALUATIONS}/{name}-{split}-{stamp}"
        address = find_model(model, config.run.storage_options)
        tuned = config.decode.is_tuned
        check_storage(config)
        engine.check(config, trains=False)
        sources = open_config_sources(config, tuple({split: None, **({VALIDATION: None} if tuned else {})}))
        opened = [source.split for source in sources]
        if split not in opened:
            raise ConfigError(f"data.{split}: names no data to score (--set data.{split}=my/{split}.csv)")
        if tuned and VALIDATION not in opened:
            raise ConfigError(f"data.validation: there is none, and {_choice(config.decode)}")
        decode = _check_model(config, address, sources)
        _refuse_nbest(decode, nbest)
        sets = prepare_splits(config, sources, engine)
        resolved = resolve_fields(config, cache_url_of(config), None)
        validation = sets[VALIDATION] if tuned else None
        return ScoreTask(resolved, sets[split], split, address, url, nbest, validation)

    task = engine.run_on_main_process(stage)
    folder = RunFolder(open_storage(task.folder_url, config.run.storage_options))
    engine.run(task, folder)
    totals = folder.read_json(f"{layout.EVALUATION}/{split}.json")
    return RunResult(folder.url, totals or {}, split, config.model)


def _check_model(config: TrainConfig, model: str, sources: Sequence[SourceSplit]) -> DecodePart:
    """Refuses weights that do not fit their config, and languages without a token, before anything is prepared.

    Returns the decode part as parsed by the model's family.
    """
    source = with_model(config, model)
    with TemporaryDirectory(prefix="rayscribe-model-") as folder:
        try:
            # A run's adapter is checked when it is merged.
            adapter = _described_adapter(config, model, Path(folder))
            opened = adapter or open_sources(source, pin_sources(source), weights=False)
        except StorageError:
            # Workers open the model again, and their nodes may have files that this node does not have.
            return config.decode
        try:
            part = model_config_for_scoring(config.model, str(opened.folder))
            family = family_of(part)
            if adapter is None:
                refuse_other_weights(source, part, family, opened, scored=True)
            check_languages(config, family, sources, family.open_processor(part, None))
            return decoded_by(config, family).decode
        except (ConfigError, StorageError) as error:
            raise type(error)(str(error).replace(str(opened.folder), model)) from error


def _described_adapter(config: TrainConfig, model: str, folder: Path) -> OpenedModel | None:
    """Copies the description of a run's adapter to `folder`; returns None if the model is not an adapter."""
    if not is_absolute(model):
        return None
    storage = open_storage(model, config.run.storage_options)
    if not storage.exists(BASE):
        return None
    for name in description_files(entry.key for entry in storage.list_files() if "/" not in entry.key):
        storage.download_file(name, folder / name)
    return OpenedModel(folder)


def _choice(part: DecodePart) -> str:
    fields = ", ".join(f"decode.{name}" for name in part.tuned)
    return (
        "the decode setting is chosen on it: add --set data.validation=my/valid.csv, or give one value each for "
        f"{fields}"
    )


def _refuse_nbest(part: DecodePart, nbest: int | None) -> None:
    """Refuses more hypotheses than beams."""
    if nbest is None:
        return
    if part.beams is None and nbest != 1:
        raise ConfigError(f"--nbest {nbest}: decode gives one hypothesis of an utterance: leave --nbest out")
    if part.beams is not None and not 1 <= nbest <= (most := getattr(part, part.beams)):
        raise ConfigError(
            f"--nbest {nbest}: a beam search gives 1 to decode.{part.beams} = {most} hypotheses; "
            f"raise the beams (--set decode.{part.beams}={max(nbest, 1)})"
        )
