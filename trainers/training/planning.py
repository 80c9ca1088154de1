"""Plans the batches of the training set, and the scoring of splits, from a config."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from trainers.config.locations import cache_url_of
from trainers.config.parts.decode_part import GenerationPart
from trainers.config.schema import TrainConfig
from trainers.config.wording import counted
from trainers.data.augmentation import Augmenter, RecordingPool, Speeds
from trainers.data.batch_plan import BatchPlan, BatchShape, FloatArray, IntArray, bucket_edges
from trainers.data.mixing import Group, Mixture
from trainers.data.prepared_set import JoinedSet, PreparedSet
from trainers.data.selection import Bounds, TrainingRows, drawn_clips, select_scored, select_training
from trainers.data.sources.manifest_source import locate_mixed
from trainers.data.sources.packing import PREVIOUS
from trainers.errors import DataError
from trainers.models.label_codec import Limits
from trainers.models.labels import NOT_NAMED, EmptiedLabels, Labels, ReplacedLabels, clip_languages, labels_of
from trainers.models.recognizer import Decoding, Recognizer, Search, Segment
from trainers.scoring.scorer import ScoredClips, ScoringOptions
from trainers.storage import open_storage
from trainers.training.arguments import autocast_dtype
from trainers.training.trainer.planned_batches import Clips


def plan_training(
    config: TrainConfig,
    prepared: PreparedSet,
    recognizer: Recognizer,
    workers: int,
    timed: Mapping[str, Sequence[Segment]] | None = None,
) -> tuple[BatchPlan, Clips]:
    """Returns the batch plan and the clips at its positions, which are equal on every rank.

    `timed` has the segments, by id, of clips whose labels have timestamps.
    """
    part = config.training
    limits = recognizer.limits
    bounds = bounds_of(config, limits)
    plain = labels = labels_of(prepared, recognizer.codec, recognizer.processor, config.model.language)
    if timed or config.training.previous_text:
        labels = changed_labels(config, plain, prepared, recognizer, timed or {})
    rows = select_training(prepared.index, label_sizes(labels, bounds), config.data, bounds)
    selection = rows.selection
    if isinstance(prepared, JoinedSet):
        selection = replace(selection, draws_of=mixture_of(config, prepared, rows).draws)
    to_longest = part.pad_to == "longest" and limits.masks_padding
    shape = replace(batch_shape(config, workers), to_longest=to_longest)
    speeds = speeds_of(config, prepared, bounds)
    lengths = labels.lengths[selection.rows]
    plan = BatchPlan(
        selection,
        shape,
        edges_s=bucket_edges(bounds.context_s, bucketed=is_bucketed(config, limits), fine=to_longest),
        seed=config.run.seed,
        window_shards=part.shuffle_window_shards or None,
        full_context_fraction=part.full_context_fraction,
        durations_of=_planned_durations(speeds, selection.rows, shape) if speeds is not None else None,
        costs_of=lambda edge_s, positions: recognizer.cost(edge_s, lengths[positions]),
    )
    emptied = EmptiedLabels(plain, recognizer.encode_labels([""])[0], limits.prefix_tokens)
    timestamps = recognizer.timestamps if timed else None
    clips = Clips(prepared.reader(cache_bytes(config)), labels, augmenter_of(config, speeds), emptied, timestamps)
    return plan, clips


def changed_labels(
    config: TrainConfig,
    labels: Labels,
    prepared: PreparedSet,
    recognizer: Recognizer,
    timed: Mapping[str, Sequence[Segment]],
) -> Labels:
    """Returns labels in which those of clips with segments have timestamps, and a share follows a previous text.

    A label that would be longer than the model's longest stays as it is.
    """
    ids, index, most = prepared.index["id"].to_pylist(), prepared.index, recognizer.limits.label_tokens
    durations_s = index["duration_s"].to_pylist()
    previous = index[PREVIOUS].to_pylist() if PREVIOUS in index.column_names else [None] * len(ids)
    follow = {*drawn_clips([f"{PREVIOUS}/{each}" for each in ids], config.training.previous_text).tolist()}
    changed: dict[int, list[int]] = {}
    for row, id_ in enumerate(ids):
        label = plain = labels[row]
        if id_ in timed:
            with_times = recognizer.timed_label(plain, timed[id_], durations_s[row])
            label = with_times if len(with_times) <= most else plain
        if row in follow and (before := previous[row]):
            label = recognizer.label_after(label, before)
        if label is not plain:
            changed[row] = label
    return ReplacedLabels(labels, np.array([*changed], np.int64), [np.array(ids, np.int32) for ids in changed.values()])


def mixture_of(config: TrainConfig, joined: JoinedSet, rows: TrainingRows) -> Mixture:
    """Returns the draws per epoch from the members of a mix; raises DataError if a member has no clips to train on."""
    chosen = rows.selection.rows
    members = joined.index["member"].to_numpy()[chosen].astype(np.int64)
    for number, member in enumerate(joined.members):
        if not (members == number).any():
            own = [each["reason"] for each in rows.left_out if each["id"].startswith(f"{member.name}/")]
            counts = ", ".join(f"{count} {reason}" for reason, count in Counter(own).items())
            raise DataError(
                f"data.mix: none of the {len(member.prepared.index)} clips of {member.name} is left to train on: "
                f"{counts}; widen the bounds, or remove {member.name} from the mix"
            )
    languages = clip_languages(joined.index, config.model.language) or [NOT_NAMED] * len(joined.index)
    weights = [member.weight for member in config.data.mix if member.weight is not None]
    return Mixture(
        members,
        [languages[row] for row in chosen],
        weights=weights or None,
        temperature=config.data.mix_temperature,
        seed=config.run.seed,
    )


def speeds_of(config: TrainConfig, prepared: PreparedSet, bounds: Bounds) -> Speeds | None:
    """Returns the speed factors of the training set; None if augmentation does not change speed."""
    if not config.augment.changes_speed:
        return None
    return Speeds(config.augment, config.run.seed, prepared.index["duration_s"].to_numpy(), bounds.context_s)


def _planned_durations(speeds: Speeds, rows: IntArray, shape: BatchShape) -> Callable[[int, IntArray], FloatArray]:
    """Returns durations for a BatchPlan: an epoch's own or, if these could change the number of steps, the longest."""
    if shape.max_batch_duration_s is None:
        return lambda epoch, positions: speeds.durations_of(rows[positions], epoch)
    longest_s = speeds.longest_s()[rows]
    return lambda epoch, positions: longest_s[positions]


