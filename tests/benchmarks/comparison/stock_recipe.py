"""The stock recipe: Whisper fine-tuning with datasets.map and Seq2SeqTrainer, as the Hugging Face examples have it.

Under torchrun: log-mel padded to 30 s by datasets.map on rank 0 first, stored in Arrow files that every rank maps;
a collator that pads features and labels; generate and jiwer for the evaluation. Nothing of Rayscribe is used.

    python -m torch.distributed.run --nproc_per_node 2 -m tests.benchmarks.comparison.stock_recipe prepare …
"""

import argparse
import csv
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jiwer
import soundfile
import soxr
import torch
import transformers
from datasets import Dataset, concatenate_datasets, disable_progress_bars
from torch.utils.data import DataLoader
from transformers import (
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    set_seed,
)

from tests.benchmarks.comparison.turns import Turns, training_turns

SAMPLING_RATE_HZ = 16_000
IGNORED_LABEL = -100


@dataclass(frozen=True)
class SpeechCollator:
    """Pads a batch, as the examples' DataCollatorSpeechSeq2SeqWithPadding."""

    processor: Any
    start_id: int

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        features = [{"input_features": item["input_features"]} for item in items]
        batch = self.processor.feature_extractor.pad(features, return_tensors="pt")
        tokens = self.processor.tokenizer.pad([{"input_ids": item["labels"]} for item in items], return_tensors="pt")
        labels = tokens["input_ids"].masked_fill(tokens.attention_mask.ne(1), IGNORED_LABEL)
        batch["labels"] = labels[:, 1:] if (labels[:, 0] == self.start_id).all() else labels
        return dict(batch)


def prepare(given: argparse.Namespace, training: Seq2SeqTrainingArguments) -> None:
    """Computes and stores features with datasets.map, then reads them into the memory of every rank, turn by turn."""
    processor = WhisperProcessor.from_pretrained(given.model)
    turns = Turns(given.turns, training.process_index)
    number = 0
    while turns.wait():
        folder = given.features / str(number)
        began = time.perf_counter()
        with training.main_process_first(local=False):
            if training.process_index == 0:
                map_features(given, processor, number * given.clips, folder)
        map_s = time.perf_counter() - began
        began = time.perf_counter()
        features = stored(folder)
        share = features.shard(training.world_size, training.process_index)
        loader = DataLoader(share, batch_size=given.batch, collate_fn=collator(processor))
        frames = [batch["input_features"].shape[-1] for batch in loader]
        torch.distributed.barrier()
        assert set(frames) == {3000}
        turns.done(
            {
                "clips": len(features),
                "map_s": map_s,
                "read_s": time.perf_counter() - began,
                "stored_bytes": sum(path.stat().st_size for path in folder.iterdir()),
                "audio_s": sum(float(row["duration"]) for row in rows_of(given, number * given.clips)),
            }
        )
        number += 1


def train(given: argparse.Namespace, training: Seq2SeqTrainingArguments) -> None:
    """Trains on stored features, a few steps a turn."""
    step_clips = given.batch * training.world_size
    turns = training_turns(given.turns, training.process_index, given.turn_steps, step_clips)
    make_trainer(given, training, [turns()]).train()


def evaluate(given: argparse.Namespace, training: Seq2SeqTrainingArguments) -> None:
    """Scores the same stored features with generate in every turn; one batch of each rank goes before, uncounted."""
    trainer = make_trainer(given, training, [])
    chosen = stored(given.features).select(range(given.clips))
    trainer.evaluate(chosen.select(range(given.batch * training.world_size)), max_new_tokens=given.max_new_tokens)
    turns = Turns(given.turns, training.process_index)
    while turns.wait():
        began = time.perf_counter()
        metrics = trainer.evaluate(chosen, max_new_tokens=given.max_new_tokens)
        seconds = time.perf_counter() - began
        turns.done({"clips": len(chosen), "seconds": seconds, "wer": metrics["eval_wer"]})


def make_trainer(
    given: argparse.Namespace, training: Seq2SeqTrainingArguments, callbacks: list[TrainerCallback]
) -> Seq2SeqTrainer:
    """The recipe's trainer on the stored features."""
    processor = WhisperProcessor.from_pretrained(given.model)
    model = WhisperForConditionalGeneration.from_pretrained(given.model)

    def metrics(prediction: Any) -> dict[str, float]:
        ids = prediction.label_ids
        ids[ids == IGNORED_LABEL] = processor.tokenizer.pad_token_id
        hypotheses = processor.tokenizer.batch_decode(prediction.predictions, skip_special_tokens=True)
        spoken = processor.tokenizer.batch_decode(ids, skip_special_tokens=True)
        return {"wer": 100 * jiwer.wer(spoken, hypotheses)}

    return Seq2SeqTrainer(
        model=model,
        args=training,
        train_dataset=stored(given.features),
        eval_dataset=stored(given.features),
        data_collator=collator(processor),
        compute_metrics=metrics,
        processing_class=processor.feature_extractor,
        callbacks=callbacks,
    )


def collator(processor: Any) -> SpeechCollator:
    """The collator of this tokenizer."""
    return SpeechCollator(processor, processor.tokenizer.convert_tokens_to_ids("<|startoftranscript|>"))


def stored(folder: Path) -> Dataset:
    """The features that datasets.map stored, mapped into memory."""
    return concatenate_datasets([Dataset.from_file(str(path)) for path in sorted(folder.glob("*.arrow"))])


def rows_of(given: argparse.Namespace, first: int) -> list[dict[str, str]]:
    """As many of the manifest's rows as one turn prepares."""
    with given.manifest.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))[first : first + given.clips]


def map_features(given: argparse.Namespace, processor: Any, first: int, folder: Path) -> None:
    """Stores features and labels of some rows with datasets.map."""

    def features(item: dict[str, str]) -> dict[str, Any]:
        samples, rate_hz = soundfile.read(item["path"], dtype="float32")
        if rate_hz != SAMPLING_RATE_HZ:
            samples = soxr.resample(samples, rate_hz, SAMPLING_RATE_HZ)
        extracted = processor.feature_extractor(samples, sampling_rate=SAMPLING_RATE_HZ)
        return {"input_features": extracted.input_features[0], "labels": processor.tokenizer(item["text"]).input_ids}

    folder.mkdir(parents=True)
    rows = rows_of(given, first)
    clips = Dataset.from_list([{"path": str(given.manifest.parent / row["path"]), "text": row["text"]} for row in rows])
    clips.map(
        features,
        remove_columns=clips.column_names,
        num_proc=given.num_proc if given.num_proc > 1 else None,
        cache_file_name=str(folder / "features.arrow"),
    )


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("prepare", "train", "evaluate"))
    for name in ("model", "manifest", "features", "work"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--turns", required=True, help="address of the benchmark")
    for name in ("clips", "num-proc", "batch", "steps", "turn-steps", "max-new-tokens"):
        parser.add_argument(f"--{name}", type=int, default=1)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one verb on every rank."""
    given = _parser().parse_args(arguments)
    transformers.logging.set_verbosity_error()
    disable_progress_bars()
    set_seed(0)
    training = Seq2SeqTrainingArguments(
        output_dir=str(given.work),
        per_device_train_batch_size=given.batch,
        per_device_eval_batch_size=given.batch,
        learning_rate=1e-4,
        max_steps=given.steps,
        eval_strategy="no",
        save_strategy="no",
        logging_steps=given.turn_steps,
        predict_with_generate=True,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    # Asking for the device starts the process group, which the verbs' barriers need.
    assert training.device is not None
    {"prepare": prepare, "train": train, "evaluate": evaluate}[given.verb](given, training)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
