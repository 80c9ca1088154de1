"""Checks the model: its files, the transcripts as label tokens, and the weights to train. Few checks need torch."""

import math
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainers.config.parts.decode_part import DecodePart, GenerationPart
from trainers.config.unused_fields import refuse_unused_fields
from trainers.config.wording import counted
from trainers.data.batch_plan import FloatArray, IntArray
from trainers.data.selection import LONG_LABELS_FIX, BoolArray, Bounds, long_labels, reasons_to_leave_out
from trainers.errors import ConfigError, StorageError
from trainers.findings import (
    NODE,
    Finding,
    Moment,
    Need,
    check,
    found_in,
    named,
    ok,
    problem,
    skipped,
    unread,
    warning,
)
from trainers.inspection.subject import OPENING, SPLITS, Split, Subject
from trainers.models.families import decoder_of, refuse_unsupported, resolve_model
from trainers.models.family import Family
from trainers.models.label_codec import Limits
from trainers.models.labels import language_prefixes, languages_in
from trainers.models.sources.source_reader import SourceReader
from trainers.scoring.recipe_metrics import RecipeMetrics


class InspectedModel(NamedTuple):
    """An opened model: its family, its parts of the config, and its processor."""

    family: Family[Any]
    part: Any
    decode: DecodePart
    processor: Any

    @property
    def limits(self) -> Limits:
        """Limits of the model's inputs and outputs."""
        return self.family.limits(self.family.model_config(self.part, self.processor), self.processor)


@lru_cache(maxsize=1)
def open_model(subject: Subject) -> InspectedModel | Finding:
    """Opens, once, what the checks need; returns a finding if that fails."""
    part = subject.config.model
    try:
        opened = subject.model
        with opened.named_in_errors():
            config, family = resolve_model(subject.config, opened)
            part = opened.applied_to(config.model)
            refuse_unsupported(config, family)
            if not family.learns_processor(part):
                return InspectedModel(family, part, config.decode, family.open_processor(part, None))
            train = subject.split("train")
            if train is not None:
                return InspectedModel(family, part, config.decode, family.new_processor(train.texts, part))
    except StorageError as error:
        return found_in(error)
    except ConfigError as error:
        # A file that is read but does not fit is an error on the nodes, too; a file that cannot be read here may exist
        # there.
        is_unread = isinstance(error.__cause__, OSError | ValueError) and not Path(str(part.name_or_path)).exists()
        return unread(str(error)) if is_unread else problem(str(error))
    return skipped("the vocabulary is learned from data.train, which could not be opened here")


# A client does not run the code of custom metrics, whose packages only the job may have.
JOB: Need[Subject] = Need(
    Moment.INSPECTION,
    lambda subject: (
        "checked where the job's packages are" if subject.light and subject.config.scoring.metrics else None
    ),
)
MODEL: Need[Subject] = Need(
    Moment.INSPECTION,
    lambda subject: "the model could not be opened" if isinstance(open_model(subject), Finding) else None,
)


def _model(subject: Subject) -> InspectedModel:
    opened = open_model(subject)
    assert not isinstance(opened, Finding), "checks that need the model are skipped"
    return opened


@check(OPENING)
def check_model(subject: Subject) -> Iterator[Finding]:
    """Opens the processor; checks that a folder has weights, and that no field of the config is unused."""
    try:
        refuse_unused_fields(subject.config)
    except ConfigError as error:
        yield _unless_begun(subject, str(error))
    opened, part = open_model(subject), subject.config.model
    if isinstance(opened, Finding):
        yield opened
        return
    limits = opened.limits
    yield from (problem(text) for text in opened.family.misfits(subject.config, limits))
    if part.init == "scratch":
        yield ok(f"model.init: scratch; the vocabulary of {len(opened.processor.tokenizer)} tokens can be learned")
        return
    _refuse_other_weights(subject, opened)
    notes = opened.family.notes(opened.part, opened.processor)
    yield from (warning(f"{part.name_or_path or 'the weights'}: {note}") for note in notes)
    yield from (ok(f"{pin.name} opens") for pin in subject.model.pins.values())