def augmenter_of(config: TrainConfig, speeds: Speeds | None) -> Augmenter | None:
    """Returns the augmentation of training clips; None if it is off.

    Raises DataError if a manifest of noise or of impulse responses is missing or invalid, and StorageError if the
    manifest's bucket cannot be read.
    """
    part = config.augment
    if not part.is_on:
        return None

    def pool(name: str) -> RecordingPool | None:
        field, options = f"augment.{name}", config.run.storage_options
        if (location := getattr(part, name)) is None:
            return None
        cache = open_storage(cache_url_of(config), options)
        return RecordingPool(field, locate_mixed(field, location, config.data, options, cache))

    return Augmenter(part, config.run.seed, speeds=speeds, noise=pool("noise_manifest"), rirs=pool("rir_manifest"))


def batch_shape(config: TrainConfig, workers: int) -> BatchShape:
    """Returns the batch shape of a config on this many workers."""
    part = config.training
    return BatchShape.resolve(
        workers=workers,
        per_device=part.per_device_train_batch_size,
        accumulation=part.gradient_accumulation_steps,
        global_batch_size=part.global_batch_size,
        max_batch_duration_s=part.max_batch_duration_s,
    )


def small_set_note(plan: BatchPlan) -> str | None:
    """Returns a warning if the training set has fewer clips than a batch; None otherwise."""
    size, clips = plan.shape.global_batch_size, len(plan.batch(0).rows)
    if size is None or plan.steps_per_epoch > 1 or clips >= size:
        return None
    return (
        f"each step has all {counted(clips, 'clip')} of the training set, which is fewer than the batch of {size}: "
        "lower training.global_batch_size or training.per_device_train_batch_size, or add data"
    )


def context_of(config: TrainConfig, model_context_s: float) -> float:
    """Returns the length of the longest input for training and scoring, in seconds."""
    return min(float(config.model.max_context_s or model_context_s), model_context_s)


def for_other_sets(config: TrainConfig) -> TrainConfig:
    """Returns the config by which sets of evaluate.also and sounds without speech are scored.

    The model has its own context, and a hypothesis may have at least the default length: the run's limits may be those
    of its own clips and transcripts.
    """
    model, decode = config.model.model_copy(update={"max_context_s": None}), config.decode
    if isinstance(decode, GenerationPart):
        longest = max(decode.max_length, GenerationPart().max_length)
        decode = decode.model_copy(update={"max_length": longest})
    return config.model_copy(update={"model": model, "decode": decode})


def bounds_of(config: TrainConfig, limits: Limits) -> Bounds:
    """Returns the bounds of clips and labels for a config's model."""
    fastest = config.augment.fastest
    context_s = context_of(config, limits.context_s)
    return Bounds(context_s, limits.label_tokens, limits.frames, fastest, limits.least_samples)


def label_sizes(labels: Labels, bounds: Bounds) -> IntArray:
    """Returns the part of `Bounds.label_room` that each clip's labels need, shape (N,)."""
    return labels.lengths + labels.repeats if bounds.frames is not None else labels.lengths


def is_bucketed(config: TrainConfig, limits: Limits) -> bool:
    """Returns True if each clip is padded only to the edge of its own bucket."""
    return config.model.max_context_s is not None or not limits.full_context


def has_full_context(config: TrainConfig, limits: Limits) -> bool:
    """Returns True if a model that is trained in buckets also has a full context, at which it is scored, too."""
    return config.model.max_context_s is not None and limits.full_context


