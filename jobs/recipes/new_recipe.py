"""Composes a recipe for data and a machine, and the manifests that it names. Writes no files."""

import json
import posixpath
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cluster_configs.rendering.commented_yaml import to_commented_yaml
from jobs.recipes.clip_splits import TEST, TRAIN, VALIDATION, Clip, draw, shared_texts, split_clips
from jobs.recipes.found_machine import Machine
from jobs.recipes.found_speech import ALL, FoundSpeech
from jobs.recipes.recipe_choices import SCRATCH, SIZES, Choices, GivenModel, Speech, choose, clip_limits
from jobs.recipes.speech_facts import MeasuredSpeech, Row, language_of, longest_text_bytes
from trainers.config.family_table import family_parts
from trainers.config.locations import RAY_DEFAULT_STORAGE
from trainers.config.parts.data_location import with_path
from trainers.config.parts.data_part import DataPart
from trainers.config.parts.run_part import FOLDERS_BESIDE_RUNS
from trainers.config.storage_location import is_remote
from trainers.config.wording import counted, format_bytes, format_duration
from trainers.data.sources.manifest_source import as_written
from trainers.errors import ConfigError, DataError
from trainers.models.language_names import code_or_name, whisper_code
from trainers.storage.json_files import to_jsonl

LEAST_CLIPS = 3
# With fewer clips, each word changes the score by percents.
LEAST_SCORED = 10
ENGLISH_ONLY = ".en"
# Released models that have a token for Cantonese.
CANTONESE, KNOW_CANTONESE = "yue", ("large-v3", "large-v3-turbo")
DOCS = "https://github.com/rayscribe/rayscribe/tree/main/docs"
# Approximate vocabulary size of all released Whispers.
TOKENS = 51_865


@dataclass(frozen=True)
class NewRecipe:
    """Files to write, and messages for the user.

    Attributes:
        recipe: The recipe's own file.
        texts: Content by file.
        messages: Findings and choices, one per line.
        run_folder: Folder of the future run.
    """

    recipe: Path
    texts: Mapping[Path, str]
    messages: tuple[str, ...]
    run_folder: str


@dataclass(frozen=True)
class Wishes:
    """The user's options for the recipe; `out` is its file. Options that are None are chosen automatically."""

    out: Path
    language: str | None = None
    model: GivenModel | None = None


def new_recipe(found: FoundSpeech, speech: MeasuredSpeech, machine: Machine, wishes: Wishes) -> NewRecipe:
    """Composes the recipe and its manifests.

    Raises:
        ConfigError: the language is not known, or the model does not support it.
        DataError: there are too few clips.
    """
    speech, repeats = _each_used_once(speech)
    everything = [row for rows in speech.rows.values() for row in rows]
    if len(everything) < LEAST_CLIPS:
        raise DataError(
            f"{found.place}: {len(everything)} clips, but at least {LEAST_CLIPS} are needed, for train, validation and "
            "test: add recordings; a model needs some hundreds to learn a voice"
        )
    language, known_by = None, ""
    if wishes.model is None or not wishes.model.name.endswith(ENGLISH_ONLY):
        language, known_by = language_of(everything, found, wishes.language)
    elif wishes.language is not None and code_or_name(wishes.language) != "en":
        raise ConfigError(
            f"--language {wishes.language!r}: {wishes.model.name} is for English only; leave out --language, or use a "
            f"model without {ENGLISH_ONLY}"
        )
    splits, notes = _splits(speech)
    limits = clip_limits(machine, wishes.model)
    drawn = {
        split: [rows[position] for position in draw([row["id"] for row in rows], limits[split])]
        for split, rows in splits.items()
    }
    less = [
        f"{split}: {len(drawn[split]):,} of {len(rows):,} clips are used, so that this machine needs only minutes"
        for split, rows in splits.items()
        if len(drawn[split]) < len(rows)
    ]
    facts = Speech(
        train_clips=len(drawn[TRAIN]),
        train_hours=speech.hours_of(len(drawn[TRAIN])),
        usual_s=speech.usual_s,
        longest_s=speech.longest_s,
        longest_text=longest_text_bytes(everything),
        language=language,
        is_english={code_or_name(row["language"] or language or "en") for row in everything} == {"en"},
    )
    choices = choose(facts, machine, wishes.model)
    _refuse_without_cantonese(language, choices)
    data, texts = _named_data(found, speech, drawn, wishes.out)
    name = run_name(wishes.out.stem)
    texts = {wishes.out: _text(found, choices, data, name, wishes.out), **texts}
    messages = [_described(found, speech, everything), *found.notes, *_left_out(speech), *repeats]
    messages += [f"language: {language}, {known_by}"] if language is not None else []
    messages += [f"clips: {', '.join(f'{split} {len(rows):,}' for split, rows in drawn.items())}", *notes, *less]
    few = [
        counted(len(drawn[split]), f"{split} clip") for split in (VALIDATION, TEST) if len(drawn[split]) < LEAST_SCORED
    ]
    messages += (
        [f"warning: scores of {' and '.join(few)} say little: add recordings, best of more speakers"] if few else []
    )
    messages += [f"machine: {machine}", _chosen(choices), *_fetched(choices)]
    return NewRecipe(wishes.out, texts, tuple(messages), f"{RAY_DEFAULT_STORAGE}/{name}")


