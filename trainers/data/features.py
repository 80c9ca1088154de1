"""Computes a model's input from stored samples, on demand: Whisper's log-mel features, and those of other extractors.

On the CPU, the extractors compute clip by clip, that of wav2vec2-bert frame by frame, so a GPU would wait for them. Two
of them are therefore reimplemented here for a complete batch on the GPU, equal up to rounding; sums are in float64.
"""

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, Protocol, Self

import numpy as np
import torch
from torch.nn.functional import pad

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.frame_count import MEL_WINDOW, Convolution, FrameCount
from trainers.errors import ConfigError

# Divisor of stored samples.
INT16_RANGE = 32768.0
# Key, in the inputs, of the lengths of the model's input without padding, int64 (B,).
LENGTHS = "lengths"

# Floor of the mel power before the logarithm, and the range kept below the loudest frame, in log10 units;
# both from WhisperFeatureExtractor._torch_extract_fbank_features (and OpenAI's whisper/audio.py before it).
POWER_FLOOR_LOG10 = -10.0
DYNAMIC_RANGE_LOG10 = 8.0

# A matrix product of fewer columns uses another kernel on some CPUs, and differs from the reference in the last bit.
FEWEST_FRAMES = 64
# Added to a variance; from both extractors' normalization.
VARIANCE_FLOOR = 1e-7
# From SeamlessM4TFeatureExtractor._extract_fbank_features, which follows Kaldi.
FFT_LENGTH = 512
PREEMPHASIS = 0.97
MEL_FLOOR = 1.192092955078125e-07


