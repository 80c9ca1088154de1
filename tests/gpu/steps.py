"""Some optimizer steps of Rayscribe's trainer and of the stock recipe's, timed, and the memory that they take."""

import gc
import time
from itertools import cycle
from pathlib import Path
from typing import Any, NamedTuple

import torch
from transformers import Seq2SeqTrainer, Seq2SeqTrainingArguments, Trainer, TrainerCallback

from tests.gpu.device import ON_GPU
from tests.gpu.sizes import FULL_CONTEXT_S, Size, flops, processor_of
from tests.gpu.tones import Speech
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

# Steps before the clock starts: each length has come by then, with its allocations and kernels, and there are optimizer
# states. The first step of a length takes longer than all the others of whisper-tiny.
WARM_UP = 24 if ON_GPU else 1


class Pass(NamedTuple):
    """A forward and a backward pass.

    Attributes:
        clips: How many.
        audio_s: Their seconds, without padding.
        edge_s: What each is padded to.
        tokens: Of the longest transcript.
    """

    clips: int
    audio_s: float
    edge_s: float
    tokens: int


class Memory(NamedTuple):
    """Bytes of a GPU's memory, the most of all steps; on a CPU nothing counts the last two, and they are 0.

    Attributes:
        static: Weights, their gradients and the optimizer's states.
        activations: What a forward pass leaves for the backward pass, before there are gradients.
        peak: All tensors.
    """

    static: int
    activations: int
    peak: int


class Timed(NamedTuple):
    """What some steps took.

    Attributes:
        seconds: Of the steps after the warm-up.
        passes: In them.
        memory: Of all steps.
        compiled: Whether layers were compiled.
    """

    seconds: float
    passes: list[Pass]
    memory: Memory
    compiled: bool = False

    @property
    def clips(self) -> int:
        return sum(each.clips for each in self.passes)

    @property
    def audio_s(self) -> float:
        return sum(each.audio_s for each in self.passes)

    def flops(self, size: Size) -> int:
        """Of the model, see `sizes.flops`; the labels of CTC take none."""
        widths = [0 if size.is_ctc else each.tokens for each in self.passes]
        return sum(
            each.clips * flops(size, each.edge_s, tokens) for each, tokens in zip(self.passes, widths, strict=True)
        )


class Clock(TrainerCallback):
    """Reads the time when the device has ended the warm-up, and when it has ended all steps; nothing is saved."""

    def __init__(self, steps: int):
        self._steps = steps
        self.read: list[float] = []

    @property
    def seconds(self) -> float:
        began, ended = self.read
        return ended - began

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if state.global_step in (WARM_UP, self._steps):
            if ON_GPU:
                torch.cuda.synchronize()
            self.read.append(time.perf_counter())
        control.should_save = control.should_evaluate = False


class MemoryGauge:
    """Reads what a training takes."""

    def __init__(self, network: torch.nn.Module):
        self._network = network
        self._after_forward = 0
        network.register_forward_hook(self._forward_ended)
        # What trained before may be held by cycles.
        gc.collect()
        if ON_GPU:
            torch.cuda.empty_cache()
            torch.cuda.reset_peak_memory_stats()

    def _forward_ended(self, *_: Any) -> None:
        if ON_GPU:
            self._after_forward = max(self._after_forward, torch.cuda.memory_allocated())

    def read(self, trainer: Trainer) -> Memory:
        """Of a trainer that has trained the network."""
        assert trainer.optimizer is not None
        weights = list(self._network.parameters())
        states = [value for state in trainer.optimizer.state.values() for value in state.values()]
        kept = sum(value.nbytes for value in [*weights, *states] if isinstance(value, torch.Tensor))
        static = kept + sum(weight.nbytes for weight in weights if weight.requires_grad)
        peak = torch.cuda.max_memory_allocated() if ON_GPU else 0
        return Memory(static, max(0, self._after_forward - kept), peak)


