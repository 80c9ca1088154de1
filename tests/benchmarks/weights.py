"""A Whisper of 30 s of context and a wav2vec2, of new weights, that both sides open with from_pretrained."""

import csv
import random
import string
from pathlib import Path

import torch
import transformers
from torch.nn.utils.rnn import pad_sequence

from tests.benchmarks.sizes import FULL_CONTEXT_S, Sizes
from trainers.data.audio import decode, to_int16
from trainers.models.ctc.ctc_family import CtcFamily
from trainers.models.ctc.ctc_part import CtcPart
from trainers.models.whisper.whisper_family import WhisperFamily
from trainers.models.whisper.whisper_part import WhisperPart

HEAD_WIDTH = 64
WORD_LETTERS = 8


def write_weights(folder: Path, manifest: Path, sizes: Sizes) -> int:
    """Writes model, tokenizer and feature extractor; returns how many weights there are."""
    transformers.logging.disable_progress_bar()
    part = WhisperPart(
        init="scratch",
        language="english",
        vocab_size=sizes.vocab_size,
        d_model=sizes.d_model,
        encoder_layers=sizes.encoder_layers,
        decoder_layers=sizes.decoder_layers,
        attention_heads=sizes.d_model // HEAD_WIDTH,
    )
    WhisperFamily().write_description(folder, [*texts_of(manifest), *made_words(sizes.vocab_size)], part)
    network = WhisperFamily().load_recognizer(part, folder, seed=0).model
    # New weights utter timestamps, after which generate goes back to the audio; trained ones, told not to, do not.
    last_word = network.generation_config.no_timestamps_token_id
    network.generation_config.suppress_tokens = list(range(last_word + 1, network.config.vocab_size))
    network.save_pretrained(folder)
    return sum(weight.numel() for weight in network.parameters())


def write_known_weights(folder: Path, manifest: Path, sizes: Sizes) -> None:
    """Writes a Whisper as above that knows the clips of a manifest, from what its new encoder gives of them."""
    write_weights(folder, manifest, sizes)
    family = WhisperFamily()
    recognizer = family.open_exported(folder)
    network, features = recognizer.model, recognizer.new_features()
    encoder = network.model.encoder.requires_grad_(False)
    # New weights add next to nothing of the audio to the positions.
    for convolution in (encoder.conv1, encoder.conv2):
        convolution.weight *= 4
    with manifest.open(encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    inputs = []
    for row in rows:
        clip = to_int16(decode((manifest.parent / row["path"]).read_bytes(), name=row["path"]))
        spectrogram = features.inputs([torch.from_numpy(clip)], FULL_CONTEXT_S)["input_features"]
        # faster-whisper has zeros behind the clip's own frames, in place of those of silence.
        cut = spectrogram.clone()
        cut[..., len(clip) // recognizer.processor.feature_extractor.hop_length :] = 0.0
        inputs += [spectrogram, cut]
    heard = torch.cat([encoder(each).last_hidden_state for each in inputs])
    texts = family.encode_labels(recognizer.processor, [row["text"] for row in rows for _ in range(2)])
    labels = pad_sequence([torch.tensor(ids) for ids in texts], batch_first=True, padding_value=-100)
    torch.manual_seed(0)
    trained = [weight for weight in network.parameters() if weight.requires_grad]
    optimizer = torch.optim.AdamW(trained, lr=1e-3)
    # Without a warm-up and a bound it learns texts and not which clip has which, and utters as many words as it may.
    schedule = transformers.get_linear_schedule_with_warmup(optimizer, sizes.known_steps // 8, sizes.known_steps)
    for _ in range(sizes.known_steps):
        batch = torch.randperm(len(heard))[: sizes.score_batch]
        network(encoder_outputs=(heard[batch],), labels=labels[batch]).loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimizer.step()
        schedule.step()
        optimizer.zero_grad()
    network.save_pretrained(folder)


def write_ctc_weights(folder: Path, manifest: Path, sizes: Sizes) -> int:
    """The same of a wav2vec2 with a layer norm, whose padding both sides mask."""
    part = CtcPart(
        init="scratch",
        family="ctc",
        architecture="wav2vec2",
        d_model=sizes.d_model,
        encoder_layers=sizes.encoder_layers,
        attention_heads=sizes.d_model // HEAD_WIDTH,
        feature_encoder_dim=sizes.d_model,
    )
    CtcFamily().write_description(folder, texts_of(manifest), part)
    recognizer = CtcFamily().load_recognizer(part, folder, seed=0)
    recognizer.model.save_pretrained(folder)
    CtcFamily().export_processor(folder)
    return sum(weight.numel() for weight in recognizer.model.parameters())


def made_words(count: int) -> list[str]:
    """Words of random letters, so that a vocabulary of this many tokens can be learned, where the corpus has few."""
    letters = random.Random(0)
    return ["".join(letters.choices(string.ascii_lowercase, k=WORD_LETTERS)) for _ in range(count)]


def texts_of(manifest: Path) -> list[str]:
    """The transcripts of a manifest."""
    with manifest.open(encoding="utf-8") as file:
        return [row["text"] for row in csv.DictReader(file)]
