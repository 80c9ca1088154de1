"""The model: its files, the transcripts as it would see them, and what is trained of it. Few checks need torch."""

from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache, wraps
from itertools import pairwise
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trainers.config.parts.decode_part import DecodePart, GenerationPart
from trainers.config.unused_fields import refuse_unused_fields
from trainers.config.wording import counted
from trainers.data.selection import Bounds, reasons_to_leave_out
from trainers.errors import ConfigError, StorageError
from trainers.findings import Check, Finding, named, ok, problem, skipped, warning
from trainers.inspection.subject import Split, Subject
from trainers.models.families import FAMILIES, decoder_of, refuse_unsupported, resolve_model
from trainers.models.family import Family, OpenModel
from trainers.models.label_codec import Limits
from trainers.models.labels import language_prefixes, languages_in
from trainers.models.sources.source_reader import SourceReader


class InspectedModel(NamedTuple):
    """What could be opened of a model: its family, its parts of the config, its processor."""

    family: Family[Any]
    part: Any
    decode: DecodePart
    processor: Any

    @property
    def limits(self) -> Limits:
        """What it can take in and give out."""
        return self.family.limits(self.family.model_config(self.part, self.processor), self.processor)


ModelCheck = Callable[[Subject, InspectedModel], Iterator[Finding]]


def needs_model(family: str | None = None) -> Callable[[ModelCheck], Callable[[Subject], Iterator[Finding]]]:
    """Makes a check, of one family or of all, report that it was skipped where the model is not open."""

    def decorate(run: ModelCheck) -> Callable[[Subject], Iterator[Finding]]:
        @wraps(run)
        def check(subject: Subject) -> Iterator[Finding]:
            opened = open_model(subject)
            if isinstance(opened, Finding):
                yield skipped("the model could not be opened")
            elif family not in (None, opened.family.name):
                yield skipped(f"does not apply to a {opened.family.name} model")
            else:
                yield from run(subject, opened)

        return check

    return decorate


@lru_cache(maxsize=1)
def open_model(subject: Subject) -> InspectedModel | Finding:
    """Opens what the checks need, once; a finding where that is not possible."""
    part = subject.config.model
    try:
        opened = subject.model
        with opened.named_in_errors():
            config, family = resolve_model(subject.config, opened)
            part = opened.applied_to(config.model)
            refuse_unsupported(config, family)
            if part.token_language is not None:
                family.language_code(part.token_language)
            if not family.learns_processor(part):
                return InspectedModel(family, part, config.decode, family.open_processor(part, None))
            train = subject.split("train")
            if train is not None:
                return InspectedModel(family, part, config.decode, family.new_processor(train.texts, part))
    except StorageError as error:
        return subject.unreachable(str(error))
    except ConfigError as error:
        # What could be read and does not fit is as wrong on the nodes; what could not be read here, they may have.
        unread = isinstance(error.__cause__, OSError | ValueError) and not Path(str(part.name_or_path)).exists()
        return subject.unreachable(str(error)) if unread else problem(str(error))
    return skipped("the vocabulary is learned from data.train, which could not be opened here")


def check_model(subject: Subject) -> Iterator[Finding]:
    """Opens the processor; checks that a folder has weights, and that all fields are read."""
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
    try:
        _refuse_other_weights(subject, opened)
    except ConfigError as error:
        yield problem(str(error))
        return
    except StorageError as error:
        yield subject.unreachable(str(error))
        return
    yield from (ok(f"{pin.name} opens") for pin in subject.model.pins.values())


def _refuse_other_weights(subject: Subject, opened: InspectedModel) -> None:
    """Compares the tensors of weights with the network; without torch those of folders are only found to be there."""
    if subject.needs_torch:
        # Only here, see `check_arguments`.
        from trainers.models.sources.loaded_weights import refuse_other_weights  # noqa: PLC0415

        refuse_other_weights(subject.config, opened.part, opened.family, subject.model)
        return
    reader = SourceReader.of(subject.config)
    for pin in subject.model.pins.values():
        if pin.has_weights and Path(pin.address).is_dir():
            reader.tensors(pin)


def _unless_begun(subject: Subject, text: str) -> Finding:
    """A problem of new runs, with which a run that has begun goes on."""
    try:
        begun = subject.has_begun
    except StorageError as unknown:
        return warning(f"{text}\na run that began with it goes on, which cannot be seen here: {unknown}")
    return warning(f"{text}\na run that began with it, as this one may have, goes on") if begun else problem(text)


