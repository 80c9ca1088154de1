"""A model's input from samples: log-mel features, or what a model's own feature extractor gives."""

from collections.abc import Sequence
from functools import cache
from typing import Any, Protocol, Self

import numpy as np
import torch

from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.errors import ConfigError

# Floor of the mel power before the logarithm, and the range kept below the loudest frame, in log10 units;
# both from WhisperFeatureExtractor._torch_extract_fbank_features (and OpenAI's whisper/audio.py before it).
POWER_FLOOR_LOG10 = -10.0
DYNAMIC_RANGE_LOG10 = 8.0

# A matrix product of fewer columns takes another kernel on some CPUs, whose last bit differs from the reference's.
FEWEST_FRAMES = 64


# Key of the true lengths among the inputs, int64 (B,): elements of the model's input without padding.
LENGTHS = "lengths"


class Features(Protocol):
    """Computes what a model is given, from clips.

    Attributes:
        on_cpu: Whether it computes on the CPU, whatever the model's device is: clips then stay there.
    """

    on_cpu: bool

    def to(self, device: Any) -> Self:
        """Moves it to the model's device."""

    def inputs(self, clips: Sequence[torch.Tensor], edge_s: float | None) -> dict[str, torch.Tensor]:
        """The model's inputs, and `LENGTHS` where its loss asks for them.

        Args:
            clips: int16 stored samples of each clip, shape (T_i,), on the model's device, or on the CPU where it
                computes there.
            edge_s: Seconds that each is padded to. None: the longest of them, and the others where they are shorter.
        """

    def bins(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """A view of each clip's input, (frequency bins, frames); samples have one bin. What is written there counts."""


class LogMel(torch.nn.Module):
    """Computes input_features on the device where it lies, bit for bit as a WhisperFeatureExtractor.

    The reference pads the waveform with zeros to the full context and transforms all of it. Every frame that sees only
    padding has one known value, so only the real samples are transformed, and the rest is filled in.

    Raises:
        ConfigError: it dithers, so that its features are random.
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
        """The logarithm of the mel power of samples (…, T): (…, mel bins, frames)."""
        stft = torch.stft(waveform, self.n_fft, self.hop_length, window=self.window, return_complex=True)
        power = (stft[..., :-1].abs() ** 2).contiguous()
        filters = self.mel_filters.T
        # Of a GPU not in TF32, which a model's own products may be in.
        mel = (filters.double() @ power.double()).float() if power.is_cuda else filters @ power
        return mel.clamp_(min=10**POWER_FLOOR_LOG10).log10_()

    def frames(self, edge_s: float) -> int:
        """Frames of an utterance that is padded to `edge_s` seconds; even, as the encoder halves them."""
        return 2 * round(edge_s * self.sampling_rate_hz / self.hop_length / 2)

    def inputs(self, clips: Sequence[torch.Tensor], edge_s: float | None) -> dict[str, torch.Tensor]:
        """Gives input_features, float32 (B, mel bins, frames)."""
        seconds = edge_s if edge_s is not None else len(clips[0]) / self.sampling_rate_hz
        frames = self.frames(seconds)
        if self.window.is_cuda:
            # One transform of all, equal up to rounding; behind a shorter clip are zeros, as in the reference.
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
        """Features of int16 stored samples (T,) or (B, T), T ≤ n_samples, on this module's device.

        Returns:
            float32 of shape (…, mel bins, frames), padded to `frames`, in the reference's scale; `out`, where given.
        """
        waveform = samples.to(torch.float32) / 32768.0
        # One window of zeros lets every frame that touches a real sample see what it sees in the reference; beyond
        # the full context the reference reflects, and so does this.
        longest = waveform.shape[-1]
        length = min(max(longest + self.n_fft, FEWEST_FRAMES * self.hop_length), self.n_samples)
        log_mel = self._log_mel(torch.nn.functional.pad(waveform, (0, length - longest)))
        floor = torch.clamp(log_mel.amax(dim=(-2, -1), keepdim=True) - DYNAMIC_RANGE_LOG10, min=POWER_FLOOR_LOG10)
        kept = min(frames, log_mel.shape[-1])
        features = log_mel.new_empty(*log_mel.shape[:-1], frames) if out is None else out
        features[..., :kept] = torch.maximum(log_mel, floor).add_(4.0).div_(4.0)[..., :kept]
        features[..., kept:] = (floor + 4.0) / 4.0
        return features


class ExtractorFeatures:
    """Input that is what a model's own extractor gives for each clip alone, and padding behind it.

    The extractor runs on the CPU, one clip at a time: padding moves none of its values. Where it is `masked`, the model
    is given an attention mask.
    """

    on_cpu = True

    def __init__(self, extractor: Any, *, masked: bool):
        self._extractor, self._masked = extractor, masked
        self._device: Any = "cpu"
        # Padding has one length for each edge.
        self._padded_length = cache(lambda samples: len(self._extract(np.zeros(samples, np.float32))))

    def to(self, device: Any) -> Self:
        self._device = device
        return self

    def inputs(self, clips: Sequence[torch.Tensor], edge_s: float | None) -> dict[str, torch.Tensor]:
        """Gives the extractor's own input, float32 (B, T, …), and where the model takes one its mask."""
        name = self._extractor.model_input_names[0]
        each = [self._extract(clip.cpu().numpy().astype(np.float32) / 32768.0) for clip in clips]
        lengths = torch.tensor([len(values) for values in each])
        longest = int(lengths.max())
        width = longest if edge_s is None else max(longest, self._padded_length(round(edge_s * SAMPLING_RATE_HZ)))
        batch = torch.full((len(each), width, *each[0].shape[1:]), float(self._extractor.padding_value))
        for row, values in zip(batch, each, strict=True):
            row[: len(values)] = values
        inputs = {name: batch, LENGTHS: lengths}
        if self._masked:
            inputs["attention_mask"] = (torch.arange(width) < lengths[:, None]).to(torch.int64)
        return {key: value.to(self._device) for key, value in inputs.items()}

    def bins(self, inputs: dict[str, torch.Tensor]) -> list[torch.Tensor]:
        """Of samples (B, T), or of several mel frames side by side (B, T, frames × bins)."""
        values = inputs[self._extractor.model_input_names[0]]
        if values.ndim == 2:
            return [row[None] for row in values]
        return [row.view(-1, row.shape[1] // self._extractor.stride).T for row in values]

    def _extract(self, waveform: np.ndarray) -> torch.Tensor:
        """Values of one clip without those that its mask excludes, float32 (T, …)."""
        found = self._extractor(
            waveform, sampling_rate=SAMPLING_RATE_HZ, return_tensors="pt", return_attention_mask=True, padding=True
        )
        values: torch.Tensor = found[self._extractor.model_input_names[0]][0]
        return values[: int(found["attention_mask"][0].sum())]


def pad_samples(clips: list[np.ndarray]) -> tuple[torch.Tensor, torch.Tensor]:
    """Stacks int16 clips (T_i,) for the way to the device.

    Returns:
        int16 samples of shape (B, max T_i), zeros after each clip, and int64 lengths of shape (B,).
    """
    lengths = torch.tensor([len(clip) for clip in clips], dtype=torch.int64)
    return torch.nn.utils.rnn.pad_sequence([torch.from_numpy(clip) for clip in clips], batch_first=True), lengths
