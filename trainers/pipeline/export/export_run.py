"""Exports a run's model: converts it, scores each format on the test split, and keeps formats whose scores agree."""

import io
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import torch

from trainers.config.loader import build_config
from trainers.config.parts.part import ConfigScope
from trainers.config.schema import TrainConfig
from trainers.data.prepared_set import PreparedSet
from trainers.distributed.console import ProgressCounter, show
from trainers.distributed.console.events import Stage
from trainers.errors import ConfigError, DataError, RayscribeError
from trainers.models.families import decoded_by, family_of_folder
from trainers.models.labels import NOT_NAMED, empty_labels
from trainers.models.recognizer import Decoding
from trainers.pipeline.export.export_request import ExportRequest
from trainers.pipeline.export.exporter import Exporter, Runtime, Source
from trainers.run_folder.checkpoints import refused_only
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import CONFIG, EVALUATION, MODEL, RunFolder
from trainers.scoring.comparison.systems import rows_of
from trainers.scoring.error_rate import Score, UtteranceScore, score_texts
from trainers.scoring.normalizers import NORMALIZERS, Normalizer
from trainers.scoring.ranking import greedy_score, ranking_rate
from trainers.scoring.report.data_section import clip_sets
from trainers.storage import open_storage
from trainers.training.arguments import silence_libraries
from trainers.training.planning import cache_bytes

TEST = "test"


@dataclass(frozen=True)
class ScoredRun:
    """A run with a model and a score on the test split.

    Attributes:
        totals: The score that other runtimes can reproduce, at the model's full context and without a search.
        rows: The scored utterances, as in evaluation/test.jsonl.
    """

    folder: RunFolder
    config: TrainConfig
    model: str
    totals: Mapping[str, Any]
    rows: Sequence[Mapping[str, Any]]
    prepared: PreparedSet
    normalizer: Normalizer

    @classmethod
    def of(cls, folder: RunFolder) -> "ScoredRun":
        """Reads a run folder.

        Raises:
            ConfigError: the run lacks something that an export needs; the message has the fix.
        """
        state = Journal(folder).read()
        finish = state.finished
        content = folder.read_yaml(CONFIG)
        if finish is None or content is None or f"{MODEL}/config.json" not in finish.files:
            why = "has no model to export" if finish is not None else "has not finished, and has no model to export yet"
            if finish is None and refused_only(state.checkpoints):
                why = "has no model to export, since checkpoint.refuse_if refuses all of its checkpoints"
            raise ConfigError(f"{folder.url}: this run {why}: name a training that has finished")
        outputs = folder.sub(finish.outputs)
        totals = outputs.read_json(f"{EVALUATION}/{TEST}.json")
        if totals is None:
            raise ConfigError(
                f"{folder.url}: this run has no score on a test set, which an export is compared with: start it again "
                "with data.test, which scores its best model, or use another run"
            )
        config = build_config(content, origin=folder.storage.url(CONFIG), scope=ConfigScope((), trains=False))
        return cls(
            folder,
            config,
            f"{finish.outputs}/{MODEL}",
            totals.get("full_context") or greedy_score(totals)[1],
            rows_of(outputs, f"{EVALUATION}/{TEST}.jsonl"),
            _prepared(folder, content, finish.result["test_data"]),
            _normalizer(folder, totals),
        )

    @contextmanager
    def opened(self) -> Iterator[Source]:
        """Downloads and opens the run's model while the block runs."""
        with TemporaryDirectory(prefix="rayscribe-export-") as temporary:
            local = Path(temporary) / MODEL
            self.folder.storage.download_folder(self.model, local)
            recognizer = family_of_folder(local, self.folder.storage.url(self.model)).open_exported(local)
            recognizer.model.eval()
            part = decoded_by(self.config, recognizer.codec).decode
            yield Source(local, recognizer, Decoding(part, as_written=self.normalizer.name == "none"))


