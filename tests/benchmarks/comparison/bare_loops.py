"""What the machine can do: the same shapes through the same model, and the same codecs, with nothing around them.

Under torchrun, as the others: each rank computes batches that lie in its memory, steps over DistributedDataParallel and
the Trainer's own optimizer, or scores by the encoder, the loss and greedy steps of the decoder; there is no reading, no
feature, no metric, no callback. `update` is a step without forward and backward passes.

    python -m torch.distributed.run --nproc_per_node 2 -m tests.benchmarks.comparison.bare_loops train …
"""

import argparse
import csv
import io
import random
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import nullcontext
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import soundfile
import torch
from torch.nn.parallel import DistributedDataParallel
from transformers import AutoConfig, AutoModelForCTC, AutoModelForSpeechSeq2Seq, AutoTokenizer, WhisperFeatureExtractor

from tests.benchmarks.comparison.turns import Turns
from tests.benchmarks.sizes import FULL_CONTEXT_S
from trainers.data.audio import SAMPLING_RATE_HZ
from trainers.data.batch_plan import bucket_edges, bucket_of
from trainers.data.features import LogMel
from trainers.models.ctc.ctc_recognizer import with_sample_convolutions
from trainers.models.recognizer import padded
from trainers.models.whisper.whisper_recognizer import input_frames

FRAMES_PER_S = 100
# The Trainer's default.
MAX_GRAD_NORM = 1.0
# Start, language, task, no timestamps.
PROMPT_TOKENS = 4


def train(given: argparse.Namespace, rank: int) -> None:
    """Optimizer steps on random input, each batch of the length of one clip: none is padded further."""
    network, is_ctc = opened(given)
    if is_ctc:
        network.config.update({"mask_time_prob": 0.0, "layerdrop": 0.0})
        # Where nothing is masked, it has no gradient.
        network.wav2vec2.masked_spec_embed.requires_grad_(False)
    network.train()
    model = DistributedDataParallel(network)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    batches = list(ctc_batches(given) if is_ctc else whisper_batches(given, network.config.num_mel_bins))

    def step(batch: dict[str, torch.Tensor]) -> None:
        with nullcontext() if is_ctc else input_frames(network, batch["input_features"].shape[-1]):
            model(**batch).loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), MAX_GRAD_NORM)
        optimizer.step()
        optimizer.zero_grad()

    take_turns(given, rank, batches, step)


def update(given: argparse.Namespace, rank: int) -> None:
    """The part of a step that no batch makes shorter: the gradients' mean over all ranks, their norm, the optimizer."""
    network, _ = opened(given)
    parameters = [parameter for parameter in network.parameters() if parameter.requires_grad]
    gradients = torch.zeros(sum(parameter.numel() for parameter in parameters))
    views = gradients.split([parameter.numel() for parameter in parameters])
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=True)

    def step(batch: dict[str, torch.Tensor]) -> None:
        torch.distributed.all_reduce(gradients)
        gradients.div_(torch.distributed.get_world_size())
        for parameter, view in zip(parameters, views, strict=True):
            parameter.grad = view.view_as(parameter)
        torch.nn.utils.clip_grad_norm_(parameters, MAX_GRAD_NORM)
        optimizer.step()

    take_turns(given, rank, [{}] * given.turn_steps, step)


def take_turns(
    given: argparse.Namespace, rank: int, batches: Sequence[dict[str, torch.Tensor]], work: Callable[..., None]
) -> None:
    """Works on all batches in every turn; on one before the first, uncounted."""
    work(batches[0])
    clips = given.batch * len(batches) * torch.distributed.get_world_size()
    turns = Turns(given.turns, rank)
    while turns.wait():
        began = time.perf_counter()
        for batch in batches:
            work(batch)
        torch.distributed.barrier()
        turns.done({"clips": clips, "seconds": time.perf_counter() - began})


def score(given: argparse.Namespace, rank: int) -> None:
    """Losses and hypotheses: those of CTC, or of Whisper, all of `--max-new-tokens` after a prompt of four."""
    network, is_ctc = opened(given)
    network.eval()
    batches = list(ctc_batches(given) if is_ctc else whisper_batches(given, network.config.num_mel_bins))

    @torch.inference_mode()
    def scored(batch: dict[str, torch.Tensor]) -> None:
        if is_ctc:
            network(**batch).logits.argmax(dim=-1)
        else:
            with input_frames(network, batch["input_features"].shape[-1]):
                greedy(network, given.max_new_tokens, **batch)

    take_turns(given, rank, batches, scored)


def greedy(network: Any, steps: int, input_features: torch.Tensor, labels: torch.Tensor) -> None:
    """The loss of labels (B, L), and steps of the decoder, of features (B, mel bins, frames) that are encoded once."""
    states = network.get_encoder()(input_features)
    network(encoder_outputs=states, labels=labels)
    tokens = torch.full((len(labels), PROMPT_TOKENS), network.config.decoder_start_token_id)
    cache = None
    for _ in range(steps):
        output = network(decoder_input_ids=tokens, encoder_outputs=states, past_key_values=cache, use_cache=True)
        tokens, cache = output.logits[:, -1:].argmax(dim=-1), output.past_key_values


