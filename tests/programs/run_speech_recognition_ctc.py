"""Fine-tunes a CTC speech recognizer, on Intel Gaudi where it is asked to."""

import importlib
import importlib.util
import json
import logging
import os
import re
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jiwer
import numpy as np
import soundfile
import torch
import transformers
from datasets import DatasetDict, load_dataset
from transformers import (
    AutoConfig,
    AutoFeatureExtractor,
    AutoModelForCTC,
    HfArgumentParser,
    Trainer,
    TrainerCallback,
    TrainingArguments,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2Processor,
    set_seed,
)
from transformers.trainer_utils import get_last_checkpoint

logger = logging.getLogger(__name__)


@dataclass
class ModelArguments:
    """Which weights are fine-tuned."""

    model_name_or_path: str = field(metadata={"help": "A folder, or a name on the Hub."})
    tokenizer_name_or_path: str | None = field(default=None)
    cache_dir: str | None = field(default=None)
    freeze_feature_encoder: bool = field(default=True)
    attention_dropout: float = field(default=0.0)
    activation_dropout: float = field(default=0.0)
    feat_proj_dropout: float = field(default=0.0)
    hidden_dropout: float = field(default=0.0)
    final_dropout: float = field(default=0.0)
    mask_time_prob: float = field(default=0.05)
    mask_time_length: int = field(default=10)
    mask_feature_prob: float = field(default=0.0)
    mask_feature_length: int = field(default=10)
    layerdrop: float = field(default=0.0)
    ctc_loss_reduction: str | None = field(default="mean")
    ctc_zero_infinity: bool = field(default=False)


@dataclass
class DataTrainingArguments:
    """What it is fine-tuned with."""

    train_file: str = field(metadata={"help": "A CSV or JSON file."})
    validation_file: str = field()
    overwrite_cache: bool = field(default=False)
    preprocessing_num_workers: int | None = field(default=None)
    audio_column_name: str = field(default="audio")
    text_column_name: str = field(default="text")
    chars_to_ignore: list[str] | None = field(default=None)
    eval_metrics: list[str] = field(default_factory=lambda: ["wer"])
    max_duration_in_seconds: float = field(default=20.0)
    min_duration_in_seconds: float = field(default=0.0)
    preprocessing_only: bool = field(default=False)
    unk_token: str = field(default="[UNK]")
    pad_token: str = field(default="[PAD]")
    word_delimiter_token: str = field(default="|")
    hold_at_step: int | None = field(default=None, metadata={"help": "Wait before this step for --hold_until."})
    hold_until: str | None = field(default=None, metadata={"help": "A file that is waited for."})


@dataclass
class GaudiTrainingArguments(TrainingArguments):
    """The Trainer's arguments, and those of Gaudi."""

    use_habana: bool = field(default=False)
    gaudi_config_name: str | None = field(default=None)
    use_lazy_mode: bool = field(default=True)
    use_hpu_graphs: bool = field(default=False)
    use_hpu_graphs_for_inference: bool = field(default=False)
    use_hpu_graphs_for_training: bool = field(default=False)
    disable_tensor_cache_hpu_graphs: bool = field(default=False)
    max_hpu_graphs: int | None = field(default=None)
    distribution_strategy: str = field(default="ddp")
    throughput_warmup_steps: int = field(default=0)
    adjust_throughput: bool = field(default=False)
    pipelining_fwd_bwd: bool = field(default=False)
    non_blocking_data_copy: bool = field(default=False)
    sdp_on_bf16: bool = field(default=False)

    def __post_init__(self) -> None:
        """Looks for the accelerator first, since all else is set up for it."""
        if self.use_habana:
            if importlib.util.find_spec("habana_frameworks") is None:
                print("--use_habana: habana_frameworks is not installed on this machine", file=sys.stderr)
                sys.exit(2)
            names = sorted(name for name in os.environ if name.startswith(("HABANA_", "PT_HPU_", "HCCL_")))
            print("HPU environment:", *(f"{name}={os.environ[name]}" for name in names), flush=True)
            importlib.import_module("habana_frameworks.torch.core")
        super().__post_init__()  # type: ignore[no-untyped-call]