def scored_clips(config: TrainConfig, prepared: PreparedSet, recognizer: Recognizer, split: str) -> ScoredClips:
    """Returns the scored clips of an evaluation split, see `select_scored`."""
    language = config.model.language
    labels = labels_of(prepared, recognizer.codec, recognizer.processor, language)
    rows = select_scored(prepared.index, labels.lengths, config.data, bounds_of(config, recognizer.limits), split)
    languages = clip_languages(prepared.index, language)
    members = prepared.member_names if isinstance(prepared, JoinedSet) else None
    return ScoredClips(
        prepared,
        labels,
        rows,
        None if languages is None else [languages[row] for row in rows],
        None if members is None else [members[row] for row in rows],
    )


def cut_references(config: TrainConfig, limits: Limits, label_lengths: IntArray) -> str | None:
    """Returns a warning about references that are longer than a hypothesis can be; None without such references."""
    part = config.decode
    if limits.new_tokens is None or not isinstance(part, GenerationPart):
        return None
    # The end token is generated, too.
    wanted = label_lengths - limits.prefix_tokens
    most = min(part.max_length, limits.new_tokens)
    cut = int((wanted > most).sum())
    if not cut:
        return None
    raised = min(int(wanted.max()), limits.new_tokens)
    fix = f"raise decode.max_length to {raised}" if raised > most else "shorten or split them"
    longer = f"{counted(cut, 'reference', 'is', 'are')} longer"
    return f"{longer} than the {most} tokens that a hypothesis may have, so that words will count as deleted: {fix}"


def cache_bytes(config: TrainConfig) -> int:
    """Returns the maximum size of a node's copies of shards, in bytes."""
    return round(config.data.local_cache_gb * 1e9)


def scoring_options(
    config: TrainConfig,
    limits: Limits,
    *,
    full_context: bool = False,
    nbest: int | None = None,
    search: Search | None = None,
) -> ScoringOptions:
    """Returns the options for scoring a split by a resolved config."""
    # If the model masks padding, all clips form one bucket, in which they are sorted by length.
    is_split = is_bucketed(config, limits) and not limits.masks_padding
    edges_s = bucket_edges(context_of(config, limits.context_s), bucketed=is_split)
    return ScoringOptions(
        batch_size=config.training.per_device_eval_batch_size,
        decoding=Decoding(
            config.decode,
            nbest=nbest,
            autocast=autocast_dtype(config),
            as_written=config.data.normalizer_name == "none",
            search=search,
        ),
        normalizer=config.data.normalizer_name,
        edges_s=None if limits.padding_affects_output else edges_s,
        to_longest=limits.masks_padding,
        full_context_s=limits.context_s if full_context else None,
    )


def validation_options(config: TrainConfig, limits: Limits, *, full_context: bool) -> ScoringOptions:
    """Returns the options for scoring the validation set, with `full_context` also at that of a shortened model."""
    is_shortened = has_full_context(config, limits) and context_of(config, limits.context_s) < limits.context_s
    return scoring_options(config, limits, full_context=full_context and is_shortened)


def describe_mix(config: TrainConfig, joined: JoinedSet, rows: TrainingRows) -> dict[str, Any]:
    """Returns the description of a mix for the journal: counts of the clips that are trained on, and their hours."""
    groups, durations_s = mixture_of(config, joined, rows).groups, rows.selection.durations_s
    members = [
        {
            "name": member.name,
            "key": joined.members[number].prepared.key,
            "language": member.language,
            "weight": member.weight,
            **_counts([group for group in groups if group.member == number], durations_s),
        }
        for number, member in enumerate(config.data.mix)
    ]
    names = sorted({group.language for group in groups})
    languages = {name: _counts([group for group in groups if group.language == name], durations_s) for name in names}
    draws = sum(group.draws for group in groups)
    temperature = config.data.mix_temperature
    return {"temperature": temperature, "draws_per_epoch": draws, "members": members, "languages": languages}


def _counts(groups: list[Group], durations_s: np.ndarray) -> dict[str, Any]:
    seconds = sum(float(durations_s[group.rows].sum()) for group in groups)
    return {
        "clips": sum(len(group.rows) for group in groups),
        "hours": round(seconds / 3600, 4),
        "share": round(sum(group.share for group in groups), 6),
        "draws_per_epoch": sum(group.draws for group in groups),
    }


def mix_lines(mix: dict[str, Any]) -> Iterator[str]:
    """Yields lines about a mix for people: one for each member, and one for each language if there are several."""
    temperature = f", languages by temperature {mix['temperature']:g}" if mix["temperature"] is not None else ""
    yield f"mix: {mix['draws_per_epoch']} draws an epoch{temperature}"
    for member in mix["members"]:
        weight = f", weight {member['weight']:g}" if member["weight"] is not None else ""
        yield f"mix: {member['name']}{weight}: {_line(member)}"
    if len(mix["languages"]) > 1:
        yield from (f"mix: language {name}: {_line(counts)}" for name, counts in mix["languages"].items())


def _line(counts: dict[str, Any]) -> str:
    clips, draws = counts["clips"], counts["draws_per_epoch"]
    share = f"{counts['share']:.1%}, {draws} draws, each clip {draws / clips:.2f} times"
    return f"{counted(clips, 'clip')} ({counts['hours']:.2f} h) · {share}"