def our_steps(recognizer: Recognizer, speech: Speech, made: TrainConfig, folder: Path) -> Timed:
    """The steps of a config by Rayscribe's trainer, `training.max_steps` of them."""
    silence_libraries()
    gauge = MemoryGauge(recognizer.model)
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
    durations_s = speech.prepared.index["duration_s"].to_numpy()
    passes = [
        Pass(len(rows), float(durations_s[rows].sum()), edge_s, int(clips.labels.lengths[rows].max()))
        for step in range(WARM_UP, steps)
        for rows, edge_s in plan.micro_batches(step, 0)
    ]
    return Timed(clock.seconds, passes, gauge.read(trainer), trainer.compiled)


class StockCollator:
    """Pads a batch as the examples' collators: the inputs of CTC to the longest, all labels with -100."""

    def __init__(self, processor: Any):
        self._processor = processor

    def __call__(self, items: list[dict[str, Any]]) -> dict[str, torch.Tensor]:
        extractor = self._processor.feature_extractor
        name = extractor.model_input_names[0]
        batch = extractor.pad([{name: item[name]} for item in items], padding=True, return_tensors="pt")
        labels = [torch.tensor(item["labels"]) for item in items]
        padded = torch.nn.utils.rnn.pad_sequence(labels, batch_first=True, padding_value=IGNORED_LABEL)
        return {**batch, "labels": padded}


def stock_steps(size: Size, speech: Speech, made: TrainConfig, folder: Path) -> Timed:
    """The same steps as the examples train: features made before, by the library's Trainer and the model's own loss.

    Whisper's are padded to 30 s. For CTC clips of like length come together, as `group_by_length` has them in a set so
    large that it pads next to nothing.

    Args:
        size: The model's, and its batch.
        speech: The clips.
        made: Of it are precision, checkpointing and number of steps.
        folder: Where the Trainer would save.
    """
    part, steps = made.training, made.training.max_steps or 1
    processor = processor_of(size, speech, made)
    features = {duration_s: stock_features(processor, duration_s) for duration_s in set(speech.durations_s)}
    clips = [
        {**features[duration_s], "labels": processor.tokenizer(text).input_ids}
        for duration_s, text in zip(speech.durations_s, speech.texts, strict=True)
    ]
    order = list(range(len(clips)))
    if size.is_ctc:
        # All lengths in the warm-up, and again and again after it.
        order = sorted(order[: WARM_UP * size.batch], key=lambda row: speech.durations_s[row])
    endless = cycle(order)
    batches = [[next(endless) for _ in range(size.batch)] for _ in range(steps)]
    clock, network = Clock(steps), size.new_model()
    gauge = MemoryGauge(network)
    trainer = (Trainer if size.is_ctc else Seq2SeqTrainer)(
        model=network,
        args=Seq2SeqTrainingArguments(
            output_dir=str(folder),
            max_steps=steps,
            per_device_train_batch_size=size.batch,
            learning_rate=part.learning_rate,
            bf16=part.bf16,
            gradient_checkpointing=part.gradient_checkpointing,
            gradient_checkpointing_kwargs={"use_reentrant": False} if part.gradient_checkpointing else None,
            use_cpu=not ON_GPU,
            train_sampling_strategy="sequential",
            save_strategy="no",
            logging_steps=1000,
            report_to=[],
            disable_tqdm=True,
            remove_unused_columns=False,
        ),
        train_dataset=[clips[row] for batch in batches for row in batch],
        data_collator=StockCollator(processor),
        callbacks=[clock],
    )
    trainer.train()
    passes = []
    for rows in batches[WARM_UP:]:
        durations_s = [speech.durations_s[row] for row in rows]
        edge_s = max(durations_s) if size.is_ctc else FULL_CONTEXT_S
        passes.append(Pass(len(rows), sum(durations_s), edge_s, max(len(clips[row]["labels"]) for row in rows)))
    return Timed(clock.seconds, passes, gauge.read(trainer))


def stock_features(processor: Any, duration_s: float) -> dict[str, Any]:
    """The extractor's, of a tone of this length."""
    extractor = processor.feature_extractor
    name = extractor.model_input_names[0]
    return {name: extractor(speechlike(duration_s) / 32768, sampling_rate=RATE_HZ)[name][0]}