@needs_model()
def check_labels(subject: Subject, opened: InspectedModel) -> Iterator[Finding]:
    """Compares lengths of transcripts with what the model holds and with what scoring generates."""
    if not subject.splits:
        yield skipped("no manifest could be opened")
    for split in subject.splits:
        noted = opened.family.check_texts(opened.processor, split.texts)
        if noted is not None:
            yield warning(f"{split.name}: {noted}")
    decode, limits = opened.decode, opened.limits
    yield from (finding for split in subject.splits if (finding := _too_short(subject, split, limits)) is not None)
    if limits.new_tokens is None or not isinstance(decode, GenerationPart):
        yield from (_check_frames(subject, opened, split, limits) for split in subject.splits)
        return
    most, room = limits.label_tokens, min(decode.max_length, limits.new_tokens)
    prefix = limits.prefix_tokens
    # The end token, which is generated too, is behind the text.
    around = prefix + 1
    for split in subject.splits:
        scored = split.name != "train"
        allowed = min(most, room + prefix) if scored else most
        ids, texts = (split.ids, split.texts) if scored else _trained(subject, split)
        long_ids, lengths = _longer(opened, ids, texts, allowed, around)
        over = [f"{name} ({length})" for name, length in zip(long_ids, lengths, strict=True) if length > most]
        if over:
            yield _over_the_limit(subject, split, over, most)
        elif long_ids:
            yield warning(
                f"{split.name}: {len(long_ids)} of {len(ids)} references are longer than the {room} tokens that a "
                f"hypothesis may have ({named(long_ids)}): raise decode.max_length {decode.max_length} to "
                f"{max(lengths) - prefix}, or words will count as deleted"
            )
        else:
            yield ok(f"{split.name}: none of {len(ids)} transcripts has more than {allowed} label tokens")


def _too_short(subject: Subject, split: Split, limits: Limits) -> Finding | None:
    """Names clips that are too short for the model; None where there are none."""
    bounds = Bounds(subject.context_s, limits.label_tokens, least_samples=limits.least_samples)
    short = bounds.too_short(subject.recordings(split).durations_s)
    if split.name == "train":
        short &= subject.recordings(split).durations_s >= subject.config.data.min_duration_s
    ids = [split.ids[int(row)] for row in np.flatnonzero(short)]
    if not ids:
        return None
    end = "left out" if split.name == "train" else "not scored"
    return warning(
        f"{split.name}: {counted(len(ids), 'clip', 'is', 'are')} {bounds.short_bound} ({named(ids)}), and will be {end}"
    )


@needs_model()
def check_decoding(subject: Subject, opened: InspectedModel) -> Iterator[Finding]:
    """Checks what the search of a model's outputs needs."""
    decoder = decoder_of(opened.decode)
    if decoder is None:
        yield ok("decode: there is no search of the model's outputs, which needs more than the model")
        return
    options = subject.config.run.storage_options
    yield from decoder.inspect(opened.decode, opened.processor, options, subject.unreachable)


@needs_model()
def check_languages(subject: Subject, opened: InspectedModel) -> Iterator[Finding]:
    """Compares the languages of clips with those that the model knows."""
    named_here = [split for split in subject.splits if languages_in(split.table).drop_null()]
    if subject.config.data.use_language_column is False or not named_here:
        yield ok("all clips have model.language")
        return
    for split in named_here:
        try:
            language_prefixes(opened.family, opened.processor, languages_in(split.table), subject.config.model.language)
        except ConfigError as error:
            yield _unless_begun(subject, f"{split.name}: {error}")
        else:
            yield ok(f"{split.name}: the model knows the languages of all clips")


def _check_frames(subject: Subject, opened: InspectedModel, split: Split, limits: Limits) -> Finding:
    """Compares the labels of clips whose durations are known with the outputs that the model gives for them."""
    durations_s = subject.recordings(split).durations_s
    fastest = subject.config.augment.fastest if split.name == "train" else 1.0
    bounds = Bounds(subject.context_s, limits.label_tokens, limits.frames, fastest, limits.least_samples)
    room = bounds.label_room(durations_s)
    # A token is a byte or more, and repeats one at most, so that short texts need not be encoded to know it.
    rows = [row for row, text in enumerate(split.texts) if 2 * len(text.encode()) > room[row]]
    labels = opened.family.encode_labels(opened.processor, [split.texts[row] for row in rows])
    sizes = [len(each) + sum(a == b for a, b in pairwise(each)) for each in labels]
    ids = [split.ids[row] for row, size in zip(rows, sizes, strict=True) if size > room[row]]
    if not ids:
        return ok(f"{split.name}: the model gives each clip an output for each label token, as it needs")
    end = "will be left out, and counted" if split.name == "train" else "cannot be recognized in full"
    return warning(
        f"{split.name}: {len(ids)} of {len(split.texts)} transcripts have {bounds.label_bound} ({named(ids)}), and "
        f"{end}: check that they belong to their recordings"
    )


