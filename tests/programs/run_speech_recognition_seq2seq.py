"""Fine-tunes a sequence-to-sequence speech recognizer with the Trainer of transformers."""

import logging
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import datasets
import jiwer
import soundfile
import torch
import transformers
from datasets import DatasetDict, load_dataset
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoModelForSpeechSeq2Seq,
    AutoProcessor,
    AutoTokenizer,
    HfArgumentParser,
    Seq2SeqTrainer,
    Seq2SeqTrainingArguments,
    TrainerCallback,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    """Which weights are fine-tuned."""

    model_name_or_path: str = field(metadata={"help": "A folder, or a name on the Hub."})
    config_name: str | None = field(default=None, metadata={"help": "Another config than the model's."})
    tokenizer_name: str | None = field(default=None, metadata={"help": "Another tokenizer than the model's."})
    feature_extractor_name: str | None = field(default=None, metadata={"help": "Another one than the model's."})
    cache_dir: str | None = field(default=None, metadata={"help": "Where downloads and data sets are kept."})
    use_fast_tokenizer: bool = field(default=True)
    model_revision: str = field(default="main")
    freeze_feature_encoder: bool = field(default=False)
    freeze_encoder: bool = field(default=False)
    apply_spec_augment: bool = field(default=False)


@dataclass
class DataTrainingArguments:
    """What it is fine-tuned with."""

    train_file: str | None = field(default=None, metadata={"help": "A CSV or JSON file."})
    validation_file: str | None = field(default=None)
    test_file: str | None = field(default=None)
    overwrite_cache: bool = field(default=False)
    preprocessing_num_workers: int | None = field(default=None)
    max_train_samples: int | None = field(default=None)
    max_eval_samples: int | None = field(default=None)
    audio_column_name: str = field(default="audio")
    text_column_name: str = field(default="text")
    max_duration_in_seconds: float = field(default=20.0)
    min_duration_in_seconds: float = field(default=0.0)
    preprocessing_only: bool = field(default=False)
    do_lower_case: bool = field(default=True)
    language: str | None = field(default=None)
    task: str = field(default="transcribe")
    hold_at_step: int | None = field(default=None, metadata={"help": "Wait before this step for --hold_until."})
    hold_until: str | None = field(default=None, metadata={"help": "A file that is waited for."})

    def files(self) -> dict[str, str]:
        """The file of each split that there is."""
        given = {"train": self.train_file, "eval": self.validation_file, "test": self.test_file}
        return {split: path for split, path in given.items() if path is not None}


@dataclass
class DataCollatorSpeechSeq2SeqWithPadding:
    """Pads features and labels, each in its own way."""

    processor: Any
    decoder_start_token_id: int

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        name = self.processor.model_input_names[0]
        inputs = [{name: feature[name]} for feature in features]
        labels = [{"input_ids": feature["labels"]} for feature in features]
        batch = self.processor.feature_extractor.pad(inputs, return_tensors="pt")
        padded = self.processor.tokenizer.pad(labels, return_tensors="pt")
        ids = padded["input_ids"].masked_fill(padded.attention_mask.ne(1), -100)
        # The model adds the start itself.
        if (ids[:, 0] == self.decoder_start_token_id).all():
            ids = ids[:, 1:]
        batch["labels"] = ids
        return batch


class Hold(TrainerCallback):
    """Waits before a step for a file."""

    def __init__(self, step: int | None, file: str | None):
        """`step` is counted from 1."""
        self._step, self._file = step, file

    def on_step_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        while self._file and state.global_step + 1 == self._step and not Path(self._file).exists():
            time.sleep(0.1)


def main() -> None:
    """Trains, evaluates and predicts, as asked for."""
    kinds: Any = (ModelArguments, DataTrainingArguments, Seq2SeqTrainingArguments)
    parser = HfArgumentParser(kinds)
    if len(sys.argv) == 2 and sys.argv[1].endswith(".json"):
        model_args, data_args, training_args = parser.parse_json_file(json_file=sys.argv[1])
    else:
        model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    set_up_logging(training_args)
    last_checkpoint = find_checkpoint(training_args)
    set_seed(training_args.seed)
    config, processor, model = load_model(model_args, data_args)
    vectorized = prepare_data(model_args, data_args, training_args, processor)
    if data_args.preprocessing_only:
        return
    trainer = Seq2SeqTrainer(
        model=model,
        args=training_args,
        train_dataset=vectorized["train"] if training_args.do_train else None,
        eval_dataset=vectorized["eval"] if training_args.do_eval else None,
        processing_class=processor,
        callbacks=[Hold(data_args.hold_at_step, data_args.hold_until)],
        data_collator=DataCollatorSpeechSeq2SeqWithPadding(processor, config.decoder_start_token_id),
        compute_metrics=lambda prediction: word_error_rate(prediction, processor.tokenizer),
    )
    if training_args.do_train:
        train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint)
        trainer.save_model()
        metrics = {**train_result.metrics, "train_samples": len(vectorized["train"])}
        trainer.log_metrics("train", metrics)
        trainer.save_metrics("train", metrics)
        trainer.save_state()
    if training_args.do_eval:
        metrics = trainer.evaluate(metric_key_prefix="eval")
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)
    if training_args.do_predict:
        metrics = trainer.predict(vectorized["test"], metric_key_prefix="predict").metrics or {}
        trainer.log_metrics("predict", metrics)
        trainer.save_metrics("predict", metrics)


