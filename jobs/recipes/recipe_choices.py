"""Chooses model, context, batch, steps and workers for data and a machine, with reasons as comments. Pure."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from jobs.recipes.found_machine import Machine

SCRATCH = "scratch"
HUB_PREFIX = "openai/whisper-"


@dataclass(frozen=True)
class WhisperSize:
    """A released Whisper.

    Attributes:
        name: The part of its Hub id after HUB_PREFIX.
        hub_bytes: Size of its weights' file on the Hub; 0 if not known.
        weights: Number of weights, from OpenAI's model card.
        learning_rate: A fortieth of that in its training, as Hugging Face's fine-tuning event recommends, but at most
            1e-5, since 24 steps at 3.75e-5 make tiny.en worse on read speech (docs/fine-tuning.md).
        clip_bytes: Memory that a clip of 30 s needs in training with recomputed activations; a high estimate from the
            bound in docs/gpu.md and the models' widths and depths.
    """

    name: str
    hub_bytes: float
    weights: float
    learning_rate: float
    clip_bytes: float


SIZES = (
    WhisperSize("tiny", 151e6, 39e6, 1e-5, 0.25e9),
    WhisperSize("base", 290e6, 74e6, 1e-5, 0.3e9),
    WhisperSize("small", 967e6, 244e6, 1e-5, 0.5e9),
    WhisperSize("medium", 3056e6, 769e6, 6.25e-6, 1.0e9),
    WhisperSize("large-v3", 3087e6, 1550e6, 5e-6, 1.9e9),
)
# Weight, gradient and AdamW's moments in float32, and a copy for autocast (docs/gpu.md).
BYTES_A_WEIGHT = 18
# Share of a GPU's memory that CUDA, its libraries and fragmentation leave.
USABLE = 0.85
LEAST_CLIPS, MOST_CLIPS = 4, 32
# With little speech, a larger model is not better after fine-tuning, and a first run should end soon.
MOST_WEIGHTS_BELOW_AN_HOUR = 300e6
WHISPER_CONTEXT_S = 30
# Longer contexts save too little compared with 30 s; by whether there is a GPU, where padding costs less.
LONGEST_SHORT_CONTEXT_S = {True: 15, False: 20}
MOST_CPUS_OF_A_WORKER = 16
# With more, each worker would have fewer than four clips per step.
MOST_WORKERS_ON_CPU = 4
CPU_STEPS, CPU_BATCH, CPU_HELD_OUT = 300, 8, 100
# With less memory, the batch is halved.
ENOUGH_MEMORY_BYTES = 7 * 2**30
GPU_HELD_OUT = 1000
LABEL_BYTES = 440
# Shares of the tuned weights in averages with the initial ones.
SHARES = [0.3, 0.5, 0.7]


@dataclass(frozen=True)
class Speech:
    """Facts about speech that decide a recipe.

    Attributes:
        train_clips: Number of train clips.
        train_hours: Hours of train clips, estimated from known durations.
        usual_s: Seconds that 99.5 % of all clips do not exceed. None if durations are not known.
        longest_s: Seconds of the longest clip. None if durations are not known.
        longest_text: Bytes of the longest transcript.
        language: Name of the language for the recipe. None for a Whisper that supports only English.
        is_english: True if all clips are English.
    """

    train_clips: int
    train_hours: float
    usual_s: float | None
    longest_s: float | None
    longest_text: int
    language: str | None
    is_english: bool = False


@dataclass(frozen=True)
class GivenModel:
    """A model that the user has named, or SCRATCH for a new one; `weights` is its approximate number of weights."""

    name: str
    weights: float

    @property
    def is_new(self) -> bool:
        return self.name == SCRATCH


@dataclass(frozen=True)
class Choices:
    """Parts of a recipe, without run and the locations of data.

    Comments are by path, for `to_commented_yaml`. `hub_bytes` is the size of the weights on the Hub; 0 if not known.
    """

    model: Mapping[str, Any]
    training: Mapping[str, Any]
    decode: Mapping[str, Any]
    scaling: Mapping[str, Any]
    data: Mapping[str, Any]
    checkpoint: Mapping[str, Any]
    comments: Mapping[str, str] = field(default_factory=dict)
    hub_bytes: float = 0


def clip_limits(machine: Machine, given: GivenModel | None) -> dict[str, int | None]:
    """Returns the limit of clips per split (None for no limit); without a GPU, one that takes only minutes."""
    if machine.gpus:
        return {"train": None, "validation": GPU_HELD_OUT, "test": None}
    most = None if given is not None and given.is_new else CPU_STEPS * CPU_BATCH
    return {"train": most, "validation": CPU_HELD_OUT, "test": CPU_HELD_OUT}


def choose(speech: Speech, machine: Machine, given: GivenModel | None) -> Choices:
    """Chooses the parts of a recipe."""
    size, reason = _size(speech, machine, given)
    chooser = _Chooser(speech, machine, size, is_new=given is not None and given.is_new)
    model, scaling = chooser.model(reason), chooser.scaling()
    training = chooser.training(scaling["num_workers"])
    decode = {"max_length": max(16, min(225, speech.longest_text + 16))}
    data, checkpoint = chooser.data(), chooser.checkpoint()
    return Choices(model, training, decode, scaling, data, checkpoint, chooser.comments, size.hub_bytes)


def _size(speech: Speech, machine: Machine, given: GivenModel | None) -> tuple[WhisperSize, str]:
    """Returns the model and the reason; a model that was not released by OpenAI gets the facts of the nearest size."""
    if given is not None:
        if given.is_new:
            return SIZES[0], "A new model: needs no download, and learns from your speech only."
        near = min(SIZES, key=lambda size: abs(math.log(size.weights / given.weights)))
        hub_bytes = near.hub_bytes if given.name == HUB_PREFIX + near.name else 0
        return replace(near, name=given.name, hub_bytes=hub_bytes, weights=given.weights), "As given by --model."
    size, reason = SIZES[0], "The smallest Whisper: the only one that a CPU trains in minutes."
    if machine.gpus:
        fitting = [size for size in SIZES if _clips_that_fit(size, machine) >= LEAST_CLIPS] or [SIZES[0]]
        memory = f"{machine.gpus[0].memory_bytes / 2**30:.0f} GiB"
        size, reason = fitting[-1], f"The largest Whisper that {memory} of a GPU's memory have room to train."
        if speech.train_hours < 1 and size.weights > MOST_WEIGHTS_BELOW_AN_HOUR:
            reason = f"Enough for less than an hour of speech; {memory} of memory have room up to {size.name}."
            size = next(size for size in reversed(fitting) if size.weights <= MOST_WEIGHTS_BELOW_AN_HOUR)
    return replace(size, name=HUB_PREFIX + size.name), reason


def _clips_that_fit(size: WhisperSize, machine: Machine) -> int:
    """Returns the number of clips that fit in one forward and backward pass on the smallest GPU."""
    free = USABLE * min(gpu.memory_bytes for gpu in machine.gpus) - BYTES_A_WEIGHT * size.weights
    return max(0, int(free / size.clip_bytes))


@dataclass(frozen=True)
class _Chooser:
    """Chooses the parts for a new or released model; each part adds its comments."""

    speech: Speech
    machine: Machine
    size: WhisperSize
    is_new: bool
    comments: dict[str, str] = field(default_factory=dict)

    @property
    def context_s(self) -> int | None:
        """Full seconds in which nearly all clips fit (all, if that costs little). None for Whisper's own 30 s."""
        usual_s, longest_s = self.speech.usual_s, self.speech.longest_s
        if usual_s is None or longest_s is None:
            return None
        context_s = max(1, min(WHISPER_CONTEXT_S, math.ceil(longest_s if longest_s <= 1.25 * usual_s else usual_s)))
        return context_s if self.is_new or context_s <= LONGEST_SHORT_CONTEXT_S[bool(self.machine.gpus)] else None

    def model(self, reason: str) -> dict[str, Any]:
        content: dict[str, Any] = {"init": SCRATCH if self.is_new else "pretrained"}
        if not self.is_new:
            content["name_or_path"] = self.size.name
        self.comments["model/init" if self.is_new else "model/name_or_path"] = reason
        content |= {"language": self.speech.language} if self.speech.language is not None else {}
        content["task"] = "transcribe"
        if self.context_s is not None:
            content["max_context_s"] = self.context_s
            self.comments["model/max_context_s"] = (
                f"Clips fit in {self.context_s} s; padding them to Whisper's 30 s would cost "
                f"{WHISPER_CONTEXT_S / self.context_s:.1f} times as much."
            )
        if self.is_new:
            content |= {"vocab_size": 400, "d_model": 128, "encoder_layers": 2, "decoder_layers": 2}
            content |= {"max_label_tokens": min(448, self.speech.longest_text + 16), "dropout": 0.1}
        elif self.context_s is not None and self.machine.gpus:
            content["full_context_matching"] = 0.1
            self.comments["model/full_context_matching"] = (
                "Keeps the model near what it was at 30 s (docs/short-context.md)."
            )
        return content

    def training(self, workers: int) -> dict[str, Any]:
        gpus, comments = self.machine.gpus, self.comments
        on_cpu = CPU_BATCH if self.machine.memory_bytes >= ENOUGH_MEMORY_BYTES else CPU_BATCH // 2
        per_device = min(MOST_CLIPS, max(1, _clips_that_fit(self.size, self.machine))) if gpus else on_cpu
        per_device = 16 if self.is_new else 2 ** int(math.log2(per_device))
        few = 16 if self.is_new or gpus else CPU_BATCH
        batch = max(workers, 32 if gpus and self.speech.train_hours >= 10 else few)
        every, steps, comments["training/max_steps"] = self._steps(batch)
        content: dict[str, Any] = {"max_steps": steps, "global_batch_size": batch}
        comments["training/global_batch_size"] = "Clips of a step, over all workers."
        content["per_device_train_batch_size"] = min(per_device, math.ceil(batch / workers))
        comments["training/per_device_train_batch_size"] = (
            "Clips that a worker computes at once. If memory runs out, halve it; steps stay the same."
        )
        content["per_device_eval_batch_size"] = per_device
        content |= {"learning_rate": 1e-3 if self.is_new else self.size.learning_rate, "warmup_steps": steps // 10}
        content |= {"eval_steps": every, "save_steps": every, "logging_steps": max(1, every // 5)}
        if self.context_s is not None and self.is_new:
            content["full_context_fraction"] = 0.1
            comments["training/full_context_fraction"] = (
                "Share of batches at 30 s, so that the model works in other programs, which pad to 30 s."
            )
        elif self.context_s is not None:
            content["full_context_eval"] = False
            comments["training/full_context_eval"] = "The score at 30 s takes long, so it is computed only at the end."
        if gpus:
            precision = "bf16" if all(gpu.has_bfloat16 for gpu in gpus) else "fp16"
            content |= {precision: True, "gradient_checkpointing": True}
        return content

    def _steps(self, batch: int) -> tuple[int, int, str]:
        hours, clips = self.speech.train_hours, self.speech.train_clips
        passes = 10 if self.is_new and hours < 1 else 5 if hours < 10 else 3
        wanted = math.ceil(passes * clips / batch)
        least, most = (1000, 3000) if self.is_new else (40, 20_000 if self.machine.gpus else CPU_STEPS)
        bounded = min(most, max(least, wanted))
        every = max(10, 10 * round(bounded / 50)) if bounded < 5000 else 1000
        steps = every * math.ceil(bounded / every)
        bound = f", as {least:,} steps are the least" if wanted < least else ""
        bound = f", as {most:,} steps are the most" if wanted > most else bound
        passes_over = f"About {steps * batch / clips:,.1f} passes over {clips:,} clips{bound}"
        return every, steps, f"{passes_over}; more may help while the WER falls."

    def scaling(self) -> dict[str, Any]:
        cpus = self.machine.cpus
        if count := len(self.machine.gpus):
            self.comments["scaling/num_workers"] = "One worker for each GPU of this machine."
            # One CPU is left for Ray Data.
            each = {"CPU": max(1, min(8, (cpus - 1) // count)), "GPU": 1}
            return {"num_workers": count, "use_gpu": True, "resources_per_worker": each}
        cpus = min(MOST_CPUS_OF_A_WORKER, cpus - 1 if cpus > 2 else cpus)
        if not self.is_new:
            self.comments["scaling/num_workers"] = "No GPU was found: one worker that computes with these CPUs."
            return {"num_workers": 1, "use_gpu": False, "resources_per_worker": {"CPU": cpus}}
        # On two cores this is 2.0 times as fast as one worker with two threads; 1.04 times with a model as large as
        # Whisper tiny.
        self.comments["scaling/num_workers"] = (
            "No GPU was found: so small a model is faster with several workers than with threads of one."
        )
        return {"num_workers": min(MOST_WORKERS_ON_CPU, cpus), "use_gpu": False, "resources_per_worker": {"CPU": 1}}

    def checkpoint(self) -> dict[str, Any]:
        content: dict[str, Any] = {"num_to_keep": 2}
        self.comments["checkpoint/num_to_keep"] = "The best by WER on the validation set."
        if not self.is_new:
            content["interpolate"] = SHARES
            self.comments["checkpoint/interpolate"] = (
                "Averages with the initial weights that are scored, too: they keep more of what these recognized."
            )
        return content

    def data(self) -> dict[str, Any]:
        speech, longest_s = self.speech, self.context_s or WHISPER_CONTEXT_S
        content: dict[str, Any] = {"max_duration_s": longest_s}
        self.comments["data/max_duration_s"] = "Longer clips are left out of training and reported. Seconds."
        if speech.longest_s is None or speech.longest_s > longest_s or speech.longest_text > LABEL_BYTES:
            content["too_long_eval"] = "skip"
            self.comments["data/too_long_eval"] = "Longer clips of validation and test are reported, but not scored."
        if speech.is_english and not self.is_new:
            content["normalizer"] = "whisper_english"
            self.comments["data/normalizer"] = (
                "Maps spellings of numbers, contractions and British words to one form, so that Whisper's spelling "
                "counts neither as an error nor as a gain. null: basic, as for other languages."
            )
        return content