def _refuse_other_weights(subject: Subject, opened: InspectedModel) -> None:
    """Compares the weights' tensors with the network; without torch, only checks that folders contain weights."""
    if subject.needs_torch:
        # Imported here for the reason in `check_arguments`.
        from trainers.models.sources.loaded_weights import refuse_other_weights  # noqa: PLC0415

        refuse_other_weights(subject.config, opened.part, opened.family, subject.model)
        return
    reader = SourceReader.of(subject.config)
    for pin in subject.model.pins.values():
        if pin.has_weights and Path(pin.address).is_dir():
            reader.tensors(pin)


def _unless_begun(subject: Subject, text: str) -> Finding:
    """Returns a problem as an error for a new run, but as a warning for a run that has begun."""
    try:
        begun = subject.has_begun
    except StorageError as unknown:
        return warning(
            f"{text}\na run that has begun with it continues; whether this one has cannot be seen here: {unknown}"
        )
    return warning(f"{text}\na run that has begun with it, as this one may have, continues") if begun else problem(text)


@check(MODEL, SPLITS)
def check_labels(subject: Subject) -> Iterator[Finding]:
    """Compares clips and transcripts with the limits of the model and of generation."""
    opened = _model(subject)
    for split in subject.splits:
        noted = opened.family.check_texts(opened.processor, split.texts)
        if noted is not None:
            yield warning(f"{split.name}: {noted}")
        yield from _check_lengths(subject, opened, split)


def _check_lengths(subject: Subject, opened: InspectedModel, split: Split) -> Iterator[Finding]:
    decode, limits, durations_s = opened.decode, opened.limits, subject.recordings(split).durations_s
    trained, most = split.name == "train", math.inf
    fastest = subject.config.augment.fastest if trained else 1.0
    bounds = Bounds(subject.context_of(split), limits.label_tokens, limits.frames, fastest, limits.least_samples)
    if not trained and limits.new_tokens is not None and isinstance(decode, GenerationPart):
        most = min(decode.max_length, limits.new_tokens) + limits.prefix_tokens
    room = bounds.label_room(durations_s)
    sizes = _label_sizes(opened, split.texts, np.minimum(room, most), with_repeats=bounds.frames is not None)
    short, wordy = bounds.too_short(durations_s), sizes > room
    if trained:
        silent = np.array([not text for text in split.texts], dtype=bool)
        reasons = reasons_to_leave_out(durations_s, sizes, silent, subject.config.data, bounds)
        short, wordy = reasons[1][1], reasons[-1][1]
    if short.any():
        what, end = counted(int(short.sum()), "clip", "is", "are"), "left out" if trained else "not scored"
        yield warning(f"{split.name}: {what} {bounds.short_bound} ({_named(split, short)}), and will be {end}")
    if wordy.any():
        yield _too_wordy(subject, split, bounds, sizes, wordy)
    elif (sizes > most).any():
        cut, prefix = sizes > most, limits.prefix_tokens
        given, wanted = getattr(decode, "max_length", ""), int(sizes.max()) - prefix
        yield warning(
            f"{split.name}: {int(cut.sum())} of {len(cut)} references are longer than the {most - prefix} tokens that "
            f"a hypothesis may have ({_named(split, cut)}): raise decode.max_length {given} to {wanted}, or words will "
            "count as deleted"
        )
    elif bounds.frames is not None:
        yield ok(f"{split.name}: each clip gets enough outputs of the model for its label tokens")
    else:
        allowed = min(limits.label_tokens, most)
        which = "a clip that is trained on" if trained else "a clip"
        yield ok(f"{split.name}: no transcript of {which} has more than {allowed} label tokens")


def _too_wordy(subject: Subject, split: Split, bounds: Bounds, sizes: IntArray, wordy: BoolArray) -> Finding:
    if bounds.frames is not None:
        end = "will be left out, and counted" if split.name == "train" else "cannot be recognized in full"
        return warning(
            f"{split.name}: {int(wordy.sum())} of {len(wordy)} transcripts have {bounds.label_bound} "
            f"({_named(split, wordy)}), and {end}: check that they belong to their recordings"
        )
    text = f"{split.name}: {long_labels(split.table['id'], np.where(wordy, sizes, 0), bounds.label_tokens)}"
    if split.name == "train":
        return warning(f"{text}; they will be left out, and counted: shorten or split them")
    if subject.config.data.too_long_eval == "skip":
        return warning(f"{text}; they will not be scored, and every score says how many")
    return problem(f"{text}; {LONG_LABELS_FIX}")


