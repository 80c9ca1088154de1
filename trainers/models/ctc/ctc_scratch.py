"""Makes vocabulary, feature extractor and config of a CTC model from the training text and the config's sizes."""

import json
import tempfile
from collections import Counter
from collections.abc import Iterable, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

from tokenizers import decoders
from transformers import (
    AutoConfig,
    PreTrainedTokenizerFast,
    SeamlessM4TFeatureExtractor,
    Wav2Vec2BertProcessor,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2Processor,
)

from trainers.errors import ConfigError
from trainers.models.ctc.ctc_part import CtcPart
from trainers.models.tokenizer_processor import learned_bpe

# The first layers are as in the released models, with one output per 320 samples.
CONV_KERNELS, CONV_STRIDES = (10, 3, 3, 3, 3, 2, 2), (5, 2, 2, 2, 2, 2, 2)
# Kernel of positional convolutions in frames; smaller than the released models' 128, since utterances are short.
POSITION_KERNEL, POSITION_GROUPS = 32, 4
SPECIAL = ("word_delimiter_token", "unk_token", "pad_token")
# data2vec-audio has several layers of positional convolutions.
POSITION_LAYERS = 5


def new_tokenizer(texts: Sequence[str], model: CtcPart) -> Any:
    """Returns the tokenizer of a config, with a given vocabulary, or one learned from the training set's transcripts.

    Raises:
        ConfigError: A given vocabulary cannot be read, or lacks a special token; or a special token is in the text.
    """
    for name in SPECIAL:
        token = getattr(model, name)
        if any(token in text for text in texts):
            raise ConfigError(
                f"model.{name} is {token}, which the training text has, too: use another, or remove it from the text "
                "(data.chars_to_ignore)"
            )
    if model.vocabulary == "bpe":
        return _learn_bpe(texts, model)
    if model.vocabulary_file is not None:
        vocabulary = _given(model)
    else:
        characters = sorted(set().union(*texts) - {" "})
        tokens = [model.word_delimiter_token, *characters, model.unk_token, model.pad_token]
        vocabulary = {token: number for number, token in enumerate(tokens)}
    with tempfile.TemporaryDirectory(prefix="rayscribe-") as folder:
        file = Path(folder) / "vocab.json"
        file.write_text(json.dumps(vocabulary, ensure_ascii=False), encoding="utf-8")
        return Wav2Vec2CTCTokenizer(
            str(file),
            bos_token=None,
            eos_token=None,
            unk_token=model.unk_token,
            pad_token=model.pad_token,
            word_delimiter_token=model.word_delimiter_token,
        )


def _given(model: CtcPart) -> dict[str, int]:
    where = f"model.vocabulary_file: {model.vocabulary_file}"
    try:
        vocabulary = json.loads(Path(str(model.vocabulary_file)).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"{where} cannot be read: {error}; give a JSON object of tokens and their ids") from error
    if not isinstance(vocabulary, dict) or sorted(vocabulary.values()) != list(range(len(vocabulary))):
        raise ConfigError(f"{where}: not a JSON object of tokens and their ids, which are 0, 1, 2, …")
    if missing := [
        f"model.{name} {getattr(model, name)}" for name in SPECIAL if getattr(model, name) not in vocabulary
    ]:
        raise ConfigError(f"{where} has no {', '.join(missing)}: add it there, or name the file's own token")
    return vocabulary


def _learn_bpe(texts: Iterable[str], model: CtcPart) -> PreTrainedTokenizerFast:
    learner = learned_bpe(texts, model.vocab_size, [model.pad_token, model.unk_token])
    learner.decoder = decoders.Sequence(
        [decoders.CTC(pad_token=model.pad_token, word_delimiter_token=" ", cleanup=False), decoders.ByteLevel()]
    )
    return PreTrainedTokenizerFast(tokenizer_object=learner, pad_token=model.pad_token, unk_token=model.unk_token)


def new_extractor(model: CtcPart) -> Any:
    """Returns the feature extractor of a new model: normalized samples, or the log-mel features of wav2vec2-bert."""
    if model.architecture == "wav2vec2-bert":
        return SeamlessM4TFeatureExtractor()
    masked = model.architecture == "data2vec-audio" or model.feat_extract_norm == "layer"
    return Wav2Vec2FeatureExtractor(do_normalize=True, return_attention_mask=masked)


