"""Whisper's input: log-mel features."""

from collections.abc import Sequence
from typing import Any

import torch

from trainers.data.features.model_input import INT16_RANGE
from trainers.errors import ConfigError

# Floor of the mel power before the logarithm, and the range kept below the loudest frame, in log10 units;
# both from WhisperFeatureExtractor._torch_extract_fbank_features (and OpenAI's whisper/audio.py before it).
POWER_FLOOR_LOG10 = -10.0
DYNAMIC_RANGE_LOG10 = 8.0

# A matrix product of fewer columns uses another kernel on some CPUs, whose last bit differs from the reference's.
FEWEST_FRAMES = 64


class LogMel(torch.nn.Module):
    """Computes input_features on the module's device, bit for bit like a WhisperFeatureExtractor.

    The reference pads the waveform with zeros to the full context and transforms all of it. Every frame of padding
    alone has the same known value, so only the real samples are transformed, and the rest is filled in.

    Raises:
        ConfigError: the extractor dithers, so that its features are random.
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
            float32 of shape (…, mel bins, frames), padded to `frames`, in the reference's scale; `out`, if given.
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
