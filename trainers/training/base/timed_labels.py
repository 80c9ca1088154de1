"""Gives a share of the training clips labels with timestamps, so that a fine-tuned Whisper still writes them.

A clip of several segments of a recording (data.pack_segments_s) has the times of the manifest. Those of others are of
the segments that the initial weights write for them. They are computed before the first step, and stored below the
storage path by a hash of everything that determines them; each run has a copy:

base_scores/<hash>/segments.jsonl       a line for each clip: id and segments, each with text, start and end in seconds;
                                        null if the weights write another text, or one that does not end
"""

import json
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from trainers.config.locations import storage_path_of
from trainers.config.parts.run_part import BASE_SCORES
from trainers.config.wording import counted
from trainers.data.batch_plan import IntArray
from trainers.data.selection import drawn_clips, select_training
from trainers.data.sources.packing import SEGMENTS
from trainers.distributed.console import ProgressCounter
from trainers.distributed.console.events import Stage
from trainers.models.labels import clip_languages, labels_of
from trainers.models.recognizer import Recognizer, Segment
from trainers.models.sources.model_files import FIELDS
from trainers.run_folder.layout import ATTEMPTS, RunFolder, version_of
from trainers.scoring.batches import BatchRecognizer, batches_of
from trainers.scoring.ranking import ranking_rate
from trainers.storage import open_storage
from trainers.training.arguments import autocast_dtype
from trainers.training.base.base_scores import hash_of_content, weights_identity
from trainers.training.base.initial_model import open_initial
from trainers.training.base.placed_segments import place
from trainers.training.planning import bounds_of, cache_bytes, label_sizes
from trainers.training.worker_context import ResumePoint, WorkerContext

# Increased when the same weights give other segments, so that those of older versions are not reused.
SEGMENTS_VERSION = 1
FILE = "segments.jsonl"


def find_segments(context: WorkerContext, weights: ResumePoint | None) -> None:
    """Finds the segments of the training clips that get timestamps, and adds them to the journal.

    Does nothing if the run has them, or keeps no timestamps. Every rank calls this.
    """
    session, share = context.session, context.config.training.keep_timestamps
    if not share or session.broadcast(lambda: context.writer.check().segments, "looking for segments") is not None:
        return
    index, what = context.task.sets["train"].index, "finding segments of training clips"
    known = _packed(index)
    chosen = np.array(
        [row for row in drawn_clips(index["id"].to_pylist(), share).tolist() if row not in known], np.int64
    )
    if not len(chosen):
        return
    session.show_from_main(Stage("timestamps", what))
    key = _key(context, weights)
    url = f"{storage_path_of(context.config)}/{BASE_SCORES}/{key}"
    folder = RunFolder(open_storage(url, context.config.run.storage_options))
    if not session.broadcast(lambda: folder.storage.exists(FILE), what):
        recognizer = open_initial(context, weights)
        recognizer.model.to(context.device).eval()
        rows = _found(context, recognizer, chosen, what)
        if session.is_main_process:
            folder.write_jsonl(FILE, rows)
    session.broadcast(lambda: _enter(context, folder), what)


def read_segments(context: WorkerContext) -> dict[str, list[Segment]]:
    """Returns the segments of each clip whose label has timestamps, by id; empty if the run keeps none."""
    if not (share := context.config.training.keep_timestamps):
        return {}
    index = context.task.sets["train"].index
    ids, known = index["id"].to_pylist(), _packed(index)
    found = {ids[row]: known[row] for row in drawn_clips(ids, share).tolist() if known.get(row)}
    if (file := context.writer.journal.read().segments) is not None:
        rows = [json.loads(line) for line in context.folder.storage.read_bytes(file).splitlines()]
        found |= {row["id"]: [Segment(*each) for each in row["segments"]] for row in rows if row["segments"]}
    return found