class Features(Protocol):
    """Computes a model's inputs from clips."""

    @property
    def on_cpu(self) -> bool:
        """True if inputs are computed on the CPU, whatever the model's device is; clips then stay on the CPU."""

    def to(self, device: Any) -> Self:
        """Moves this to the model's device."""

    def inputs(self, clips: Sequence[torch.Tensor], edge_s: float | None) -> dict[str, torch.Tensor]:
        """Returns the model's inputs, and `LENGTHS` if its loss uses them.

        Args:
            clips: int16 stored samples of each clip, shape (T_i,), on the model's device, or on the CPU if `on_cpu` is
                True.
            edge_s: Seconds to which each clip is padded; None to pad to the longest clip of the batch.
        """

    def bins(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Returns a writable view of each clip's input, shape (frequency bins, frames); samples have one bin."""


def pad_samples(clips: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stacks int16 clips (T_i,) for transfer to the device.

    Returns:
        int16 samples of shape (B, max T_i), zeros after each clip, and int64 lengths of shape (B,).
    """
    lengths = torch.tensor([len(clip) for clip in clips], dtype=torch.int64)
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(clip) for clip in clips], batch_first=True), lengths


class LogMel(torch.nn.Module):
    """Computes input_features on the module's device, bit for bit like a WhisperFeatureExtractor.

    The reference pads the waveform with zeros to the full context and transforms all of it. Every frame of padding
    alone has the same known value, so only the real samples are transformed, and the rest is filled in. Raises
    ConfigError if the extractor dithers, so that its features are random.
    """

    on_cpu = False
    mel_filters: torch.Tensor
    window: torch.Tensor

    def __init__(self, feature_extractor: Any):
        super().__init__()
        if feature_extractor.dither:
            raise ConfigError(
                f"the feature extractor dithers by {feature_extractor.dither}: set dither to 0.0 in its "
                "preprocessor_config.json; features must be the same at every reading"
            )
        self.n_fft = int(feature_extractor.n_fft)
        self.hop_length = int(feature_extractor.hop_length)
        self.n_samples = int(feature_extractor.n_samples)
        self.sampling_rate_hz = int(feature_extractor.sampling_rate)
        filters = torch.from_numpy(feature_extractor.mel_filters).to(torch.float32)
        self.register_buffer("mel_filters", filters, persistent=False)
        self.register_buffer("window", torch.hann_window(self.n_fft), persistent=False)

    def _log_mel(self, waveform: torch.Tensor) -> torch.Tensor:
        """Returns the logarithm of the mel power of samples (…, T), shape (…, mel bins, frames)."""
        stft = torch.stft(waveform, self.n_fft, self.hop_length, window=self.window, return_complex=True)
        power = (stft[..., :-1].abs() ** 2).contiguous()
        filters = self.mel_filters.T
        # On a GPU in float64, never in TF32, which may be enabled for the model's own products.
        mel = (filters.double() @ power.double()).float() if power.is_cuda else filters @ power
        return mel.clamp_(min=10**POWER_FLOOR_LOG10).log10_()

    def frames(self, edge_s: float) -> int:
        """Returns the frame count of an utterance padded to `edge_s` seconds; even, since the encoder halves it."""
        return 2 * round(edge_s * self.sampling_rate_hz / self.hop_length / 2)

    def inputs(self, clips: Sequence[torch.Tensor], edge_s: float | None) -> dict[str, torch.Tensor]:
        """Returns input_features, float32 (B, mel bins, frames)."""
        seconds = edge_s if edge_s is not None else len(clips[0]) / self.sampling_rate_hz
        frames = self.frames(seconds)
        if self.window.is_cuda:
            # One transform of the batch, equal up to rounding; zeros follow shorter clips, as in the reference.
            together = torch.nn.utils.rnn.pad_sequence(list(clips), batch_first=True)
            return {"input_features": self(together, frames)}
        features = torch.empty(len(clips), len(self.mel_filters.T), frames)
        for row, clip in zip(features, clips, strict=True):
            self(clip, frames, out=row)
        return {"input_features": features}

    def bins(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        return list(inputs["input_features"])

    @torch.no_grad()
    def forward(self, samples: torch.Tensor, frames: int, out: torch.Tensor | None = None) -> torch.Tensor:
        """Returns the features of stored int16 samples (T,) or (B, T), T ≤ n_samples, on this module's device.

        Returns:
            float32 of shape (…, mel bins, frames), padded to `frames`, in the reference's scale; `out` itself if given.
        """
        waveform = samples.to(torch.float32) / INT16_RANGE
        # One window of zeros makes every frame that overlaps a real sample equal to the reference's; beyond the full
        # context the reference reflects, and so does this.
        longest = waveform.shape[-1]
        length = min(max(longest + self.n_fft, FEWEST_FRAMES * self.hop_length), self.n_samples)
        log_mel = self._log_mel(torch.nn.functional.pad(waveform, (0, length - longest)))
        floor = torch.clamp(log_mel.amax(dim=(-2, -1), keepdim=True) - DYNAMIC_RANGE_LOG10, min=POWER_FLOOR_LOG10)
        kept = min(frames, log_mel.shape[-1])
        features = log_mel.new_empty(*log_mel.shape[:-1], frames) if out is None else out
        features[..., :kept] = torch.maximum(log_mel, floor).add_(4.0).div_(4.0)[..., :kept]
        features[..., kept:] = (floor + 4.0) / 4.0
        return features


class NormalizedSamples(torch.nn.Module):
    """Samples for wav2vec2 and related models, normalized per clip to zero mean and unit variance if so configured."""

    def __init__(self, extractor: Any):
        super().__init__()
        self._normalizes = bool(extractor.do_normalize)

    def lengths(self, samples: Sequence[int]) -> list[int]:
        return list(samples)

    @torch.no_grad()
    def forward(self, clips: Sequence[torch.Tensor]) -> torch.Tensor:
        waveforms = _together(clips) / INT16_RANGE
        if self._normalizes:
            waveforms = _normalized(waveforms, [len(clip) for clip in clips], correction=0)
        return waveforms.float()


class MelFramePairs(torch.nn.Module):
    """Kaldi's log-mel frames, `stride` of them side by side; each bin of a clip has zero mean and unit variance."""

    window: torch.Tensor
    mel_filters: torch.Tensor

    def __init__(self, extractor: Any):
        super().__init__()
        self._stride = int(extractor.stride)
        self._frames = FrameCount((MEL_WINDOW,))
        self._pairs = FrameCount((MEL_WINDOW, Convolution(self._stride, self._stride)))
        self.register_buffer("window", torch.from_numpy(extractor.window).double(), persistent=False)
        self.register_buffer("mel_filters", torch.from_numpy(extractor.mel_filters).double(), persistent=False)

    def lengths(self, samples: Sequence[int]) -> list[int]:
        return [int(count) for count in self._pairs(samples)]

    @torch.no_grad()
    def forward(self, clips: Sequence[torch.Tensor]) -> torch.Tensor:
        waveforms = _together(clips)
        least, hop = MEL_WINDOW.kernel, MEL_WINDOW.stride
        frames = pad(waveforms, (0, max(0, least - waveforms.shape[1]))).unfold(1, least, hop)
        frames = frames - frames.mean(dim=-1, keepdim=True)
        # The first sample of a frame is its own predecessor.
        frames = frames - PREEMPHASIS * torch.cat((frames[..., :1], frames[..., :-1]), dim=-1)
        power = torch.fft.rfft(frames * self.window, FFT_LENGTH).abs() ** 2
        log_mel = (power @ self.mel_filters).clamp_(min=MEL_FLOOR).log_()
        normalized = _normalized(log_mel, self._frames([len(clip) for clip in clips]).tolist(), correction=1)
        kept = normalized.shape[1] // self._stride * self._stride
        return normalized[:, :kept].float().reshape(len(clips), kept // self._stride, -1)


# Computes float32 (B, max `lengths`, …) of int16 clips (T_i,); values beyond a clip's length are arbitrary. `lengths`
# converts the clips' numbers of samples to lengths of the model's input.
GpuExtractor = NormalizedSamples | MelFramePairs
# By the extractor's class name, so that the class is not imported.
KINDS: dict[str, Callable[[Any], GpuExtractor]] = {
    "Wav2Vec2FeatureExtractor": NormalizedSamples,
    "SeamlessM4TFeatureExtractor": MelFramePairs,
}


def gpu_extractor(extractor: Any) -> GpuExtractor | None:
    """Returns the GPU implementation of an extractor; None if there is none."""
    kind = KINDS.get(type(extractor).__name__)
    return kind(extractor) if kind is not None else None


class ExtractorFeatures:
    """Inputs equal to those of a model's own extractor for each clip alone, with padding after them.

    On a CPU, the extractor itself runs, one clip at a time, so that padding changes no values. On a GPU, a batch is
    computed at once if the extractor is reimplemented here. If `masked`, the model gets an attention mask.
    """

    def __init__(self, extractor: Any, *, masked: bool):
        self._extractor, self._masked = extractor, masked
        self._device: Any = torch.device("cpu")
        self._on_gpu: GpuExtractor | None = None
        # The padded length is the same for all clips of an edge.
        self._padded_length = cache(lambda samples: len(self._extract(np.zeros(samples, np.float32))))

    @property
    def on_cpu(self) -> bool:
        return self._on_gpu is None

    def to(self, device: Any) -> Self:
        if torch.device(device) != self._device:
            self._device = torch.device(device)
            known = gpu_extractor(self._extractor) if self._device.type == "cuda" else None
            self._on_gpu = known.to(self._device) if known is not None else None
        return self

    def inputs(self, clips: Sequence[torch.Tensor], edge_s: float | None) -> dict[str, torch.Tensor]:
        """Returns the extractor's own input, float32 (B, T, …), and its mask if the model takes one."""
        if self._on_gpu is not None:
            counts = self._on_gpu.lengths([len(clip) for clip in clips])
            values: Sequence[torch.Tensor] = list(self._on_gpu(clips))
        else:
            values = [self._extract(clip.cpu().numpy().astype(np.float32) / INT16_RANGE) for clip in clips]
            counts = [len(each) for each in values]
        longest = max(counts)
        width = longest if edge_s is None else max(longest, self._padded_length(round(edge_s * SAMPLING_RATE_HZ)))
        padding = float(self._extractor.padding_value)
        batch = torch.full((len(counts), width, *values[0].shape[1:]), padding, device=values[0].device)
        for row, own, count in zip(batch, values, counts, strict=True):
            row[:count] = own[:count]
        lengths = torch.tensor(counts).to(self._device)
        inputs = {self._extractor.model_input_names[0]: batch.to(self._device), LENGTHS: lengths}
        if self._masked:
            inputs["attention_mask"] = (torch.arange(width, device=self._device) < lengths[:, None]).to(torch.int64)
        return inputs

    def bins(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Returns views for samples (B, T), or for several mel frames side by side (B, T, frames × bins)."""
        values = inputs[self._extractor.model_input_names[0]]
        if values.ndim == 2:
            return [row[None] for row in values]
        return [row.view(-1, row.shape[1] // self._extractor.stride).T for row in values]

    def _extract(self, waveform: np.ndarray) -> torch.Tensor:
        """Returns the values of one clip without those that its mask excludes, float32 (T, …)."""
        found = self._extractor(
            waveform, sampling_rate=SAMPLING_RATE_HZ, return_tensors="pt", return_attention_mask=True, padding=True
        )
        values: torch.Tensor = found[self._extractor.model_input_names[0]][0]
        return values[: int(found["attention_mask"][0].sum())]


def _together(clips: Sequence[torch.Tensor]) -> torch.Tensor:
    return torch.nn.utils.rnn.pad_sequence(list(clips), batch_first=True).double()


def _normalized(values: torch.Tensor, lengths: Sequence[int], *, correction: int) -> torch.Tensor:
    """Normalizes values (B, T, …) by the mean and the variance of each clip's first `lengths`."""
    counts = torch.tensor(lengths, device=values.device).view(-1, *[1] * (values.ndim - 1))
    own = torch.arange(values.shape[1], device=values.device).view(1, -1, *[1] * (values.ndim - 2)) < counts
    centered = values - (values * own).sum(dim=1, keepdim=True) / counts
    variance = (centered.square() * own).sum(dim=1, keepdim=True) / (counts - correction)
    return centered / (variance + VARIANCE_FLOOR).sqrt()