def _refuse_without_cantonese(language: str | None, choices: Choices) -> None:
    name, released = choices.model.get("name_or_path"), family_parts()["whisper"].released
    is_cantonese = language is not None and whisper_code(language) == CANTONESE
    if is_cantonese and name in released.values() and name not in [released[size] for size in KNOW_CANTONESE]:
        raise ConfigError(
            f"language {language!r}: {name} has no token <|{CANTONESE}|> for Cantonese: use one of --model "
            f"{', '.join(KNOW_CANTONESE)} and scratch"
        )


def run_name(text: str) -> str:
    """Returns a valid name of a run, derived from any text."""
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", text).strip("-._")[:80] or "my-speech"
    return f"{name}-run" if name in FOLDERS_BESIDE_RUNS else name


def _each_used_once(speech: MeasuredSpeech) -> tuple[MeasuredSpeech, list[str]]:
    """Removes rows that repeat a recording or segment, which could otherwise be in two splits; returns notes on them.

    Does nothing if the data has both validation and test.
    """
    name = ALL if ALL in speech.rows else TRAIN
    if {VALIDATION, TEST} <= speech.rows.keys():
        return speech, []
    first: dict[tuple[str, float | None, float | None], Row] = {}
    others = [row for row in speech.rows[name] if first.setdefault(_recording_of(row), row) is not row]
    if not others:
        return speech, []
    differ = [row for row in others if row["text"].split() != first[_recording_of(row)]["text"].split()]
    notes = []
    if same := len(others) - len(differ):
        rows = counted(same, "row", "that repeats", "that repeat")
        notes.append(f"left out, {rows} a recording and its text: each is used once")
    if differ:
        row, kept = differ[0], first[_recording_of(differ[0])]
        notes.append(
            f"warning: left out, {counted(len(differ), 'row')} with another text of a recording than its first row, "
            f"such as {row['text']!r} for {kept['text']!r} of {kept['id']}: correct the texts"
        )
    return replace(speech, rows={**speech.rows, name: [*first.values()]}), notes


def _recording_of(row: Row) -> tuple[str, float | None, float | None]:
    """Returns the audio of a row: a recording, or a segment of one."""
    audio = row["audio"] if is_remote(row["audio"]) else posixpath.normpath(row["audio"])
    return (audio, None, None) if row["offset_s"] is None else (audio, row["offset_s"], row["duration_s"])


