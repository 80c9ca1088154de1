"""What every rank runs to score a split: after training, and by itself for `evaluate`."""

import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from trainers.config.parts.decode_part import Weights
from trainers.config.schema import TrainConfig
from trainers.config.storage_location import is_absolute
from trainers.data.prepared_set import PreparedSet
from trainers.distributed.session import LocalSession, Session
from trainers.errors import ConfigError, DamagedError
from trainers.models.adaptation.lora import merge_folder
from trainers.models.ctc.decoding.decode_files import local_files
from trainers.models.known_families import family_of
from trainers.models.pretrained import load_once_a_node
from trainers.models.recognizer import Beam, Recognizer
from trainers.run_folder import layout
from trainers.run_folder.checkpoints import fetch_base
from trainers.run_folder.layout import RunFolder
from trainers.scoring.scorer import Scorer, SplitScore, show_rates
from trainers.scoring.tuning import tune
from trainers.storage import open_storage
from trainers.training.arguments import silence_libraries
from trainers.training.callbacks import VALIDATION
from trainers.training.planning import cache_bytes, cut_references, has_full_context, scored_clips, scoring_options

if TYPE_CHECKING:
    # It needs an optional package.
    from trainers.models.ctc.decoding.beam_search import BeamSearch


@dataclass(frozen=True)
class EvaluateOrder:
    """Everything that the driver passes to a scoring worker.

    Attributes:
        config: Says how to score.
        prepared: The split.
        split: Its name.
        model: Folder or URL of a model, or a Hub id.
        folder_url: Where the score is written.
        nbest: Hypotheses that are given of each utterance. None: only the best.
        validation: What weights of a beam search are chosen on. None: there is nothing to choose.
    """

    config: TrainConfig
    prepared: PreparedSet
    split: str
    model: str
    folder_url: str
    nbest: int | None = None
    validation: PreparedSet | None = None


def evaluate_here(order: EvaluateOrder) -> None:
    """Entry of a process without Ray that scores."""
    score_order(order, LocalSession.of_this_process())


def score_order(order: EvaluateOrder, session: Session) -> None:
    """Scores one split with a finished model. Every rank calls it."""
    silence_libraries()
    config = order.config
    folder = RunFolder(open_storage(order.folder_url, config.run.storage_options))
    recognizer = _open_model(order, session)
    for note in recognizer.notes:
        session.print_from_main(f"model: {note}")
    recognizer.model.to("cuda" if config.scaling.use_gpu else "cpu")
    with opened_beam(config, order.validation, session, folder, recognizer) as beam:
        how = Search(beam, order.nbest)
        score_split(config, order.prepared, session, folder, recognizer, order.split, how)
    session.barrier("writing the scores")


def _open_model(order: EvaluateOrder, session: Session) -> Recognizer:
    if not is_absolute(order.model):
        part = order.config.model
        revision = part.revision if order.model == part.name_or_path else None
        return _load(order.config, order.model, revision, session)
    parent, _, name = order.model.rpartition("/")
    with tempfile.TemporaryDirectory(prefix="rayscribe-model-") as folder:
        storage, local = open_storage(parent, order.config.run.storage_options), f"{folder}/model"
        storage.download_folder(name, Path(local))
        try:
            fetch_base(storage, Path(local), trains=False)
            local = str(merge_folder(Path(local)))
            return _load(order.config, local, None, session)
        except (ConfigError, DamagedError) as error:
            raise type(error)(f"--model {order.model}: {str(error).replace(local, 'it')}") from error


def _load(config: TrainConfig, name_or_path: str, revision: str | None, session: Session) -> Recognizer:
    """The same for a folder and for a Hub id: the config's language and task count, else the weights' own."""
    weights = {"init": "pretrained", "name_or_path": name_or_path, "revision": revision}
    part = config.model.model_copy(update=weights)
    seed = config.run.seed
    return load_once_a_node(part, session, lambda each: family_of(each).load_recognizer(each, None, seed))


