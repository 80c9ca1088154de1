"""How many words, characters and sentences a recognizer got wrong, counted so that sums are exact.

Every utterance is aligned once, alone, and leaves whole numbers. A score is a sum of those numbers and one
division at the end, so neither the order of the utterances nor their distribution over workers can
move it. Nothing here changes case or punctuation: that is a normalizer's work, passed in.
"""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import jiwer

from trainers.errors import ScoringError

IDS_SHOWN = 5
FROM_A_MODEL = ("avg_logprob", "nbest")


@dataclass(frozen=True, slots=True)
class EditCounts:
    """The edits that turn a reference into a hypothesis, and how long the reference was.

    Counts add up with `+`; start a sum from `EditCounts()`.

    Attributes:
        insertions: Units of the hypothesis that the reference does not have.
        deletions: Units of the reference that the hypothesis does not have.
        substitutions: Units of the reference that stand as others in the hypothesis.
        reference_length: Units in the reference, words or characters.
    """

    insertions: int = 0
    deletions: int = 0
    substitutions: int = 0
    reference_length: int = 0

    def __add__(self, other: "EditCounts") -> "EditCounts":
        return EditCounts(
            self.insertions + other.insertions,
            self.deletions + other.deletions,
            self.substitutions + other.substitutions,
            self.reference_length + other.reference_length,
        )

    @property
    def errors(self) -> int:
        """All edits together: the Levenshtein distance."""
        return self.insertions + self.deletions + self.substitutions

    @property
    def rate(self) -> float | None:
        """Errors per hundred reference units; None for an empty reference, which no rate can describe.

        It goes above 100 where the hypothesis is much longer than the reference.
        """
        return _percent(self.errors, self.reference_length)


def word_edits(reference: str, hypothesis: str) -> EditCounts:
    """Aligns two texts word by word.

    Words are what whitespace of any kind separates. With an empty reference every word of the hypothesis is
    an insertion; with an empty hypothesis every word of the reference is a deletion.

    Args:
        reference: What was said.
        hypothesis: What was recognized.

    Returns:
        The edits of a shortest alignment, with the words of the reference as `reference_length`.
    """
    return _counts(jiwer.process_words(_single_spaced(reference), _single_spaced(hypothesis)))


def character_edits(reference: str, hypothesis: str) -> EditCounts:
    """Aligns two texts character by character.

    Characters are Unicode code points. As jiwer and the `cer` metric have it, one space between two words
    counts as a character; spaces at the ends and repeated ones do not count.

    Args:
        reference: What was said.
        hypothesis: What was recognized.

    Returns:
        The edits of a shortest alignment, with the characters of the reference as `reference_length`.
    """
    return _counts(jiwer.process_characters(_single_spaced(reference), _single_spaced(hypothesis)))


@dataclass(frozen=True, slots=True)
class UtteranceScore:
    """One utterance, its hypothesis, and the edits between the two normalized texts.

    Attributes:
        id: The utterance's id in the manifest.
        reference: The transcript as the manifest has it.
        hypothesis: The text as the model gave it.
        insertions: Words inserted.
        deletions: Words deleted.
        substitutions: Words substituted.
        words: Words in the normalized reference.
        character_insertions: Characters inserted.
        character_deletions: Characters deleted.
        character_substitutions: Characters substituted.
        characters: Characters in the normalized reference, single spaces included.
        duration_s: Length of the recording in seconds; None where it is not known.
        avg_logprob: Mean log-probability of the hypothesis's tokens in nats, see `trainers.models.recognizer`; None
            where it is not known.
        nbest: Where they were asked for, the best hypotheses by `text` and `avg_logprob`, the best first.
    """

    id: str
    reference: str
    hypothesis: str
    insertions: int
    deletions: int
    substitutions: int
    words: int
    character_insertions: int
    character_deletions: int
    character_substitutions: int
    characters: int
    duration_s: float | None
    avg_logprob: float | None = None
    nbest: Sequence[Mapping[str, Any]] | None = None

    @property
    def word_counts(self) -> EditCounts:
        """The word edits as one summable value."""
        return EditCounts(self.insertions, self.deletions, self.substitutions, self.words)

    @property
    def character_counts(self) -> EditCounts:
        """The character edits as one summable value."""
        return EditCounts(
            self.character_insertions,
            self.character_deletions,
            self.character_substitutions,
            self.characters,
        )

    def to_json_dict(self) -> dict[str, Any]:
        """Gives the fields by name, for a line of JSON; `UtteranceScore(**line)` reads it back.

        What only a model knows is left out where it is not known.
        """
        line = asdict(self)
        return {name: value for name, value in line.items() if value is not None or name not in FROM_A_MODEL}