def _splits(speech: MeasuredSpeech) -> tuple[dict[str, list[Row]], list[str]]:
    given = dict(speech.rows)
    source = given.pop(ALL, None) or given.pop(TRAIN)
    wanted = [split for split in (TEST, VALIDATION) if split not in given]
    found: dict[str, list[Row]] = {TRAIN: source, **given}
    notes: list[str] = []
    if wanted:
        clips = [_clip(row) for row in source]
        drawn = split_clips(clips, wanted=wanted)
        for split in (TRAIN, *wanted):
            found[split] = [row for row, of in zip(source, drawn.splits, strict=True) if of == split]
        notes += drawn.notes
    if given:
        notes += [f"{' and '.join(given)}: as the data has {'it' if len(given) == 1 else 'them'}"]
        notes += _overlaps(found)
    return {split: found[split] for split in (TRAIN, VALIDATION, TEST)}, notes


def _clip(row: Row) -> Clip:
    recording = posixpath.join(row["folder"], posixpath.basename(row["audio"]))
    return Clip(row["id"], row["text"], row["speaker"], row["folder"], recording)


def _overlaps(splits: Mapping[str, Sequence[Row]]) -> list[str]:
    notes = []
    trained = {_recording_of(row) for row in splits[TRAIN]}
    for split in (VALIDATION, TEST):
        repeated = sum(_recording_of(row) in trained for row in splits[split])
        speakers = {row["speaker"] for row in splits[TRAIN]} & {row["speaker"] for row in splits[split]} - {None}
        texts = shared_texts([row["text"] for row in splits[split]], [row["text"] for row in splits[TRAIN]])
        if repeated:
            notes.append(f"warning: recordings of {split} that are also in train: {repeated:,}; remove them from one")
        if speakers:
            notes.append(f"warning: speakers of {split} that are also in train: {len(speakers):,}")
        if texts:
            notes.append(
                f"warning: clips of {split} whose texts are also in train: {texts:,} of {len(splits[split]):,}"
            )
    return notes


def _named_data(
    found: FoundSpeech, speech: MeasuredSpeech, drawn: Mapping[str, list[Row]], out: Path
) -> tuple[dict[str, Any], dict[Path, str]]:
    """Returns the recipe's data part, and the manifests to write; none if the recipe can name the existing files."""
    part = DataPart.model_construct()
    as_they_are = found.splits.keys() == drawn.keys() and all(
        split.location is not None and len(drawn[name]) == len(split.source.table)
        for name, split in found.splits.items()
    )
    columns = {split.columns for split in found.splits.values()}
    if as_they_are and len(columns) == 1:
        [(audio, text)] = columns
        named = {
            name: with_path(str(split.location), lambda path: _from(out.parent, path))
            for name, split in found.splits.items()
        }
        other: dict[str, Any] = {"audio_column_name": audio, "text_column_name": text, "encoding": found.encoding}
        other |= {"quoting": found.quoting, "ignore_columns": found.ignored}
        return {**named, **{name: value for name, value in other.items() if value != getattr(part, name)}}, {}
    folder = out.parent / f"{out.stem}-manifests"
    texts = {}
    for split, rows in drawn.items():
        moved = ({**row, "audio": _from(folder, row["audio"], below=out.parent)} for row in rows)
        texts[folder / f"{split}.jsonl"] = to_jsonl((as_written(row, part) for row in moved), split)
    return {split: f"{folder.name}/{split}.jsonl" for split in drawn}, texts


def _from(folder: Path, path: str, *, below: Path | None = None) -> str:
    """Returns a path relative to `folder` if it is inside `below`, by default `folder`, so that both can be moved."""
    # Symbolic links are kept: paths in a manifest are relative to its named location.
    start, top = (posixpath.normpath(each.absolute()) for each in (folder, below or folder))
    return path if is_remote(path) or not Path(path).is_relative_to(top) else posixpath.relpath(path, start)


def _described(found: FoundSpeech, speech: MeasuredSpeech, rows: Sequence[Row]) -> str:
    text = f"{found.place}: {found.kind}, {len(rows):,} clips"
    if speech.longest_s is None:
        return f"{text}; their durations are not known"
    return f"{text}, {format_duration(3600 * speech.hours_of(len(rows)))}, of up to {speech.longest_s:.1f} s"


