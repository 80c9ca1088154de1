"""Lists Rayscribe's own flags, and those of the public speech recognition scripts that are not the Trainer's.

The scripts are transformers' run_speech_recognition_seq2seq.py, run_speech_recognition_ctc.py and
run_speech_recognition_ctc_adapter.py, and the two that Optimum has for Gaudi, with their launcher, gaudi_spawn.py.
"""

import posixpath
import re
import sys
import warnings
from collections.abc import Mapping, Sequence
from functools import cache, partial
from typing import Any

from trainers.config.family_table import family_parts
from trainers.config.flags.flag import (
    NUMBER,
    RANGE,
    SWITCH,
    TEXT,
    WHOLE,
    WORDS,
    Flag,
    fields,
    ignored,
    only,
    refused,
    renamed,
)
from trainers.config.flags.trainer_flags import TOKEN
from trainers.config.storage_location import S3_SCHEME, is_url
from trainers.errors import ConfigError
from trainers.metrics.known_metrics import known_metrics

# A class that matches more characters, such as \w, is not meant as a list of them.
MOST_CHARACTERS = 1000
MOST_SHOWN = 40
_SURROGATES = range(0xD800, 0xE000)
# Escaped letters and digits do not match, since they stand for other characters: \d, \s, \u201c, \x41.
_ESCAPED = re.compile(r"\\([^a-zA-Z0-9])")


def ignored_characters(texts: Sequence[str]) -> list[str]:
    """Returns, by code point, the characters that the regular expression `[…]` with all texts inside matches.

    Raises:
        ValueError: The class is invalid, or `data.chars_to_ignore` cannot express it; the message gives an alternative.
    """
    return list(_matched("".join(texts)))


def ranges_note(texts: Sequence[str]) -> str | None:
    """Returns a message with the characters that are removed although they were not typed; None if there are none."""
    inside = "".join(texts)
    typed = _ESCAPED.sub(r"\1", inside)
    more = [character for character in _matched(inside) if character not in typed]
    if not more:
        return None
    shown = [each if each.isprintable() and not each.isspace() else f"U+{ord(each):04X}" for each in more[:MOST_SHOWN]]
    rest = f" … ({len(more)} characters)" if len(more) > MOST_SHOWN else ""
    digits = ", all digits among them" if set("0123456789") <= {*more} else ""
    return (
        f"--chars_to_ignore {inside}: the script puts it into a regular expression's […], in which a - between two "
        f"characters is a range, and a letter after a backslash has a meaning: it also removes {' '.join(shown)}{rest}"
        f"{digits}, and so does the recipe; to remove only what you type, which is another training than the script's, "
        "write a - as the last character"
    )


@cache
def _matched(inside: str) -> str:
    written = "write \\^, \\], \\- and \\\\ for these characters themselves"
    # As the first character, ] stands for itself.
    if inside.startswith("^") or "]" in re.sub(r"\\.", "xx", inside, flags=re.DOTALL)[1:]:
        raise ValueError(f"[{inside}]: a ^ at its beginning means all other characters, and a ] ends it: {written}")
    try:
        with warnings.catch_warnings(action="ignore", category=FutureWarning):
            pattern = re.compile(f"[{inside}]")
    except re.error as error:
        reason = f"not a valid class of characters in the regular expression that the script makes ({error.msg})"
        raise ValueError(f"[{inside}] is {reason}: {written}") from None
    found = "".join(pattern.findall(_all_characters()))
    if len(found) > MOST_CHARACTERS:
        raise ValueError(f"the class {pattern.pattern} matches {len(found)} characters: list those to remove")
    if capitals := [character for character in found if character.lower() != character]:
        raise ValueError(
            f"the script removes capital letters, {' '.join(capitals[:5])} …, before it lower-cases a text, and "
            "Rayscribe lower-cases it first: leave them out, or prepare the texts yourself"
        )
    return found


@cache
def _all_characters() -> str:
    return "".join(chr(code) for code in range(sys.maxunicode + 1) if code not in _SURROGATES)