def opened(given: argparse.Namespace) -> tuple[Any, bool]:
    """The network, and whether it is one of CTC, which has the package's convolutions: a limit has the fastest ones."""
    is_ctc = AutoConfig.from_pretrained(given.model).model_type == "wav2vec2"
    network = (AutoModelForCTC if is_ctc else AutoModelForSpeechSeq2Seq).from_pretrained(given.model)
    if is_ctc:
        with_sample_convolutions(network)
    return network, is_ctc


def rows_of(given: argparse.Namespace) -> list[dict[str, str]]:
    """The clips of a manifest."""
    with given.manifest.open(encoding="utf-8") as file:
        return list(csv.DictReader(file))


def drawn(given: argparse.Namespace) -> Iterator[tuple[float, list[list[int]]]]:
    """A duration in seconds and labels of each batch of a turn, alike on all ranks, over all durations of the clips."""
    rows, generator = sorted(rows_of(given), key=lambda row: float(row["duration"])), random.Random(0)
    tokenizer = AutoTokenizer.from_pretrained(given.model)
    for number in range(given.turn_steps):
        row = rows[int((number + 0.5) / given.turn_steps * len(rows))]
        yield (
            float(row["duration"]),
            [tokenizer(each["text"]).input_ids for each in generator.choices(rows, k=given.batch)],
        )


def ctc_batches(given: argparse.Namespace) -> Iterator[dict[str, torch.Tensor]]:
    """Samples (B, T) of clips that are all of one length."""
    for duration_s, labels in drawn(given):
        samples = torch.randn(given.batch, round(duration_s * SAMPLING_RATE_HZ))
        yield {
            "input_values": samples,
            "attention_mask": torch.ones_like(samples, dtype=torch.int64),
            "labels": padded(labels),
        }


def whisper_batches(given: argparse.Namespace, bins: int) -> Iterator[dict[str, torch.Tensor]]:
    """Log-mel frames of a clip's bucket."""
    edges_s = bucket_edges(given.context or FULL_CONTEXT_S, bucketed=bool(given.context))
    for duration_s, labels in drawn(given):
        frames = round(FRAMES_PER_S * edges_s[int(bucket_of([duration_s], edges_s)[0])])
        yield {"input_features": torch.randn(given.batch, bins, frames), "labels": padded(labels)}


def codecs(given: argparse.Namespace, rank: int) -> None:
    """Reads and encodes clips, decodes them, computes their log-mel frames at 30 s; each rank its own half."""
    log_mel = LogMel(WhisperFeatureExtractor.from_pretrained(given.model))
    share = list(islice(rows_of(given), rank, given.clips, torch.distributed.get_world_size()))
    paths = [given.manifest.parent / row["path"] for row in share]
    frames = log_mel.frames(FULL_CONTEXT_S)
    turns = Turns(given.turns, rank)
    while turns.wait():
        moments = [time.perf_counter()]
        stored = [encoded(path) for path in paths]
        torch.distributed.barrier()
        moments.append(time.perf_counter())
        clips = [soundfile.read(io.BytesIO(data), dtype="int16")[0] for data in stored]
        torch.distributed.barrier()
        moments.append(time.perf_counter())
        for clip in clips:
            log_mel(torch.from_numpy(clip), frames)
        torch.distributed.barrier()
        moments.append(time.perf_counter())
        encode_s, decode_s, log_mel_s = np.diff(moments).tolist()
        parts = {"encode_s": encode_s, "decode_s": decode_s, "log_mel_s": log_mel_s}
        turns.done({"clips": given.clips, **parts})


def encoded(path: Path) -> bytes:
    """A recording as FLAC."""
    samples, rate_hz = soundfile.read(path, dtype="int16")
    file = io.BytesIO()
    soundfile.write(file, samples, rate_hz, format="FLAC", subtype="PCM_16")
    return file.getvalue()


VERBS = {"train": train, "update": update, "score": score, "codecs": codecs}


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("verb", choices=VERBS)
    for name in ("model", "manifest"):
        parser.add_argument(f"--{name}", type=Path)
    parser.add_argument("--turns", required=True, help="address of the benchmark")
    for name in ("clips", "batch", "steps", "turn-steps", "max-new-tokens"):
        parser.add_argument(f"--{name}", type=int, default=1)
    parser.add_argument("--context", type=int, default=0, help="seconds of the bucketed context; 0: the full one")
    return parser


def main(arguments: Sequence[str] | None = None) -> None:
    """Runs one verb on every rank."""
    given = _parser().parse_args(arguments)
    torch.distributed.init_process_group("gloo")
    torch.manual_seed(0)
    VERBS[given.verb](given, torch.distributed.get_rank())
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
