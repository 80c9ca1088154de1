"""A run that has finished, as an export needs it: its model, and what it scored on which clips."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from trainers.config.config_scope import ConfigScope
from trainers.config.loader import build_config
from trainers.config.schema import TrainConfig
from trainers.data.prepared_set import PreparedSet
from trainers.errors import ConfigError, DataError
from trainers.models.families import decoded_by, family_of_folder
from trainers.models.recognizer import Decoding
from trainers.pipeline.export.exporter import Source
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import CONFIG, EVALUATION, MODEL, RunFolder
from trainers.scoring.comparison.systems import rows_of
from trainers.scoring.normalizers import NORMALIZERS, Normalizer
from trainers.scoring.ranking import greedy_score
from trainers.scoring.report.prepared_clips import clip_sets

TEST = "test"


@dataclass(frozen=True)
class ScoredRun:
    """A run with a model and a score on the test split.

    Attributes:
        model: Folder of its model in the run folder.
        totals: Its own score, which other runtimes can come to: at the model's full context, and without a search.
        rows: The utterances that it scored, as evaluation/test.jsonl has them.
        prepared: Their recordings.
        normalizer: What its texts were compared with.
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
            ConfigError: it lacks something that an export needs; the text says what to do.
        """
        finish = Journal(folder).read().finished
        content = folder.read_yaml(CONFIG)
        if finish is None or content is None or f"{MODEL}/config.json" not in finish.files:
            why = "has no model to export" if finish is not None else "has not finished, and has no model to export yet"
            raise ConfigError(f"{folder.url}: this run {why}: name a training that has finished")
        outputs = folder.sub(finish.outputs)
        totals = outputs.read_json(f"{EVALUATION}/{TEST}.json")
        if totals is None:
            raise ConfigError(
                f"{folder.url}: this run has no score on a test set, which an export is compared with: start it again "
                "with data.test, which scores its best model, or name another run"
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
        """Its model, on this disk as long as the block runs.

        Raises:
            ConfigError: it cannot be opened. StorageError: it cannot be read.
        """
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
    name = str(totals.get("normalizer"))
    ours = NORMALIZERS.get(name)
    if ours is None or ours.version != totals["normalizer_version"]:
        version = totals["normalizer_version"]
        raise ConfigError(
            f"{folder.url}: its score was made with the normalizer {name} {version}, which this version does not have, "
            "so that no other score compares with it: export it with the version that trained it"
        )
    return ours


def positions_of(prepared: PreparedSet, rows: Sequence[Mapping[str, Any]]) -> list[int]:
    """Where the clips of scored utterances are in their prepared set.

    Raises:
        DataError: one is not there.
    """
    places = {id_: place for place, id_ in enumerate(prepared.index["id"].to_pylist())}
    missing = [row["id"] for row in rows if row["id"] not in places]
    if missing:
        raise DataError(
            f"{prepared.url}: {len(missing)} of {len(rows)} utterances that the run scored are not there, such as "
            f"{missing[0]}: the run folder and the prepared set are not of one run"
        )
    return [places[row["id"]] for row in rows]