DEFAULT_DATASET = "google/fleurs"
TRAIN, EVALUATE, PREPARE, CHECK = "train", "evaluate", "prepare", "check"
SCORE_ALONE = "--verb evaluate --model MODEL scores a model"

_SHORTER = "shorten the split itself, e.g. data.dataset.{0}_split: {0}[:100], or give a shorter manifest, data.{0}"
_ADAPTERS = "adapters for a language are not trained; adapt.method: lora trains low-rank ones"
_MASKING = "model.apply_spec_augment"
BUCKET = "s3_bucket"
# The field of each flag with a manifest's key, as in `--s3_bucket b --s3_train_csv_key speech/train.csv`.
MANIFEST_KEYS = {
    "s3_train_csv_key": "data.train",
    "s3_valid_csv_key": "data.validation",
    "s3_test_csv_key": "data.test",
}


def _model_of_size(size: str) -> Mapping[str, Any]:
    released = {name: hub_id for part in family_parts().values() for name, hub_id in part.released.items()}
    if size not in released:
        raise ValueError(f"the sizes are {', '.join(released)}; --model_name_or_path names other weights")
    return {"model.name_or_path": released[size]}


def _run_of_folder(folder: str) -> Mapping[str, Any]:
    parent, name = posixpath.split(folder.rstrip("/"))
    if name in ("", ".", ".."):
        raise ValueError("name the run's own folder, e.g. /mnt/runs/whisper-sr: run.storage_path /mnt/runs, run.name …")
    return {"run.storage_path": parent or ("/" if folder.startswith("/") else "."), "run.name": name}


def _scores(names: Sequence[str]) -> Mapping[str, Any]:
    unknown = [name for name in names if name not in known_metrics()]
    if unknown:
        scored = ", ".join(known_metrics())
        raise ValueError(f"{scored} are always scored, and nothing else is: leave out {', '.join(unknown)}")
    return {}


def _masks(name: str, probability: float) -> Mapping[str, Any]:
    """Turns masking on, as the CTC scripts always do, unless the probability is 0."""
    return {f"model.{name}": probability, **({_MASKING: True} if probability else {})}