def set_up_logging(training_args: Any) -> None:
    """The main process says more than the others."""
    logging.basicConfig(
        format="%(asctime)s - %(levelname)s - %(name)s - %(message)s", handlers=[logging.StreamHandler(sys.stdout)]
    )
    level = training_args.get_process_log_level()
    logger.setLevel(level)
    datasets.utils.logging.set_verbosity(level)
    transformers.utils.logging.set_verbosity(level)
    logger.warning(
        "Process rank: %s, device: %s, distributed training: %s, 16-bits training: %s",
        training_args.local_rank,
        training_args.device,
        training_args.parallel_mode.value == "distributed",
        training_args.fp16,
    )


def find_checkpoint(training_args: Any) -> str | None:
    """The newest checkpoint in the output folder.

    Raises:
        ValueError: something else lies there.
    """
    folder = Path(training_args.output_dir)
    if not training_args.do_train or not folder.is_dir():
        return None
    found: str | None = get_last_checkpoint(folder)
    if found is None and any(folder.iterdir()):
        raise ValueError(f"Output directory ({folder}) already exists and is not empty.")
    if found is not None:
        logger.warning("Checkpoint detected, resuming training at %s.", found)
    return found


def load_model(model_args: ModelArguments, data_args: DataTrainingArguments) -> tuple[Any, Any, Any]:
    """The model, its config, and its processor."""
    path, more = model_args.model_name_or_path, {"cache_dir": model_args.cache_dir}
    config = AutoConfig.from_pretrained(model_args.config_name or path, revision=model_args.model_revision, **more)
    if getattr(config, "model_type", None) == "whisper":
        config.update({"apply_spec_augment": model_args.apply_spec_augment})
    feature_extractor = AutoFeatureExtractor.from_pretrained(model_args.feature_extractor_name or path, **more)
    tokenizer = AutoTokenizer.from_pretrained(
        model_args.tokenizer_name or path, use_fast=model_args.use_fast_tokenizer, **more
    )
    model = AutoModelForSpeechSeq2Seq.from_pretrained(path, config=config, **more)
    if model.config.decoder_start_token_id is None:
        raise ValueError("Make sure that `config.decoder_start_token_id` is correctly defined")
    if model_args.freeze_feature_encoder:
        model.freeze_feature_encoder()
    if model_args.freeze_encoder:
        model.freeze_encoder()
        model.model.encoder.gradient_checkpointing = False
    if data_args.language is not None:
        tokenizer.set_prefix_tokens(language=data_args.language, task=data_args.task)
    processor = AutoProcessor.from_pretrained(path, **more)
    processor.feature_extractor, processor.tokenizer = feature_extractor, tokenizer
    return config, processor, model


def prepare_data(
    model_args: ModelArguments, data_args: DataTrainingArguments, training_args: Any, processor: Any
) -> Any:
    """Reads recordings, and makes features and labels of them."""
    files = data_args.files()
    kind = "csv" if next(iter(files.values())).endswith(".csv") else "json"
    raw: DatasetDict = load_dataset(kind, data_files=files, cache_dir=model_args.cache_dir)
    for split, most in (("train", data_args.max_train_samples), ("eval", data_args.max_eval_samples)):
        if most is not None and split in raw:
            raw[split] = raw[split].select(range(most))
    extractor, name = processor.feature_extractor, processor.model_input_names[0]

    def prepare(row: dict[str, Any], folder: str) -> dict[str, Any]:
        samples, rate_hz = soundfile.read(Path(folder) / row[data_args.audio_column_name], dtype="float32")
        text = row[data_args.text_column_name]
        return {
            name: extractor(samples, sampling_rate=rate_hz)[name][0],
            "input_length": len(samples),
            "labels": processor.tokenizer(text.lower() if data_args.do_lower_case else text).input_ids,
        }

    shortest, longest = (
        limit * extractor.sampling_rate
        for limit in (data_args.min_duration_in_seconds, data_args.max_duration_in_seconds)
    )
    with training_args.main_process_first(desc="dataset map pre-processing"):
        for split, path in files.items():
            raw[split] = (
                raw[split]
                .map(
                    prepare,
                    fn_kwargs={"folder": str(Path(path).parent)},
                    remove_columns=raw[split].column_names,
                    num_proc=data_args.preprocessing_num_workers,
                    load_from_cache_file=not data_args.overwrite_cache,
                    desc=f"preprocess {split} dataset",
                )
                .filter(lambda length: shortest < length < longest, input_columns=["input_length"])
            )
    return raw


def word_error_rate(prediction: Any, tokenizer: Any) -> dict[str, float]:
    """Of generated token ids (N, T) and labels (N, L)."""
    for ids in (prediction.predictions, prediction.label_ids):
        ids[ids == -100] = tokenizer.pad_token_id
    hypotheses = tokenizer.batch_decode(prediction.predictions, skip_special_tokens=True)
    references = tokenizer.batch_decode(prediction.label_ids, skip_special_tokens=True)
    return {"wer": jiwer.wer(references, hypotheses)}


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