@contextmanager
def opened_beam(
    config: TrainConfig, validation: PreparedSet | None, session: Session, folder: RunFolder, recognizer: Recognizer
) -> Iterator[Beam | None]:
    """The beam search of a config with its weights; None where it asks for none. Every rank calls it.

    Args:
        config: Its decode part says what is searched, and which weights.
        validation: The prepared set on which weights are chosen, where there are several; a score of this very set
            says so.
        session: This rank.
        folder: Where evaluation/decoding.json is written, which says what was chosen.
        recognizer: The model.
    """
    part = config.decode
    if not part.is_on:
        yield None
        return
    with local_files(part, config.run.storage_options, session) as files:
        search, weights, chosen_on = recognizer.open_search(part, files, session), part.grid[0], None
        if search.words is not None and search.words.problem is not None:
            session.print_from_main(f"warning: decode: {search.words.problem}, and no hypothesis will have them")
        if part.is_tuned:
            assert validation is not None
            weights = _tuned(config, validation, session, folder, recognizer, search)
            chosen_on = validation.key
        yield Beam(search, (weights,), chosen_on)


def _tuned(
    config: TrainConfig,
    validation: PreparedSet,
    session: Session,
    folder: RunFolder,
    recognizer: Recognizer,
    search: "BeamSearch",
) -> Weights:
    clips = scored_clips(config, validation, recognizer, VALIDATION)
    scorer = Scorer(clips, recognizer, session, cache_bytes=cache_bytes(config))

    def score(grid: tuple[Weights, ...]) -> SplitScore:
        options = scoring_options(config, recognizer.limits, beam=Beam(search, grid))
        return scorer.score(options, what=f"choose decode's weights among {len(grid)} on {VALIDATION}")

    rate = config.checkpoint.score_attribute.removeprefix("eval_")
    tuning = tune(config.decode.grid, rate, score)
    if session.is_main_process:
        content = {"data": validation.key, "rate": rate, **search.describe(), **tuning.to_json_dict()}
        folder.write_json(f"{layout.EVALUATION}/{layout.DECODING}", content)
    session.print_from_main(f"decode: {tuning.line(rate)}")
    return tuning.best.weights


class Search(NamedTuple):
    """How a split's hypotheses are searched.

    Attributes:
        beam: Of CTC outputs. None: the best path, or a decoder's own search.
        nbest: Hypotheses that are given of each utterance. None: only the best.
    """

    beam: Beam | None = None
    nbest: int | None = None


def score_split(
    config: TrainConfig,
    prepared: PreparedSet,
    session: Session,
    folder: RunFolder,
    recognizer: Recognizer,
    split: str,
    search: Search,
) -> dict[str, Any]:
    """Scores a split and writes its two files; for a bucketed model with the whole context's score beside it."""
    clips = scored_clips(config, prepared, recognizer, split)
    limits = recognizer.limits
    cut = cut_references(config, limits, clips.labels.lengths[clips.rows])
    if cut is not None:
        session.print_from_main(f"warning: {split}: {cut}")
    scorer = Scorer(clips, recognizer, session, cache_bytes=cache_bytes(config))
    options = scoring_options(
        config, limits, full_context=has_full_context(config, limits), nbest=search.nbest, beam=search.beam
    )
    result = scorer.score(options, what=f"score {split}")
    show_rates(result, split, session)
    totals: dict[str, Any] = {"split": split, **result.to_json_dict()}
    if search.beam is not None and search.beam.chosen_on == prepared.key:
        totals["decoding"]["weights_chosen_on_this_set"] = True
    if session.is_main_process:
        write_split(folder, split, totals, result)
    return totals


def write_split(folder: RunFolder, split: str, totals: Mapping[str, Any], result: SplitScore) -> None:
    """Writes evaluation/<split>.json and .jsonl."""
    folder.write_evaluation(split, totals, (item.to_json_dict() for item in result.utterances))
