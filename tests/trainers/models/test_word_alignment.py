"""When a Whisper speaks its words: by attention that is given, and as OpenAI's own heads are looked for."""

import pytest
import torch

from tests.trainers.pipeline.transcription.tiny_models import write_whisper
from trainers.models.families import family_of_folder
from trainers.models.recognizer import Word
from trainers.models.whisper.whisper_recognizer import WhisperRecognizer
from trainers.models.whisper.word_alignment import OUTPUT_S, _computing_attention, _words, has_alignment_heads

OUTPUTS, EACH = 200, 12


@pytest.fixture(scope="module")
def recognizer(tmp_path_factory: pytest.TempPathFactory) -> WhisperRecognizer:
    folder = write_whisper(tmp_path_factory.mktemp("whisper") / "model", alignment_heads=[[0, 0], [0, 1]])
    found = family_of_folder(folder).open_exported(folder)
    assert isinstance(found, WhisperRecognizer)
    return found


def attention(tokens: int, noise: float) -> torch.Tensor:
    """Of two heads: each token looks at its own EACH outputs, the end token at all that are behind."""
    weights = torch.rand(2, tokens + 1, OUTPUTS, generator=torch.Generator().manual_seed(0)) * noise
    for token in range(tokens + 1):
        end = OUTPUTS if token == tokens else (token + 1) * EACH
        weights[:, token, token * EACH : end] += 1.0
    return weights / weights.sum(dim=-1, keepdim=True)


@pytest.mark.parametrize("text", ["one two three", "three, four", "é ü", "o'a-b 3.5, U.S."])
@pytest.mark.parametrize("noise", [0.0, 0.2])
def test_each_word_is_where_its_tokens_look(recognizer: WhisperRecognizer, text: str, noise: float) -> None:
    tokenizer = recognizer.processor.tokenizer
    tokens = tokenizer(text, add_special_tokens=False).input_ids
    found = _words(tokenizer, tokens, attention(len(tokens), noise), 7)
    assert [word.text for word in found] == text.split()
    expected, at = [], 0
    for number, word in enumerate(text.split()):
        count = len(tokenizer(f" {word}" if number else word, add_special_tokens=False).input_ids)
        expected.append(Word(word, at * EACH * OUTPUT_S, (at + count) * EACH * OUTPUT_S))
        at += count
    assert at == len(tokens)
    for one, other in zip(found, expected, strict=True):
        assert one.start_s == pytest.approx(other.start_s, abs=2 * OUTPUT_S)
        assert one.end_s == pytest.approx(other.end_s, abs=2 * OUTPUT_S)


def test_no_tokens_are_no_words(recognizer: WhisperRecognizer) -> None:
    assert _words(recognizer.processor.tokenizer, [], attention(0, 0.0), 7) == ()


def test_heads_that_the_decoder_does_not_have_are_none(recognizer: WhisperRecognizer) -> None:
    generation = recognizer.model.generation_config
    usual = generation.alignment_heads
    try:
        for heads, has in (([[0, 0]], True), ([[1, 0]], False), ([[0, 2]], False), ([], False), (None, False)):
            generation.alignment_heads = heads
            assert has_alignment_heads(recognizer.model) is has
    finally:
        generation.alignment_heads = usual


def test_the_attention_of_a_pass_is_undone(recognizer: WhisperRecognizer) -> None:
    before = recognizer.model.config._attn_implementation
    with _computing_attention(recognizer.model):
        assert recognizer.model.config._attn_implementation == "eager"
    assert recognizer.model.config._attn_implementation == before
