"""The stock recipe for CTC: wav2vec2 fine-tuning with datasets.map and Trainer, as the Hugging Face examples have it.

Under torchrun: normalized samples by datasets.map, batches grouped by length and padded to their longest clip, the best
path of each clip and jiwer for the evaluation. Nothing of Rayscribe is used.

    python -m torch.distributed.run --nproc_per_node 2 -m tests.benchmarks.comparison.stock_ctc_recipe train …
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
from datasets import Dataset, disable_progress_bars
from transformers import (
    AutoFeatureExtractor,
    AutoModelForCTC,
    AutoTokenizer,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    Wav2Vec2Processor,
    set_seed,
)

from tests.benchmarks.comparison.turns import Turns, training_turns

SAMPLING_RATE_HZ = 16_000
IGNORED_LABEL = -100


@dataclass(frozen=True)
class CtcCollator:
    """Pads a batch to its longest clip, as the examples' DataCollatorCTCWithPadding."""

    processor: Any

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        inputs = [{"input_values": item["input_values"]} for item in items]
        batch = self.processor.feature_extractor.pad(inputs, padding=True, return_tensors="pt")
        tokens = self.processor.tokenizer.pad([{"input_ids": item["labels"]} for item in items], return_tensors="pt")
        return {**batch, "labels": tokens["input_ids"].masked_fill(tokens.attention_mask.ne(1), IGNORED_LABEL)}


def clips_of(given: argparse.Namespace, manifest: Path, processor: Any) -> Dataset:
    """Samples and labels of a manifest's rows."""

    def features(item: dict[str, str]) -> dict[str, Any]:
        samples, rate_hz = soundfile.read(item["path"], dtype="float32")
        if rate_hz != SAMPLING_RATE_HZ:
            samples = soxr.resample(samples, rate_hz, SAMPLING_RATE_HZ)
        values = processor.feature_extractor(samples, sampling_rate=SAMPLING_RATE_HZ).input_values[0]
        return {"input_values": values, "length": len(values), "labels": processor.tokenizer(item["text"]).input_ids}

    with manifest.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))[: given.clips]
    clips = Dataset.from_list([{"path": str(manifest.parent / row["path"]), "text": row["text"]} for row in rows])
    return clips.map(features, remove_columns=clips.column_names)


def make_trainer(given: argparse.Namespace, training: TrainingArguments, callbacks: list[TrainerCallback]) -> Trainer:
    """The recipe's trainer."""
    parts = AutoFeatureExtractor.from_pretrained(given.model), AutoTokenizer.from_pretrained(given.model)
    processor = Wav2Vec2Processor(feature_extractor=parts[0], tokenizer=parts[1])

    def metrics(prediction: Any) -> dict[str, float]:
        ids, labels = prediction.predictions, prediction.label_ids
        ids[ids == IGNORED_LABEL] = processor.tokenizer.pad_token_id
        labels[labels == IGNORED_LABEL] = processor.tokenizer.pad_token_id
        spoken = processor.tokenizer.batch_decode(labels, group_tokens=False)
        return {"wer": 100 * jiwer.wer(spoken, processor.tokenizer.batch_decode(ids))}

    with training.main_process_first(local=False):
        train, score = (clips_of(given, given.speech / f"{name}.csv", processor) for name in ("train", "score-short"))
    return Trainer(
        model=AutoModelForCTC.from_pretrained(given.model, mask_time_prob=0.0, layerdrop=0.0),
        args=training,
        train_dataset=train,
        eval_dataset=score,
        data_collator=CtcCollator(processor),
        compute_metrics=metrics,
        preprocess_logits_for_metrics=lambda logits, labels: logits.argmax(dim=-1),
        processing_class=processor.feature_extractor,
        callbacks=callbacks,
    )


def train(given: argparse.Namespace, training: TrainingArguments) -> None:
    """Trains a few steps a turn."""
    step_clips = given.batch * training.world_size
    turns = training_turns(given.turns, training.process_index, given.turn_steps, step_clips)
    make_trainer(given, training, [turns()]).train()


def evaluate(given: argparse.Namespace, training: TrainingArguments) -> None:
    """Scores the clips in every turn, once before, uncounted."""
    trainer = make_trainer(given, training, [])
    trainer.evaluate()
    turns = Turns(given.turns, training.process_index)
    while turns.wait():
        began = time.perf_counter()
        metrics = trainer.evaluate()
        seconds = time.perf_counter() - began
        clips = trainer.num_examples(trainer.get_eval_dataloader())
        turns.done({"clips": clips, "seconds": seconds, "wer": float(metrics["eval_wer"])})


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=("train", "evaluate"))
    for name in ("model", "speech", "work"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--turns", required=True, help="address of the benchmark")
    for name in ("clips", "batch", "steps", "turn-steps"):
        parser.add_argument(f"--{name}", type=int, default=1)
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one verb on every rank."""
    given = _parser().parse_args(arguments)
    transformers.logging.set_verbosity_error()
    disable_progress_bars()
    set_seed(0)
    training = TrainingArguments(
        output_dir=str(given.work),
        per_device_train_batch_size=given.batch,
        per_device_eval_batch_size=given.batch,
        learning_rate=1e-4,
        max_steps=given.steps,
        train_sampling_strategy="group_by_length",
        length_column_name="length",
        eval_strategy="no",
        save_strategy="no",
        logging_steps=given.turn_steps,
        report_to=[],
        use_cpu=not torch.cuda.is_available(),
        disable_tqdm=True,
        dataloader_pin_memory=torch.cuda.is_available(),
    )
    # Asking for the device starts the process group.
    assert training.device is not None
    {"train": train, "evaluate": evaluate}[given.verb](given, training)
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
