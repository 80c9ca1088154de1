"""Scores a recognizer on a prepared set, with every utterance once, in its own bucket, on any rank."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any

import numpy as np

from trainers.data.prepared_set import PreparedSet
from trainers.distributed.console import ProgressCounter
from trainers.distributed.gauges import error_rate
from trainers.distributed.session import Session
from trainers.errors import ScoringError
from trainers.metrics.known_metrics import known_metrics
from trainers.models.labels import Labels
from trainers.models.recognizer import Decoding, Recognition, Recognizer
from trainers.scoring.batches import BatchRecognizer, batches_of
from trainers.scoring.error_rate import Score, UtteranceScore, check_ids, score_texts, total_by
from trainers.scoring.normalizers import Normalizer, normalizer_named
from trainers.scoring.recipe_metrics import RecipeMetrics


@dataclass(frozen=True)
class ScoringOptions:
    """Options for generating and comparing hypotheses.

    Attributes:
        batch_size: Number of utterances in a batch. Does not affect scores.
        edges_s: Bucket edges in seconds, see `batch_plan.bucket_edges`; None to recognize only clips of equal length
            together, without padding.
        to_longest: True to pad each batch to its longest clip instead of the edge of its bucket.
        full_context_s: Length of the model's full context in seconds, for a second score of clips padded to it; None
            for no second score.
    """

    batch_size: int
    decoding: Decoding
    normalizer: str
    edges_s: tuple[float, ...] | None
    to_longest: bool = False
    full_context_s: float | None = None

    @property
    def of_full_context(self) -> "ScoringOptions":
        assert self.full_context_s is not None
        decoding = replace(self.decoding, nbest=None)
        return replace(self, decoding=decoding, edges_s=(self.full_context_s,), full_context_s=None)


@dataclass(frozen=True)
class SplitScore:
    """A split's score and its components.

    Attributes:
        loss: Cross-entropy per label in nats; None if not computed for this model, see `Recognizer.scores_loss`.
        skipped: Number of utterances that are too long for the model and were left out as configured.
        greedy: For a search of outputs, the score without the search.
        by_other_settings: For such a search, the scores with the other settings of `recognizer.Search`.
        full_context: The score with every clip padded to the model's full context, if requested.
        languages: For a set with a language column, the score of each language, by its code.
        metrics: Values of the recipe's own metrics.
        members: For a mix, the score of each member, by its name.
    """

    score: Score
    utterances: list[UtteranceScore]
    loss: float | None
    normalizer: Normalizer
    skipped: int
    decoding: Decoding
    greedy: Score | None = None
    by_other_settings: tuple[Score, ...] = ()
    full_context: "SplitScore | None" = None
    full_context_s: float | None = None
    languages: Mapping[str, Score] = field(default_factory=dict)
    metrics: Mapping[str, float] = field(default_factory=dict)
    members: Mapping[str, Score] = field(default_factory=dict)

    @property
    def values(self) -> dict[str, float]:
        known = {**self.score.rates, "loss": self.loss, **self.metrics}
        return {name: value for name, value in known.items() if value is not None}

    def to_json_dict(self) -> dict[str, Any]:
        """Returns the content of evaluation/<split>.json."""
        name = self.decoding.part.greedy
        greedy = {} if self.greedy is None else {name: self.greedy.to_json_dict()}
        full = self.full_context and {"context_s": self.full_context_s, **self.full_context.to_json_dict()}
        of_each = {language: score.to_json_dict() for language, score in self.languages.items()}
        of_members = {name: score.to_json_dict() for name, score in self.members.items()}
        return {
            **self.score.to_json_dict(),
            **({"loss": self.loss} if self.loss is not None else {}),
            "skipped": self.skipped,
            **self.normalizer.to_json_dict(),
            "decoding": self.decoding.describe(),
            **greedy,
            **({"metrics": dict(self.metrics)} if self.metrics else {}),
            **({"languages": of_each} if of_each else {}),
            **({"members": of_members} if of_members else {}),
            **({"full_context": full} if full is not None else {}),
        }


@dataclass(frozen=True)
class ScoredClips:
    """The scored clips of a prepared set, whose `labels` are those of all of its clips.

    Attributes:
        rows: Positions of the scored clips, ascending.
        languages: Language of each scored clip; None if the set has no language column.
        members: For a mix, the member of each scored clip.
    """

    prepared: PreparedSet
    labels: Labels
    rows: np.ndarray
    languages: Sequence[str] | None = None
    members: Sequence[str] | None = None


class NotFiniteError(ScoringError):
    """The loss or the probability of an utterance is not finite."""


class CutShortError(Exception):
    """Scoring ended early. Every rank raises it, since a score of a part of the set is not valid."""


# Called before each batch on every rank; scoring ends early if it returns True on any of them.
CutShort = Callable[[], bool]


def never() -> bool:
    """Never ends scoring early."""
    return False


@dataclass(frozen=True)
class _Hypothesis:
    position: int
    recognition: Recognition
    labels: int


class Scorer:
    """Scores one prepared set; every rank has a Scorer, and all call `score` together."""

    def __init__(
        self,
        clips: ScoredClips,
        recognizer: Recognizer,
        session: Session,
        *,
        cache_bytes: int,
        metrics: RecipeMetrics | None = None,
    ):
        """Stores what all scores have in common; `cache_bytes` limits the node's copies of shards from a bucket."""
        self._metrics = metrics or RecipeMetrics({})
        self._prepared, self._labels, self._rows = clips.prepared, clips.labels, clips.rows
        self._languages: Sequence[str | None] = clips.languages or [None] * len(clips.rows)
        self._members: Sequence[str | None] = clips.members or [None] * len(clips.rows)
        self._recognizer = recognizer
        self._session = session
        self._reader = clips.prepared.reader(cache_bytes)
        self._batches = BatchRecognizer(recognizer)
        self._index = clips.prepared.index
        self._durations_s = self._index["duration_s"].to_numpy()

    def score(self, options: ScoringOptions, what: str = "", *, cut_short: CutShort = never) -> SplitScore:
        """Recognizes every utterance once over all ranks, and sums the results; if requested, also at the full context.

        Progress lines begin with `what`, and are printed only with it.

        Raises:
            CutShortError: `cut_short` returned True on some rank.
            ScoringError: an utterance was scored twice or not at all; the references have no word; the model or a
                metric of the recipe returns numbers that are not finite.
            ConfigError: a metric of the recipe cannot be loaded.
        """
        model = self._recognizer.model
        was_training = model.training
        model.eval()
        batches = batches_of(
            self._durations_s,
            self._rows,
            options.edges_s,
            to_longest=options.to_longest,
            batch_size=options.batch_size,
        )
        # Ranks take batches in turn, since the costliest are first.
        batches = batches[self._session.rank :: self._session.world_size]
        total_clips = sum(len(positions) for positions, _ in batches)
        counter = ProgressCounter(
            what, total=total_clips, unit="clips", show=self._session.show_from_main, every_s=10.0
        )
        try:
            hypotheses: list[_Hypothesis] = []
            gave_up = False
            for positions, edge_s in batches:
                self._session.record_progress()
                gave_up = cut_short()
                if gave_up:
                    break
                clips = [self._reader.read(position) for position in positions]
                labels = [self._labels[position] for position in positions]
                recognized = self._batches.recognize(clips, labels, edge_s, options.decoding)
                hypotheses += [
                    _Hypothesis(position, recognition, len(label))
                    for position, recognition, label in zip(positions.tolist(), recognized, labels, strict=True)
                ]
                if what:
                    counter.advance(len(positions))
        finally:
            model.train(was_training)
        parts = self._session.gather((hypotheses, gave_up), what or "scoring")
        if any(part[1] for part in parts):
            raise CutShortError
        result = self._with_metrics(self._sum([item for part, _ in parts for item in part], options))
        if options.full_context_s is None:
            return result
        further = f"{what} at {options.full_context_s:g} s" if what else ""
        full = self.score(options.of_full_context, further, cut_short=cut_short)
        return replace(result, full_context=full, full_context_s=options.full_context_s)

    def _sum(self, hypotheses: Sequence[_Hypothesis], options: ScoringOptions) -> SplitScore:
        gathered = sorted(hypotheses, key=lambda item: item.position)
        normalizer = normalizer_named(options.normalizer)
        all_ids, scored = self._index["id"].to_pylist(), self._index.take(self._rows)
        ids = scored["id"].to_pylist()
        check_ids(ids, [all_ids[item.position] for item in gathered])
        # Checked after gathering, so that every rank raises.
        _refuse_not_finite(ids, gathered)
        found, references = [item.recognition for item in gathered], scored["text"].to_pylist()
        score, scores = score_texts(
            [item.text for item in found],
            references,
            normalizer,
            ids,
            scored["duration_s"].to_pylist(),
            self._prepared.summary.rows,
        )
        # For a search, the texts without it, and then those with each of the other settings.
        rows = [(item.greedy, *item.by_other_settings) for item in found if item.greedy is not None]
        others = [
            score_texts(texts, references, normalizer, utterances=self._prepared.summary.rows)[0]
            for texts in zip(*rows, strict=True)
        ]
        nbest = [None if item.nbest is None else tuple(map(asdict, item.nbest)) for item in found]
        utterances = [
            replace(each, avg_logprob=item.avg_logprob, nbest=several, language=language)
            for each, item, several, language in zip(scores, found, nbest, self._languages, strict=True)
        ]
        if undefined := [name for name, rate in score.rates.items() if rate is None]:
            raise ScoringError(
                f"{self._prepared.url}: no transcript has {known_metrics()[undefined[0]].units} once it is normalized "
                f"({normalizer}), so that no {undefined[0].upper()} exists; transcribe them, or set data.normalizer: "
                "none"
            )
        loss = None
        if self._recognizer.scores_loss:
            losses = [item.loss for item in found if item.loss is not None]
            assert len(losses) == len(found), "a recognizer that scores the loss gives that of each utterance"
            # fsum is exact, so the loss does not depend on the order of ranks either.
            loss = math.fsum(losses) / sum(item.labels for item in gathered)
        skipped = len(all_ids) - len(ids)
        greedy = others[0] if others else None
        how = (normalizer, skipped, options.decoding, greedy, tuple(others[1:]))
        languages = total_by((each.language, each) for each in utterances)
        members = total_by(zip(self._members, utterances, strict=True))
        return SplitScore(score, utterances, loss, *how, languages=languages, members=members)

    def _with_metrics(self, result: SplitScore) -> SplitScore:
        """Computes the recipe's metrics on the main process, on normalized texts."""
        if not self._metrics.sources:
            return result
        metrics, normalize, utterances = self._metrics, result.normalizer, result.utterances

        def compute() -> dict[str, float]:
            hypotheses = [normalize(item.hypothesis) for item in utterances]
            return metrics.compute(hypotheses, [normalize(item.reference) for item in utterances])

        return replace(result, metrics=self._session.broadcast(compute, "computing scoring.metrics"))


def show_rates(result: SplitScore, split: str, session: Session) -> None:
    """Sets the gauges of a score."""
    for name, percent in result.score.rates.items():
        if percent is not None:
            session.set_gauge_from_main(error_rate(name), percent / 100, split=split)


def _refuse_not_finite(ids: Sequence[str], hypotheses: Sequence[_Hypothesis]) -> None:
    for id_, item in zip(ids, hypotheses, strict=True):
        for name in ("loss", "avg_logprob"):
            number = getattr(item.recognition, name)
            if number is not None and not math.isfinite(number):
                raise NotFiniteError(
                    f"the {name} of utterance {id_} is {number}: the model's weights or outputs are no longer finite; "
                    "go on from an earlier checkpoint with a lower training.learning_rate, or in float32"
                )