def _label_sizes(opened: InspectedModel, texts: Sequence[str], room: FloatArray, *, with_repeats: bool) -> IntArray:
    """Returns the `Bounds.label_room` that each text's labels need, shape (N,); 0 for texts that surely fit."""
    # A token has at least one byte and at most one repeat, so short texts fit without being encoded. A text has a
    # prefix, and one end token after it.
    each, around = 2 if with_repeats else 1, opened.limits.prefix_tokens + 1
    rows = [row for row, text in enumerate(texts) if each * len(text.encode()) + around > room[row]]
    sizes = np.zeros(len(texts), np.int64)
    labels = opened.family.encode_labels(opened.processor, [texts[row] for row in rows])
    repeats = [sum(a == b for a, b in pairwise(ids)) if with_repeats else 0 for ids in labels]
    sizes[rows] = [len(ids) + more for ids, more in zip(labels, repeats, strict=True)]
    return sizes


def _named(split: Split, rows: BoolArray) -> str:
    return named([split.ids[int(row)] for row in np.flatnonzero(rows)])


@check(MODEL)
def check_decoding(subject: Subject) -> Iterator[Finding]:
    """Checks the files and settings that the search of a model's outputs needs."""
    opened = _model(subject)
    decoder = decoder_of(opened.decode)
    if decoder is None:
        yield ok("decode: no search of the model's outputs, which would need further files")
        return
    options = subject.config.run.storage_options
    yield from decoder.inspect(opened.decode, opened.processor, options)


@check(NODE, JOB)
def check_metrics(subject: Subject) -> Iterator[Finding]:
    """Computes each metric of the recipe once."""
    RecipeMetrics(subject.config.scoring.metrics).check()
    yield ok(f"scoring.metrics: {', '.join(subject.config.scoring.metrics) or 'none'}")


@check(MODEL)
def check_languages(subject: Subject) -> Iterator[Finding]:
    """Compares the languages of the clips with those of the model."""
    named_here = [split for split in subject.splits if languages_in(split.table).drop_null()]
    if subject.config.data.use_language_column is False or not named_here:
        yield ok("all clips have model.language")
        return
    opened = _model(subject)
    for split in named_here:
        try:
            language_prefixes(opened.family, opened.processor, languages_in(split.table), subject.config.model.language)
        except ConfigError as error:
            yield _unless_begun(subject, f"{split.name}: {error}")
        else:
            yield ok(f"{split.name}: the model knows the languages of all clips")


@check(OPENING)
def check_arguments(subject: Subject) -> Iterator[Finding]:
    """Builds the Trainer's arguments, which finds unknown arguments and invalid values."""
    if subject.sets_arguments:
        # Imported here, since it imports torch, which takes longer than all other checks together.
        from trainers.training.arguments import check_arguments as build_arguments  # noqa: PLC0415

        build_arguments(subject.config)
    score = subject.config.checkpoint.checkpoint_score_attribute or "the error rate that ranks its language"
    note = subject.config.training.warmup_note(subject.config.training.max_steps)
    if note is not None:
        yield warning(note)
    yield ok(f"transformers takes the training arguments; {score} is scored on validation and chooses the model")


@check(MODEL)
def check_adaptation(subject: Subject) -> Iterator[Finding]:
    """Selects the weights to train in an empty network of the model's sizes."""
    part, opened = subject.config.adapt, _model(subject)
    if part.method == "full":
        yield ok("adapt.method: full; all weights are trained")
        return
    # Imported here for the reason in `check_arguments`.
    from trainers.models.adaptation.trained_weights import describe_trained  # noqa: PLC0415

    yield ok(f"adapt.method: {part.method}; {describe_trained(part, opened.part, opened.family)}")


CHECKS = (
    check_arguments,
    check_model,
    check_adaptation,
    check_decoding,
    check_metrics,
    check_languages,
    check_labels,
)