def _left_out(speech: MeasuredSpeech) -> Iterator[str]:
    if speech.without_text:
        yield f"left out, recordings without a transcript: {speech.without_text:,}"
    if speech.unreadable:
        count = len(speech.unreadable)
        yield f"warning: left out, recordings that cannot be read: {count:,}, such as {speech.unreadable[0]}"


def _chosen(choices: Choices) -> str:
    model, training = choices.model, choices.training
    name = model.get("name_or_path", "a new model")
    context = f", clips of up to {model['max_context_s']} s" if "max_context_s" in model else ""
    return f"model: {name}{context}; {training['max_steps']:,} steps of {training['global_batch_size']} clips"


def _fetched(choices: Choices) -> Iterator[str]:
    """Yields a note if the weights must be downloaded from the Hub; weights in a folder have an absolute path."""
    name = choices.model.get("name_or_path", "/")
    if not name.startswith("/"):
        size = f" ({format_bytes(choices.hub_bytes)})" if choices.hub_bytes else ""
        yield f"weights: the first training downloads them from the Hub{size}; a new model needs none (--model scratch)"


def _text(found: FoundSpeech, choices: Choices, data: Mapping[str, Any], name: str, out: Path) -> str:
    model = dict(choices.model)
    if "name_or_path" in model:
        model["name_or_path"] = _from(out.parent, model["name_or_path"])
    content = {
        "run": {"name": name, "storage_path": None},
        "data": {**data, **choices.data},
        "model": model,
        "training": dict(choices.training),
        "decode": dict(choices.decode),
        "scaling": dict(choices.scaling),
        "checkpoint": dict(choices.checkpoint),
    }
    comments = {
        "run/name": "The same name continues an interrupted run; a new name starts from the beginning.",
        "run/storage_path": f"A folder or a URL (s3://…) for run folders. null: {RAY_DEFAULT_STORAGE}.",
        "data/train": "Paths are relative to this file's folder.",
        **choices.comments,
    }
    head = (
        f"Fine-tuning on {found.name}. Written by `rayscribe init`; you may change every value.\n"
        f"  rayscribe train {out.name}\n"
        f"All keys: {DOCS}/configuration.md"
    )
    return to_commented_yaml(content, comments, head)


def read_given_model(text: str) -> GivenModel:
    """Resolves `--model`: scratch, a folder of a Whisper, a Hub id, or the name of a size.

    Raises:
        ConfigError: the text does not name a Whisper model.
    """
    if text == SCRATCH:
        return GivenModel(SCRATCH, SIZES[0].weights)
    folder = Path(text).expanduser()
    if folder.is_dir():
        return GivenModel(posixpath.normpath(folder.absolute()), _weights_in(folder))
    whisper = family_parts()["whisper"]
    name = whisper.released.get(text, text)
    size = next((size for size in sorted(whisper.released, key=len, reverse=True) if size in name), None)
    if size is None or "whisper" not in name.lower():
        raise ConfigError(
            f"--model {text}: use scratch, or a Whisper's folder, id on the Hub (openai/whisper-small) or size "
            f"({', '.join(whisper.released)}); for other models, the recipe wav2vec2_finetune is an example "
            "(`rayscribe recipes`)"
        )
    released = whisper.model_construct(init="pretrained", name_or_path=whisper.released[size])
    return GivenModel(name, released.size.weights)


def _weights_in(folder: Path) -> float:
    try:
        config: dict[str, Any] = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        raise ConfigError(f"--model {folder}: its config.json cannot be read: name a Whisper's folder") from None
    if config.get("model_type") != "whisper":
        kind = config.get("model_type", "of an unknown type")
        raise ConfigError(f"--model {folder}: the model is {kind}, but init needs a Whisper: name one")
    width = config.get("d_model", 384)
    # An encoder layer has an attention and a feed-forward part; a decoder layer has a second attention.
    layers = 12 * config.get("encoder_layers", 4) + 16 * config.get("decoder_layers", 4)
    return float(layers * width**2 + config.get("vocab_size", TOKENS) * width)
