"""Some optimizer steps of Rayscribe's trainer and of the stock recipe's, timed, and the memory that they take."""

import time
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, TrainerCallback

from tests.gpu.device import ON_GPU
from tests.gpu.sizes import FULL_CONTEXT_S, Size, Speech
from tests.trainers.synthetic import RATE_HZ, speechlike
from trainers.config.schema import TrainConfig
from trainers.distributed.session import LocalSession
from trainers.models.recognizer import IGNORED_LABEL, Recognizer
from trainers.training.arguments import silence_libraries, training_arguments
from trainers.training.callbacks import Reseed
from trainers.training.planning import plan_training
from trainers.training.schedule import Schedule
from trainers.training.tasks import Length
from trainers.training.trainer.compiling import compile_model
from trainers.training.trainer.planned_batches import PlannedBatches
from trainers.training.trainer.speech_trainer import SpeechTrainer

# Steps before the clock starts: allocations, kernels chosen, optimizer states made.
WARM_UP = 3 if ON_GPU else 1


class Timed(NamedTuple):
    """What some steps took.

    Attributes:
        seconds: Of the steps after the warm-up.
        clips: Trained on in them.
        audio_s: Of those clips, without padding.
        flops: Computed in them, see `Size.flops`.
        peak_bytes: Most memory that tensors took, over all steps; 0 on a CPU.
        compiled: Whether layers were compiled.
    """

    seconds: float
    clips: int
    audio_s: float
    flops: float
    peak_bytes: int
    compiled: bool = False


class Clock(TrainerCallback):
    """Reads the time when the device has ended the warm-up, and when it has ended all steps; nothing is saved."""

    def __init__(self, steps: int):
        self._steps = steps
        self.read: list[float] = []

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in (WARM_UP, self._steps):
            if ON_GPU:
                torch.cuda.synchronize()
            self.read.append(time.perf_counter())
        control.should_save = control.should_evaluate = False


def reset_peak() -> None:
    """Frees what is free, and counts memory anew."""
    if ON_GPU:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()


def peak_bytes() -> int:
    """Since `reset_peak`."""
    return int(torch.cuda.max_memory_allocated()) if ON_GPU else 0


def our_steps(recognizer: Recognizer, speech: Speech, made: TrainConfig, size: Size, folder: Path) -> Timed:
    """The steps of a config by Rayscribe's trainer, `training.max_steps` of them."""
    silence_libraries()
    reset_peak()
    steps = made.training.max_steps or 1
    plan, clips = plan_training(made, speech.prepared, recognizer, 1)
    arguments = training_arguments(made, output_dir=folder, accumulation=plan.shape.accumulation, on_gpu=ON_GPU)
    clock = Clock(steps)
    trainer = SpeechTrainer(
        recognizer=recognizer,
        arguments=arguments,
        batches=PlannedBatches(plan, 0, clips.reader.prefetch, 0),
        schedule=Schedule([Length(steps, None)], plan.steps_per_epoch),
        clips=clips,
        evaluate=lambda step: {},
        callbacks=[Reseed(1, 0), clock],
    )
    if made.training.torch_compile:
        compile_model(trainer, made, LocalSession(0, 1, 0))
    trainer.train()
    batches = [plan.micro_batches(step % plan.steps_per_epoch, 0) for step in range(WARM_UP, steps)]
    pairs = [(rows, edge_s) for step in batches for rows, edge_s in step]
    tokens = [int(clips.labels.lengths[rows].max()) for rows, _ in pairs]
    durations_s = speech.prepared.index["duration_s"].to_numpy()
    return Timed(
        clock.read[1] - clock.read[0],
        sum(len(rows) for rows, _ in pairs),
        float(sum(durations_s[rows].sum() for rows, _ in pairs)),
        sum(len(rows) * size.flops(edge_s, width) for (rows, edge_s), width in zip(pairs, tokens, strict=True)),
        peak_bytes(),
        trainer.compiled,
    )


def stock_steps(size: Size, speech: Speech, made: TrainConfig, processor: Any, folder: Path) -> Timed:
    """The same steps as the examples train: features made before and padded to 30 s, Seq2SeqTrainer and its loss.

    Args:
        size: The model's.
        speech: The clips, taken in order.
        made: Of it are batch, precision, checkpointing and number of steps.
        processor: As of the model that Rayscribe trains.
        folder: Where the Trainer would save.
    """
    reset_peak()
    part, steps = made.training, made.training.max_steps or 1
    batch = part.per_device_train_batch_size
    rows = [number % len(speech.texts) for number in range(steps * batch)]
    clips = [stock_clip(processor, speech.durations_s[row], speech.texts[row]) for row in range(len(speech.texts))]
    clock = Clock(steps)
    trainer = Seq2SeqTrainer(
        model=size.new_model(),
        args=Seq2SeqTrainingArguments(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=batch,
            learning_rate=part.learning_rate,
            bf16=part.bf16,
            gradient_checkpointing=part.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False} if part.gradient_checkpointing else None,
            use_cpu=not ON_GPU,
            save_strategy="no",
            logging_steps=1000,
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        ),
        train_dataset=[clips[row] for row in rows],
        data_collator=stock_collate,
        callbacks=[clock],
    )
    trainer.train()
    taken = rows[WARM_UP * batch :]
    widest = max(len(clip["labels"]) for clip in clips)
    return Timed(
        clock.read[1] - clock.read[0],
        len(taken),
        sum(speech.durations_s[row] for row in taken),
        len(taken) * size.flops(FULL_CONTEXT_S, widest),
        peak_bytes(),
    )


def stock_clip(processor: Any, duration_s: float, text: str) -> dict[str, Any]:
    """Features as WhisperFeatureExtractor makes them, padded to 30 s, and labels."""
    samples = speechlike(duration_s) / 32768
    extracted = processor.feature_extractor(samples, sampling_rate=RATE_HZ, return_tensors="pt")
    return {"input_features": extracted["input_features"][0], "labels": processor.tokenizer(text).input_ids}


def stock_collate(items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
    """As the examples' collator: labels padded with -100."""
    labels = [torch.tensor(item["labels"]) for item in items]
    return {
        "input_features": torch.stack([item["input_features"] for item in items]),
        "labels": torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORED_LABEL),
    }