def _over_the_limit(subject: Subject, split: Split, ids: Sequence[str], most: int) -> Finding:
    have = counted(len(ids), "transcript", "has", "have")
    text = f"{split.name}: {have} more label tokens than the model's {most}: {', '.join(ids[:5])}"
    if split.name == "train":
        return warning(f"{text}; they will be left out, and counted: shorten or split them")
    if subject.config.data.too_long_eval == "skip":
        return warning(f"{text}; they will not be scored, and every score says how many")
    return problem(f"{text}; shorten or split them, or leave them out of the score (data.too_long_eval: skip)")


def check_arguments(subject: Subject) -> Iterator[Finding]:
    """Builds the Trainer's arguments: unknown ones, values that transformers refuses, another metric to choose by."""
    if subject.sets_arguments:
        # Only here: it takes torch, which takes longer to load than all other checks together.
        from trainers.training.arguments import check_arguments as build_arguments  # noqa: PLC0415

        build_arguments(subject.config)
    score = subject.config.checkpoint.checkpoint_score_attribute or "the error rate that ranks its language"
    note = subject.config.training.warmup_note(subject.config.training.max_steps)
    if note is not None:
        yield warning(note)
    yield ok(f"transformers takes the training arguments; {score} is scored on validation and chooses the model")


@needs_model()
def check_adaptation(subject: Subject, opened: InspectedModel) -> Iterator[Finding]:
    """Selects what is trained in a network of the model's sizes, without its weights."""
    part = subject.config.adapt
    if part.method == "full":
        yield ok("adapt.method: full; all weights are trained")
        return
    # Only here, see `check_arguments`.
    from trainers.models.adaptation.trained_weights import describe_trained  # noqa: PLC0415

    yield ok(f"adapt.method: {part.method}; {describe_trained(part, opened.part, opened.family)}")


def _longer(
    opened: InspectedModel, ids: Sequence[str], texts: Sequence[str], allowed: int, around: int
) -> tuple[list[str], list[int]]:
    # A token is a byte or more, so that short texts need not be encoded to know it.
    rows = [row for row, text in enumerate(texts) if len(text.encode()) > allowed - around]
    labels = opened.family.encode_labels(opened.processor, [texts[row] for row in rows])
    lengths = [len(each) for each in labels]
    long = [(ids[row], length) for row, length in zip(rows, lengths, strict=True) if length > allowed]
    return [name for name, _ in long], [length for _, length in long]


def _trained(subject: Subject, split: Split) -> tuple[list[str], list[str]]:
    """Ids and texts of the clips that will not be left out, as far as is known."""
    durations_s, ids = subject.recordings(split).durations_s, split.ids
    # Labels are what is asked about.
    bounds, lengths = Bounds(subject.context_s, label_tokens=0), np.zeros(len(split.texts), np.int64)
    silent = np.array([not text for text in split.texts], dtype=bool)
    reasons = reasons_to_leave_out(durations_s, lengths, silent, subject.config.data, bounds)
    rows = np.flatnonzero(~np.any([mask for _, mask in reasons], axis=0)).tolist()
    return [ids[row] for row in rows], [split.texts[row] for row in rows]


def _of_family(family: Family[Any], check: Check[OpenModel]) -> Check[Subject]:
    @needs_model(family.name)
    def run(subject: Subject, opened: InspectedModel) -> Iterator[Finding]:
        yield from check.run(OpenModel(opened.part, opened.processor))

    return Check(check.name, check.description, run)


CHECKS = (
    Check("arguments", "transformers takes the training arguments", check_arguments),
    Check("model", "the model's files open", check_model),
    *(_of_family(family, check) for family in FAMILIES.values() for check in family.checks),
    Check("adaptation", "the model has the weights that are to be trained", check_adaptation),
    Check("decoding", "files and models of decoding can be used", check_decoding),
    Check("languages", "the model has a token for the language of each clip", check_languages),
    Check("labels", "no transcript is longer than the decoder", check_labels),
)