def score_utterance(
    id: str,
    reference: str,
    hypothesis: str,
    duration_s: float | None,
    normalize: Callable[[str], str] = lambda text: text,
) -> UtteranceScore:
    """Scores one utterance by words and by characters.

    Args:
        id: The utterance's id in the manifest.
        reference: The transcript, before normalizing.
        hypothesis: The recognized text, before normalizing.
        duration_s: Length of the recording in seconds; None where it is not known.
        normalize: Applied to both texts before they are compared; the record keeps the texts as they came.
    """
    said, heard = normalize(reference), normalize(hypothesis)
    words, characters = word_edits(said, heard), character_edits(said, heard)
    return UtteranceScore(
        id=id,
        reference=reference,
        hypothesis=hypothesis,
        insertions=words.insertions,
        deletions=words.deletions,
        substitutions=words.substitutions,
        words=words.reference_length,
        character_insertions=characters.insertions,
        character_deletions=characters.deletions,
        character_substitutions=characters.substitutions,
        characters=characters.reference_length,
        duration_s=duration_s,
    )


@dataclass(frozen=True, slots=True)
class Score:
    """The score of a set of utterances. All rates are percentages.

    Attributes:
        utterances: Utterances that were asked for.
        scored: Utterances among them that could be scored; the rest could not be decoded.
        words: Words in the references.
        insertions: Words inserted.
        deletions: Words deleted.
        substitutions: Words substituted.
        wer: Word error rate; None where the references hold no word at all.
        characters: Characters in the references, single spaces included.
        character_insertions: Characters inserted.
        character_deletions: Characters deleted.
        character_substitutions: Characters substituted.
        cer: Character error rate; None where the references hold no character at all.
        sentence_errors: Scored utterances with at least one word wrong.
        ser: Sentence error rate, over the scored utterances.
        empty_references: Scored utterances whose reference has no word. Their hypotheses count as
            insertions, in `wer` too.
    """

    utterances: int
    scored: int
    words: int
    insertions: int
    deletions: int
    substitutions: int
    wer: float | None
    characters: int
    character_insertions: int
    character_deletions: int
    character_substitutions: int
    cer: float | None
    sentence_errors: int
    ser: float
    empty_references: int

    def to_json_dict(self) -> dict[str, int | float | None]:
        """Gives the fields by name, ready for a JSON file."""
        return asdict(self)


def score_texts(
    predictions: Sequence[str],
    references: Sequence[str],
    normalize: Callable[[str], str] | None = None,
    ids: Sequence[str] | None = None,
    durations_s: Sequence[float] | None = None,
    utterances: int | None = None,
) -> tuple[Score, list[UtteranceScore]]:
    """Scores hypotheses against their references: the sum, and one record for each.

    Args:
        predictions: Recognized texts.
        references: Transcripts, one for each prediction.
        normalize: Applied to both texts before they are compared. None: not at all.
        ids: Id of each utterance. None: they have none.
        durations_s: Length of each recording in seconds. None: not known.
        utterances: How many were asked for. None: as many as there are predictions.

    Raises:
        ScoringError: there are no predictions, or more than were asked for.
    """
    if not predictions:
        raise ScoringError("there are no predictions, so there is no score: add at least one before compute")
    count = len(predictions)
    columns = zip(ids or [""] * count, references, predictions, durations_s or [0.0] * count, strict=True)
    scores = [score_utterance(*row, normalize or str) for row in columns]
    return total(scores, utterances=count if utterances is None else utterances), scores