@dataclass
class DataCollatorCTCWithPadding:
    """Pads samples and labels, each in its own way."""

    processor: Any

    def __call__(self, features: list[dict[str, Any]]) -> Any:
        inputs = [{"input_values": feature["input_values"]} for feature in features]
        labels = [{"input_ids": feature["labels"]} for feature in features]
        batch = self.processor.pad(inputs, padding="longest", return_tensors="pt")
        padded = self.processor.pad(labels=labels, padding="longest", return_tensors="pt")
        batch["labels"] = padded["input_ids"].masked_fill(padded.attention_mask.ne(1), -100)
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
    """Trains and evaluates, as asked for."""
    kinds: Any = (ModelArguments, DataTrainingArguments, GaudiTrainingArguments)
    parser = HfArgumentParser(kinds)
    model_args, data_args, training_args = parser.parse_args_into_dataclasses()
    logging.basicConfig(format="%(asctime)s - %(levelname)s - %(name)s - %(message)s")
    transformers.utils.logging.set_verbosity(training_args.get_process_log_level())
    last_checkpoint = None
    if training_args.do_train and Path(training_args.output_dir).is_dir():
        last_checkpoint = get_last_checkpoint(training_args.output_dir)
    if last_checkpoint is not None:
        logger.warning("Checkpoint detected, resuming training at %s.", last_checkpoint)
    set_seed(training_args.seed)
    raw = read_data(model_args, data_args)
    with training_args.main_process_first(desc="dataset map vocabulary creation"):
        tokenizer = tokenizer_of(raw, model_args, data_args, training_args)
    feature_extractor = AutoFeatureExtractor.from_pretrained(
        model_args.model_name_or_path, cache_dir=model_args.cache_dir
    )
    processor = Wav2Vec2Processor(feature_extractor=feature_extractor, tokenizer=tokenizer)
    model = load_model(model_args, tokenizer)
    with training_args.main_process_first(desc="dataset map preprocessing"):
        vectorized = vectorize(raw, data_args, processor)
    if data_args.preprocessing_only:
        return
    if training_args.process_index == 0:
        processor.save_pretrained(training_args.output_dir)
    trainer = Trainer(
        model=model,
        data_collator=DataCollatorCTCWithPadding(processor),
        args=training_args,
        compute_metrics=lambda prediction: error_rates(prediction, tokenizer, data_args.eval_metrics),
        train_dataset=vectorized["train"] if training_args.do_train else None,
        eval_dataset=vectorized["eval"] if training_args.do_eval else None,
        processing_class=processor,
        callbacks=[Hold(data_args.hold_at_step, data_args.hold_until)],
    )
    if training_args.do_train:
        train_result = trainer.train(resume_from_checkpoint=training_args.resume_from_checkpoint or last_checkpoint)
        trainer.save_model()
        trainer.log_metrics("train", train_result.metrics)
        trainer.save_metrics("train", train_result.metrics)
        trainer.save_state()
    if training_args.do_eval:
        metrics = trainer.evaluate()
        trainer.log_metrics("eval", metrics)
        trainer.save_metrics("eval", metrics)


def read_data(model_args: ModelArguments, data_args: DataTrainingArguments) -> Any:
    """The rows of the manifests, in lower case and without what is to be ignored."""
    files = {"train": data_args.train_file, "eval": data_args.validation_file}
    kind = "csv" if data_args.train_file.endswith(".csv") else "json"
    raw: DatasetDict = load_dataset(kind, data_files=files, cache_dir=model_args.cache_dir)
    ignored = f"[{''.join(data_args.chars_to_ignore)}]" if data_args.chars_to_ignore else None

    def clean(row: dict[str, Any], folder: str) -> dict[str, Any]:
        text = row[data_args.text_column_name]
        text = re.sub(ignored, "", text) if ignored is not None else text
        return {"target_text": text.lower() + " ", "path": str(Path(folder) / row[data_args.audio_column_name])}

    for split, path in files.items():
        raw[split] = raw[split].map(clean, fn_kwargs={"folder": str(Path(path).parent)})
    return raw