MODEL = (
    Flag(
        "model_size", TEXT, "model.name_or_path", sets=_model_of_size, reason="tiny, base, small, …: OpenAI's weights"
    ),
    *fields("model", TEXT, "language", "task", "tokenizer_name", "feature_extractor_name", "attn_implementation"),
    *renamed(TEXT, model_name_or_path="model.name_or_path", tokenizer_name_or_path="model.tokenizer_name"),
    *renamed(TEXT, model_revision="model.revision"),
    Flag("freeze_encoder", SWITCH, "adapt.method", always=(False,), meanings={True: "freeze_encoder"}),
    *fields("model", SWITCH, "freeze_feature_encoder", "apply_spec_augment", "ctc_zero_infinity"),
    *fields("model", NUMBER, "attention_dropout", "activation_dropout", "hidden_dropout"),
    *fields("model", NUMBER, "feat_proj_dropout", "final_dropout", "layerdrop"),
    *(
        Flag(name, NUMBER, f"model.{name}, {_MASKING}", sets=partial(_masks, name), reason="0 leaves masking off")
        for name in ("mask_time_prob", "mask_feature_prob")
    ),
    *fields("model", WHOLE, "mask_time_length", "mask_feature_length"),
    *fields("model", TEXT, "ctc_loss_reduction", "unk_token", "pad_token", "word_delimiter_token"),
    *only(False, _ADAPTERS, "add_adapter", "overwrite_lang_vocab"),
    *refused(WHOLE, _ADAPTERS, "adapter_attn_dim"),
    *refused(TEXT, f"{_ADAPTERS}; model.language is the language of the speech", "target_language"),
    *refused(TEXT, "the config comes with the weights, model.name_or_path", "config_name"),
    *only(True, "the fast tokenizer is used if there is one", "use_fast_tokenizer"),
    *refused(TEXT, "phonemes are not supported: transcripts are text", "phoneme_language"),
    *refused(WORDS, "model.language and model.task decide how a hypothesis begins", "forced_decoder_ids"),
    *refused(WORDS, "the generation config of the weights has them", "suppress_tokens"),
    *refused(
        WHOLE,
        "labels are padded to the longest of their batch; model.max_context_s makes batches of equal length",
        "label_features_max_length",
    ),
    *refused(TEXT, "set HF_HOME where the job runs (job.runtime_env.env_vars), not data.cache_dir", "cache_dir"),
    *only(False, "code that comes with weights is never run, since it could do anything", "trust_remote_code"),
    *refused(TEXT, TOKEN, "token"),
    *only(True, "the machine's login or HF_TOKEN is used if there is one: unset it to use none", "use_auth_token"),
)
DATA = (
    *renamed(TEXT, dataset="data.dataset.name", dataset_name="data.dataset.name"),
    *renamed(TEXT, name="data.dataset.config_name", dataset_config_name="data.dataset.config_name"),
    *renamed(TEXT, train_split_name="data.dataset.train_split", eval_split_name="data.dataset.validation_split"),
    Flag(
        BUCKET,
        TEXT,
        ", ".join(MANIFEST_KEYS.values()),
        sets=lambda bucket: {},
        reason="the bucket of the manifests, with a key for each",
    ),
    *(Flag(key, TEXT, field, reason=f"s3://<{BUCKET}>/<{key}>") for key, field in MANIFEST_KEYS.items()),
    *fields("data", TEXT, "audio_column_name", "text_column_name"),
    *renamed(TEXT, text_column="data.text_column_name"),
    *renamed(NUMBER, max_duration_in_seconds="data.max_duration_s", min_duration_in_seconds="data.min_duration_s"),
    *fields("data", SWITCH, "do_lower_case", "do_remove_punctuation", "do_normalize_eval"),
    Flag(
        "chars_to_ignore",
        WORDS,
        "data.chars_to_ignore",
        sets=lambda texts: {"data.chars_to_ignore": ignored_characters(texts)},
        note=ranges_note,
        reason="the characters of a regular expression's class, as in the scripts: !-; is a range, with all digits",
    ),
    Flag("eval_metrics", WORDS, sets=_scores, reason="wer, cer, ser are always scored"),
    *ignored(WHOLE, "all CPUs of the cluster prepare the data", "preprocessing_num_workers"),
    *only(
        False,
        "prepared data is found by its content, so it is never out of date; data.cache_dir names another place",
        "overwrite_cache",
    ),
    *refused(WHOLE, _SHORTER.format("train"), "max_train_samples"),
    *refused(WHOLE, _SHORTER.format("validation"), "max_eval_samples"),
    *ignored(SWITCH, "nodes read and prepare a data set piece by piece", "streaming"),
    *refused(WHOLE, "the complete set is shuffled, or training.shuffle_window_shards at a time", "shuffle_buffer_size"),
)
RUN = (
    Flag("output_dir", TEXT, "run.storage_path, run.name", sets=_run_of_folder, reason="the run's own folder"),
    *renamed(TEXT, **{"run-name": "run.name", "storage-path": "run.storage_path"}),
    Flag("num-workers", RANGE, "scaling.num_workers", reason="2:8 is elastic, from 2 to 8"),
    *renamed(SWITCH, **{"use-gpu": "scaling.use_gpu"}),
    *fields("run", WHOLE, "seed"),
    Flag(
        "do_train",
        SWITCH,
        verbs={True: (TRAIN,), False: (EVALUATE, PREPARE, CHECK)},
        reason=f"task.py trains; {SCORE_ALONE}, and --verb prepare prepares data",
    ),
    Flag(
        "do_eval",
        SWITCH,
        verbs={True: (TRAIN, EVALUATE), False: (PREPARE, CHECK)},
        reason=f"the validation set is scored every training.eval_steps; without --do_train, {SCORE_ALONE}",
    ),
    Flag(
        "do_predict",
        SWITCH,
        verbs={True: (TRAIN, EVALUATE), False: (EVALUATE, PREPARE, CHECK)},
        reason="the test set is scored at the end; data.test: null or data.dataset.test_split: null turns this off",
    ),
    Flag(
        "preprocessing_only",
        SWITCH,
        verbs={True: (PREPARE,), False: (TRAIN, EVALUATE, CHECK)},
        reason="--verb prepare prepares data and does nothing else",
    ),
)
_WORKERS = "Ray starts the workers, one process each: --num-workers N (scaling.num_workers)"
LAUNCHER = (
    *refused(WHOLE, _WORKERS, "world_size"),
    *refused(TEXT, f"{_WORKERS}, on the nodes of its cluster", "hostfile"),
    *only(False, _WORKERS, "use_mpi"),
    *only(False, "--set strategy.name=deepspeed, or --deepspeed ds_config.json with your own config", "use_deepspeed"),
    *ignored(WHOLE, "Ray finds free ports", "master_port"),
)
_HPU = (
    "it is for HPUs, which need the vendor's image and Optimum's Trainer: `rayscribe launch` runs the script itself on "
    "them; scaling.use_gpu: true trains on GPUs, false on CPUs"
)
GAUDI = (
    *only(False, _HPU, "use_habana", "use_lazy_mode", "pipelining_fwd_bwd", "sdp_on_bf16"),
    *only(False, _HPU, "use_hpu_graphs", "use_hpu_graphs_for_inference", "use_hpu_graphs_for_training"),
    *only(False, _HPU, "disable_tensor_cache_hpu_graphs", "profiling_record_shapes", "profiling_with_stack"),
    *refused(WHOLE, _HPU, "max_hpu_graphs", "profiling_warmup_steps", "profiling_steps"),
    *refused(TEXT, _HPU, "gaudi_config_name"),
    *only(False, "training.torch_compile compiles the model's layers", "use_compiled_autograd", "compile_dynamic"),
    *only("ddp", "strategy.name is ddp, deepspeed or fsdp", "distribution_strategy"),
    *refused(WHOLE, "each recording is on one worker; strategy.name shards the weights", "context_parallel_size"),
    *ignored(WHOLE, "it only measures; clips per second are reported over all steps", "throughput_warmup_steps"),
    *ignored(SWITCH, "it only measures; the times of a step are always reported", "adjust_throughput"),
    *only(False, "a hypothesis ends where the model ends it", "ignore_eos"),
    *only(False, "training.training_args.dataloader_pin_memory has the same purpose", "non_blocking_data_copy"),
    *only(False, "training computes in 32 bits, or with training.bf16 or training.fp16", "fp8"),
)


def with_urls(values: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of flags with each manifest's key replaced by its URL.

    Raises:
        ConfigError: The bucket or all keys are missing, or a key is itself a URL.
    """
    bucket, keys = values.get(BUCKET), {name: values[name] for name in MANIFEST_KEYS if values.get(name) is not None}
    if bucket is None and not keys:
        return dict(values)
    if bucket is None:
        name, key = next(iter(keys.items()))
        raise ConfigError(f"--{BUCKET} is missing: --{name} {key} is the key of a manifest in it")
    if not keys:
        raise ConfigError(
            f"--{BUCKET} {bucket}: name the manifests in it, by {', '.join(f'--{key}' for key in MANIFEST_KEYS)}"
        )
    for name, key in keys.items():
        if is_url(key):
            by_set = f"--set {MANIFEST_KEYS[name]}={key}"
            raise ConfigError(f"--{name} {key}: give the key in --{BUCKET} alone, or the URL by {by_set}")
    root = bucket.removeprefix(S3_SCHEME).strip("/")
    return {**values, **{name: f"{S3_SCHEME}{root}/{key.lstrip('/')}" for name, key in keys.items()}}