def total(scores: Iterable[UtteranceScore], *, utterances: int) -> Score:
    """Adds up utterances into one score, whatever their order and wherever they were scored.

    Ids are not compared here: call `check_ids` for that.

    Args:
        scores: One score for each utterance; read once, so that a stream will do.
        utterances: How many were asked for.

    Raises:
        ScoringError: If there is nothing to add up, or more than was asked for.
    """
    words, characters = EditCounts(), EditCounts()
    scored = sentence_errors = empty_references = 0
    for score in scores:
        scored += 1
        words += score.word_counts
        characters += score.character_counts
        sentence_errors += score.word_counts.errors > 0
        empty_references += score.words == 0
    if scored == 0:
        raise ScoringError(
            f"0 of {utterances} utterances were scored, so there is no score: "
            "look in the quarantine file for why none could be used"
        )
    if scored > utterances:
        raise ScoringError(
            f"{scored} utterances were scored but only {utterances} asked for: "
            "some were scored twice or belong to another set; compare their ids with check_ids"
        )
    return Score(
        utterances=utterances,
        scored=scored,
        words=words.reference_length,
        insertions=words.insertions,
        deletions=words.deletions,
        substitutions=words.substitutions,
        wer=words.rate,
        characters=characters.reference_length,
        character_insertions=characters.insertions,
        character_deletions=characters.deletions,
        character_substitutions=characters.substitutions,
        cer=characters.rate,
        sentence_errors=sentence_errors,
        ser=100 * sentence_errors / scored,
        empty_references=empty_references,
    )


def check_ids(asked: Sequence[str], scored: Sequence[str]) -> None:
    """Makes sure that each id asked for was scored exactly once, and no other; the order is free.

    Raises:
        ScoringError: If an id is missing, doubled on either side, or foreign; it names the first few.
    """
    if found := differences(asked, scored):
        raise ScoringError(
            f"the ids that were scored are not the {len(asked)} that were asked for: {found}. "
            "Ids must be unique in the manifest, and the workers' scores from one evaluation only"
        )


def differences(asked: Sequence[str], scored: Sequence[str]) -> str:
    """How the ids that were scored differ from those asked for, with the first few of each kind; "" where not."""
    asked_counts, scored_counts = Counter(asked), Counter(scored)
    problems = {
        "asked for more than once": [id for id, count in asked_counts.items() if count > 1],
        "not scored": [id for id in asked_counts if id not in scored_counts],
        "scored more than once": [id for id, count in scored_counts.items() if count > 1],
        "scored but not asked for": [id for id in scored_counts if id not in asked_counts],
    }
    return "; ".join(f"{len(ids)} {problem} ({_first_few(ids)})" for problem, ids in problems.items() if ids)


def _first_few(ids: Sequence[str]) -> str:
    shown = ", ".join(repr(id) for id in ids[:IDS_SHOWN])
    return shown if len(ids) <= IDS_SHOWN else f"{shown}, ..."


def _single_spaced(text: str) -> str:
    # jiwer splits at the space character only; a tab or a no-break space would glue two words together.
    return " ".join(text.split())


def _counts(alignment: jiwer.WordOutput | jiwer.CharacterOutput) -> EditCounts:
    # jiwer's own rate is left aside: for an empty reference it is the number of insertions, not a rate.
    return EditCounts(
        insertions=alignment.insertions,
        deletions=alignment.deletions,
        substitutions=alignment.substitutions,
        reference_length=alignment.hits + alignment.deletions + alignment.substitutions,
    )


def _percent(part: int, whole: int) -> float | None:
    return 100 * part / whole if whole else None