def processor_of(extractor: Any, tokenizer: Any) -> Any:
    """Returns the processor with this feature extractor and tokenizer."""
    kind = Wav2Vec2BertProcessor if isinstance(extractor, SeamlessM4TFeatureExtractor) else Wav2Vec2Processor
    return kind(feature_extractor=extractor, tokenizer=tokenizer)


def new_config(model: CtcPart, tokenizer: Any) -> Any:
    """Returns the config of a new model of the sizes in the model part."""
    sizes = {
        "hidden_size": model.d_model,
        "num_hidden_layers": model.encoder_layers,
        "num_attention_heads": model.attention_heads,
        "intermediate_size": model.ffn_dim or 4 * model.d_model,
        **for_tokenizer(tokenizer),
        **regularization(model),
    }
    if model.architecture == "wav2vec2-bert":
        sizes |= {"position_embeddings_type": "relative_key", "conv_depthwise_kernel_size": 15}
        sizes |= {"conformer_conv_dropout": sizes["hidden_dropout"]}
    else:
        sizes |= {
            "conv_dim": [model.feature_encoder_dim] * len(CONV_KERNELS),
            "conv_kernel": CONV_KERNELS,
            "conv_stride": CONV_STRIDES,
            "conv_bias": True,
            "num_conv_pos_embeddings": POSITION_KERNEL,
            "num_conv_pos_embedding_groups": POSITION_GROUPS,
        }
        if model.architecture == "data2vec-audio":
            sizes |= {"num_conv_pos_embeddings": POSITION_LAYERS}
        else:
            sizes |= {"feat_extract_norm": model.feat_extract_norm}
            sizes |= {"do_stable_layer_norm": model.feat_extract_norm == "layer"}
    return AutoConfig.for_model(model.architecture, **sizes)


def for_tokenizer(tokenizer: Any) -> dict[str, Any]:
    """Returns the options of a model's config for its tokenizer."""
    return {
        "vocab_size": len(tokenizer),
        "pad_token_id": tokenizer.pad_token_id,
        "bos_token_id": tokenizer.bos_token_id,
        "eos_token_id": tokenizer.eos_token_id,
    }


DROPOUTS = ("hidden_dropout", "activation_dropout", "attention_dropout", "feat_proj_dropout", "final_dropout")


def regularization(model: CtcPart) -> dict[str, Any]:
    """Returns the model part's changes to a model's own config."""
    dropouts = {name: value for name in DROPOUTS if (value := getattr(model, name)) is not None}
    return {
        **(dict.fromkeys(DROPOUTS, 0.0) if model.init == "scratch" else {}),
        **dropouts,
        **model.masking,
        "layerdrop": model.layerdrop or 0.0,
        "ctc_loss_reduction": model.ctc_loss_reduction,
        "ctc_zero_infinity": model.ctc_zero_infinity,
    }


def refuse_other_vocabulary(tokenizer: Any, model: CtcPart) -> None:
    """Raises ConfigError if the config's vocabulary differs from that of the checkpoint from which a run starts."""
    is_bpe = not isinstance(tokenizer, Wav2Vec2CTCTokenizer)
    other = []
    if model.vocabulary_file is not None and _given(model) != tokenizer.get_vocab():
        other.append(f"model.vocabulary_file {model.vocabulary_file}")
    if model.vocabulary in ("characters", "bpe") and (model.vocabulary == "bpe") != is_bpe:
        other.append(f"model.vocabulary {model.vocabulary}")
    if other:
        raise ConfigError(
            f"run.resume: the vocabulary of the checkpoint, to which its weights belong, is not {' and '.join(other)}: "
            "remove it"
        )


def unknown_characters(tokenizer: Any, texts: Iterable[str]) -> tuple[list[str], int, int]:
    """Returns the characters of texts that are not in a vocabulary, most frequent first; empty for BPE of bytes.

    Also returns their number of occurrences, and the total number of characters.
    """
    if not isinstance(tokenizer, Wav2Vec2CTCTokenizer):
        return [], 0, 0
    known, counts = {*tokenizer.get_vocab(), " "}, Counter(chain.from_iterable(texts))
    unknown = [character for character, _ in counts.most_common() if character not in known]
    return unknown, sum(counts[character] for character in unknown), counts.total()