def _prepared(folder: RunFolder, config: Mapping[str, Any], key: str) -> PreparedSet:
    found = clip_sets(folder, config, {TEST: key})
    if not found:
        raise ConfigError(
            f"{folder.url}: the test set of this run ({key}) is not among the prepared sets that are read from here: "
            "prepare it again, by `rayscribe prepare` with the recipe of the run"
        )
    return found[0].prepared


def _normalizer(folder: RunFolder, totals: Mapping[str, Any]) -> Normalizer:
    name, version = str(totals.get("normalizer")), totals.get("normalizer_version")
    ours = NORMALIZERS.get(name)
    if ours is None or ours.version != version:
        raise ConfigError(
            f"{folder.url}: its score was made with the normalizer {name} {version}, which this version does not have, "
            "so that no other score compares with it: export it with the version that trained it"
        )
    return ours


def positions_of(prepared: PreparedSet, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Returns the positions of scored utterances in their prepared set."""
    places = {id_: place for place, id_ in enumerate(prepared.index["id"].to_pylist())}
    missing = [row["id"] for row in rows if row["id"] not in places]
    if missing:
        raise DataError(
            f"{prepared.url}: {len(missing)} of {len(rows)} utterances that the run scored are missing, such as "
            f"{missing[0]}: the prepared set is that of another run"
        )
    return [places[row["id"]] for row in rows]


class FormatScore(NamedTuple):
    """A format's score; `real_time_factor` is computing time per second of audio, in seconds, one clip at a time."""

    score: Score
    utterances: Sequence[UtteranceScore]
    real_time_factor: float


@dataclass(frozen=True)
class Outcome:
    """The result of one format.

    Attributes:
        folder: Folder of the exported model; None if it is not kept.
        problem: Why the model is not kept; None if it is kept.
        rates: Error rates of the format on the test split, in percent by metric; None without a score.
        difference: The format's ranking rate minus the run's, in percentage points; None without a score.
    """

    format: str
    folder: str | None = None
    problem: str | None = None
    rates: Mapping[str, float | None] | None = None
    difference: float | None = None
    size_bytes: int | None = None
    real_time_factor: float | None = None


@dataclass(frozen=True)
class Exported:
    """The result of an export request.

    Attributes:
        rate: The metric that ranks in the run's language, by which scores are compared.
    """

    run: str
    rate: str
    own: Mapping[str, Any]
    outcomes: Sequence[Outcome]

    @property
    def problems(self) -> dict[str, str]:
        """The formats that are not kept, by name, with the reasons."""
        return {each.format: each.problem for each in self.outcomes if each.problem is not None}


def export_run(folder: RunFolder, request: ExportRequest) -> Exported:
    """Exports the model of a finished run; formats that are not kept leave no files.

    Raises:
        ConfigError: the run cannot be exported, or a format does not support its model; nothing is written.
        StorageError: the run folder cannot be read.
    """
    known = request.exports()
    silence_libraries()
    run = ScoredRun.of(folder)
    exporters = {name: each.load() for name, each in known.items()}
    with run.opened() as source:
        refusals = {name: exporter.refusal(source) for name, exporter in exporters.items()}
        refused = [f"--to {name}: {why}" for name, why in refusals.items() if why is not None]
        if refused:
            raise ConfigError("\n".join(refused))
        with _output_folder(request.folder):
            outcomes = [_export(name, exporter, source, run, request) for name, exporter in exporters.items()]
    return Exported(folder.url, ranking_rate(run.config.model.language), run.totals, outcomes)


@contextmanager
def _output_folder(folder: Path) -> Iterator[None]:
    """Creates the output folder; removes it at the end if it is new and empty."""
    is_new = not folder.exists()
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise ConfigError(f"--output {folder}: {error.strerror or error}: name a folder that can be made") from None
    try:
        yield
    finally:
        if is_new:
            with suppress(OSError):
                folder.rmdir()


def _export(name: str, exporter: Exporter, source: Source, run: ScoredRun, request: ExportRequest) -> Outcome:
    """Exports one format into a temporary folder, which is moved to its target at the end."""
    with TemporaryDirectory(prefix=f".{name}-", dir=request.folder) as temporary:
        made = Path(temporary) / name
        made.mkdir()
        try:
            show(Stage(f"export {name}", "converting"))
            # Some converters print progress to standard output, which is for the table.
            with redirect_stdout(io.StringIO()):
                exporter.convert(source, made)
                runtime = exporter.open(made, source)
            size = sum(file.stat().st_size for file in made.rglob("*") if file.is_file())
            show(Stage(f"export {name}", f"recognizing the {TEST} split"))
            found = score_format(runtime, source, run, f"score {name}")
        # Converters and runtimes raise any kind of error; other formats are still exported.
        except Exception as error:
            return Outcome(name, problem=_reason(error))
        rate, rates = ranking_rate(run.config.model.language), found.score.rates
        own, its = float(run.totals[rate]), rates[rate]
        assert its is not None, "its references are those of the run, which have words"
        outcome = Outcome(name, None, None, rates, its - own, size, found.real_time_factor)
        # Allow for rounding.
        if abs(its - own) > request.tolerance + 1e-9:
            off = f"{its - own:+.2f} percentage points from the run's {own:.2f}%"
            why = f"{rate.upper()} {its:.2f}% is {off}: more than --tolerance {request.tolerance:g}"
            return replace(outcome, problem=why)
        _record(made, name, outcome, found, run)
        target = request.folder / name
        if target.exists():
            target.rename(Path(temporary) / "replaced")
        made.rename(target)
        return replace(outcome, folder=str(target))


def _reason(error: Exception) -> str:
    """Returns the text of a Rayscribe error, or the first line of another error."""
    if isinstance(error, RayscribeError):
        return str(error)
    return f"{type(error).__name__}: {next(iter(str(error).strip().splitlines()), 'without a message')}"


def _record(folder: Path, name: str, outcome: Outcome, found: FormatScore, run: ScoredRun) -> None:
    """Writes the score as `rayscribe evaluate` does, so that `rayscribe compare` can read it."""
    totals = {
        "split": TEST,
        "language": run.config.model.language,
        **found.score.to_json_dict(),
        **run.normalizer.to_json_dict(),
        "format": name,
        "run": run.folder.url,
        "difference": outcome.difference,
        "real_time_factor": outcome.real_time_factor,
    }
    rows = (item.to_json_dict() for item in found.utterances)
    RunFolder(open_storage(str(folder))).write_evaluation(TEST, totals, rows)


def score_format(runtime: Runtime, source: Source, run: ScoredRun, what: str) -> FormatScore:
    """Recognizes and scores the utterances that the run scored; progress lines begin with `what`."""
    recognizer, limits = source.recognizer, source.recognizer.limits
    features = recognizer.new_features()
    edge_s = limits.context_s if limits.full_context else None
    least_samples = limits.least_samples if limits.frames is None else limits.frames.least_samples
    reader = run.prepared.reader(cache_bytes(run.config))
    named = [row.get("language") for row in run.rows]
    languages = [None if language == NOT_NAMED else language for language in named]
    labels = empty_labels(recognizer.codec, recognizer.processor, languages, run.config.model.language)
    counter = ProgressCounter(what, total=len(run.rows), unit="clips", show=show)
    texts: list[str] = []
    took_s = 0.0
    for position, label in zip(positions_of(run.prepared, run.rows), labels, strict=True):
        samples = reader.read(position)
        began_s = time.perf_counter()
        # As in scoring, the hypothesis of a clip that is too short for an output is empty.
        text = ""
        if len(samples) >= least_samples:
            text = runtime.recognize(features.inputs([torch.from_numpy(samples)], edge_s), label)
        texts.append(text)
        took_s += time.perf_counter() - began_s
        counter.advance(1)
    references, ids = [row["reference"] for row in run.rows], [row["id"] for row in run.rows]
    durations_s = [float(row["duration_s"]) for row in run.rows]
    requested = int(run.totals["utterances"])
    score, utterances = score_texts(texts, references, run.normalizer, ids, durations_s, requested)
    return FormatScore(score, utterances, took_s / sum(durations_s))