def _packed(index: pa.Table) -> dict[int, list[Segment]]:
    """Returns the segments of packed clips, which the manifest has, by their positions."""
    if SEGMENTS not in index.column_names:
        return {}
    known = enumerate(index[SEGMENTS].to_pylist())
    return {row: [Segment(*each) for each in json.loads(text) if each[0]] for row, text in known if text is not None}


def _found(context: WorkerContext, recognizer: Recognizer, rows: IntArray, what: str) -> list[dict[str, Any]]:
    """Returns the lines of the file, on every rank; clips that training leaves out have none."""
    config, session, prepared = context.config, context.session, context.task.sets["train"]
    durations_s, texts = prepared.index["duration_s"].to_numpy(), prepared.index["text"].to_pylist()
    labels = labels_of(prepared, recognizer.codec, recognizer.processor, config.model.language)
    reader, batch_recognizer = prepared.reader(cache_bytes(config)), BatchRecognizer(recognizer)
    bounds = bounds_of(config, recognizer.limits)
    trained = select_training(prepared.index, label_sizes(labels, bounds), config.data, bounds).selection
    rows, languages = np.intersect1d(rows, trained.rows), clip_languages(prepared.index, config.model.language)
    edges_s = (recognizer.limits.context_s,)
    size = config.training.per_device_eval_batch_size
    batches = batches_of(durations_s, rows, edges_s, to_longest=False, batch_size=size)
    mine = batches[session.rank :: session.world_size]
    total = sum(len(positions) for positions, _ in mine)
    counter = ProgressCounter(what, total=total, unit="clips", show=session.show_from_main, every_s=10.0)
    autocast = autocast_dtype(config)
    found: dict[int, list[Segment] | None] = {}
    for positions, edge_s in mine:
        session.record_progress()
        clips = [reader.read(position) for position in positions]
        own = [labels[position] for position in positions]
        written = batch_recognizer.compute(
            clips, own, edge_s, lambda inputs, given: recognizer.segments(inputs, given, autocast)
        )
        for position, segments in zip(positions.tolist(), written, strict=True):
            language = languages[position] if languages is not None else config.model.language
            by_character = ranking_rate(language) == "cer"
            placed = place(texts[position], segments, by_character=by_character) if segments is not None else None
            found[position] = placed or None
        counter.advance(len(positions))
    everything: dict[int, list[Segment] | None] = {}
    for part in session.gather(found, what):
        everything |= part
    ids = prepared.index["id"].to_pylist()
    return [{"id": ids[position], "segments": everything[position]} for position in sorted(everything)]


def _key(context: WorkerContext, weights: ResumePoint | None) -> str:
    config = context.config
    known: Mapping[str, Any] = {
        "version": SEGMENTS_VERSION,
        "packages": {name: version_of(name) for name in ("torch", "transformers")},
        "weights": weights_identity(context, weights),
        "set": context.task.sets["train"].key,
        "share": config.training.keep_timestamps,
        "data": config.data.model_dump(mode="json", include={"min_duration_s", "max_duration_s", "empty_text"}),
        "model": config.model.model_dump(mode="json", exclude={*FIELDS, "init", "family"}),
        "autocast": str(autocast_dtype(config)),
    }
    return hash_of_content(known)


def _enter(context: WorkerContext, folder: RunFolder) -> None:
    """Copies the file to the run, and makes the journal name it; main process only."""
    writer, content = context.writer, folder.storage.read_bytes(FILE)
    target = f"{ATTEMPTS}/{writer.attempt}/segments-{writer.group.id}.jsonl"
    writer.folder.storage.write_bytes(target, content)
    rows = [json.loads(line) for line in content.splitlines()]
    timed = sum(row["segments"] is not None for row in rows)
    context.session.show_from_main(
        f"timestamps: found for {timed} of {counted(len(rows), 'chosen training clip')}; for the others, the initial "
        "weights write another text, or one that does not end"
    )
    writer.append(lambda _: {"kind": "segments", "attempt": writer.attempt, "file": target})