def tokenizer_of(raw: Any, model_args: ModelArguments, data_args: DataTrainingArguments, training_args: Any) -> Any:
    """A tokenizer of the characters of all transcripts, which it keeps in the output folder."""
    special = (data_args.word_delimiter_token, data_args.unk_token, data_args.pad_token)
    folder = model_args.tokenizer_name_or_path
    if folder is None:
        folder = training_args.output_dir
        vocabulary_file = Path(folder, "vocab.json")
        if not vocabulary_file.is_file():
            vocabulary_file.parent.mkdir(parents=True, exist_ok=True)
            letters = sorted(set("".join(text for split in raw.values() for text in split["target_text"])) - {" "})
            vocabulary = {token: number for number, token in enumerate([*letters, *special])}
            vocabulary_file.write_text(json.dumps(vocabulary), encoding="utf-8")
    delimiter, unknown, padding = special
    return Wav2Vec2CTCTokenizer.from_pretrained(
        folder, word_delimiter_token=delimiter, unk_token=unknown, pad_token=padding
    )


def load_model(model_args: ModelArguments, tokenizer: Any) -> Any:
    """The model with a new head of as many outputs as the tokenizer has tokens."""
    config = AutoConfig.from_pretrained(model_args.model_name_or_path, cache_dir=model_args.cache_dir)
    chosen = (
        "feat_proj_dropout",
        "attention_dropout",
        "activation_dropout",
        "hidden_dropout",
        "final_dropout",
        "mask_time_prob",
        "mask_time_length",
        "mask_feature_prob",
        "mask_feature_length",
        "layerdrop",
        "ctc_loss_reduction",
        "ctc_zero_infinity",
    )
    config.update({name: getattr(model_args, name) for name in chosen})
    config.update({"pad_token_id": tokenizer.pad_token_id, "vocab_size": len(tokenizer)})
    model = AutoModelForCTC.from_pretrained(
        model_args.model_name_or_path, cache_dir=model_args.cache_dir, config=config
    )
    if model_args.freeze_feature_encoder:
        model.freeze_feature_encoder()
    return model


def vectorize(raw: Any, data_args: DataTrainingArguments, processor: Any) -> Any:
    """Reads recordings, and makes labels of transcripts."""
    rate_hz = processor.feature_extractor.sampling_rate
    shortest, longest = data_args.min_duration_in_seconds * rate_hz, data_args.max_duration_in_seconds * rate_hz

    def prepare(row: dict[str, Any]) -> dict[str, Any]:
        samples, rate_hz = soundfile.read(row["path"], dtype="float32")
        values = processor.feature_extractor(samples, sampling_rate=rate_hz).input_values[0]
        labels = processor.tokenizer(row["target_text"].strip()).input_ids
        return {"input_values": values, "input_length": len(values), "labels": labels}

    return raw.map(
        prepare,
        remove_columns=next(iter(raw.values())).column_names,
        num_proc=data_args.preprocessing_num_workers,
        load_from_cache_file=not data_args.overwrite_cache,
        desc="preprocess datasets",
    ).filter(lambda length: shortest < length < longest, input_columns=["input_length"])


def error_rates(prediction: Any, tokenizer: Any, names: list[str]) -> dict[str, float]:
    """Of logits (N, T, V) and labels (N, L)."""
    ids = np.argmax(prediction.predictions, axis=-1)
    prediction.label_ids[prediction.label_ids == -100] = tokenizer.pad_token_id
    hypotheses = tokenizer.batch_decode(ids)
    references = tokenizer.batch_decode(prediction.label_ids, group_tokens=False)
    return {name: getattr(jiwer, name)(references, hypotheses) for name in names}


if __name__ == "__main__":
    main()
    if torch.distributed.is_initialized():
        torch.distributed.destroy_process_group()
