"""A tiny Speech2Text with tokens of languages."""

import json
from pathlib import Path
from typing import Any

import sentencepiece
from transformers import (
    Speech2TextConfig,
    Speech2TextFeatureExtractor,
    Speech2TextForConditionalGeneration,
    Speech2TextTokenizer,
    set_seed,
)

TEXTS = ["one two", "three", "four four"]
LANGUAGES = ("pt", "fr", "ru", "nl", "ro", "it", "es", "de")
START, PAD, END = 0, 1, 2


def write_multilingual(folder: Path) -> None:
    """Writes model and processor, as `save_pretrained` leaves them."""
    words = write_tokenizer(folder, lang_codes="mustc")
    set_seed(0)
    layers: Any = {"encoder_layers": 1, "decoder_layers": 1, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32}
    heads: Any = {"encoder_attention_heads": 2, "decoder_attention_heads": 2, "conv_channels": 32}
    tokens: Any = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": END}
    plain = Speech2TextConfig(vocab_size=len(words), d_model=16, input_feat_per_channel=80, **layers, **heads, **tokens)
    Speech2TextForConditionalGeneration(plain).save_pretrained(folder)
    Speech2TextFeatureExtractor().save_pretrained(folder)
    words.save_pretrained(folder)


def write_tokenizer(folder: Path, **options: Any) -> Speech2TextTokenizer:
    """With a vocabulary learned by SentencePiece."""
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(TEXTS * 9),
        model_prefix=str(folder / "learned"),
        vocab_size=32,
        model_type="bpe",
        user_defined_symbols=[f"<lang:{code}>" for code in LANGUAGES],
        bos_id=START,
        pad_id=PAD,
        eos_id=END,
        unk_id=3,
        hard_vocab_limit=False,
        minloglevel=2,
    )
    model = folder / "learned.model"
    pieces = sentencepiece.SentencePieceProcessor(model_file=str(model))
    vocabulary = {pieces.id_to_piece(number): number for number in range(len(pieces))}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    return Speech2TextTokenizer(str(folder / "vocab.json"), str(model), **options)
