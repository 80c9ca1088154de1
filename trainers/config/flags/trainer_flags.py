"""Lists the flags of the Hugging Face Trainer: all fields of Seq2SeqTrainingArguments, and those of earlier versions.

Those in PASSED_ON are passed to the Trainer unchanged, through `training.training_args`.
"""

from trainers.config.flags.flag import (
    MAPPING,
    NUMBER,
    STEPS,
    SWITCH,
    SWITCH_OR_TEXT,
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
from trainers.metrics.known_metrics import known_metrics

CHECKPOINTS_STAY = (
    "only the best model is pushed, once, at the end; checkpoints are safe in a bucket (run.storage_path: s3://…), "
    "from which a run continues on any node"
)
_BY_STEPS = "training.{} is the interval, in optimizer steps"
_BEST = (
    "checkpoint.checkpoint_score_attribute ranks checkpoints: eval_wer, eval_cer or eval_ser, of which less is better, "
    "or a metric of scoring.metrics, by checkpoint.checkpoint_score_order"
)
_REPOSITORY = "hub.model_id names the repository: --hub_model_id OWNER/NAME"
TOKEN = "a token has no place in a command: set HF_TOKEN where the job runs (job.runtime_env.secrets), or log in there"
_SHARDED = "strategy.name says how training is sharded: ddp, deepspeed or fsdp"
_PLANNED = "the batch plan decides which utterances form a batch, and leaves none out"
_COUNTED = "each utterance's errors are counted in its own batch, and only the counts are kept"
_AUTOCAST = "mixed precision is torch's autocast: training.fp16 or training.bf16 alone"
_COMPILER = "training.torch_compile compiles the model's layers with torch's own compiler"
_LENGTHS = "utterances are shuffled, and with model.max_context_s each batch has clips of similar length"
_DEVICE = "training runs on GPUs (scaling.use_gpu: true) or CPUs, which scaling.backend connects"
_PRECISION = "scoring has the precision of training: training.fp16 or training.bf16"
_RATES = "metrics are error rates of transcripts, see docs/scoring.md"


def _best(name: str) -> dict[str, str]:
    if name.removeprefix("eval_") not in known_metrics():
        raise ValueError(_BEST)
    return {"checkpoint.checkpoint_score_attribute": f"eval_{name.removeprefix('eval_')}"}


def _fsdp(texts: list[str]) -> dict[str, str]:
    options = set(" ".join(texts).lower().split())
    if options <= {"false"}:
        return {}
    if other := options - {"full_shard", "auto_wrap", "true"}:
        raise ValueError(f"strategy.name: fsdp is full_shard auto_wrap (FSDP2), and has no {', '.join(sorted(other))}")
    return {"strategy.name": "fsdp"}


FIELDS = (
    *fields("training", WHOLE, "per_device_train_batch_size", "per_device_eval_batch_size"),
    *fields("training", WHOLE, "gradient_accumulation_steps"),
    *fields("training", NUMBER, "learning_rate", "weight_decay", "max_grad_norm", "num_train_epochs"),
    *fields("training", TEXT, "lr_scheduler_type"),
    *fields("training", STEPS, "warmup_steps", "save_steps", "eval_steps", "logging_steps"),
    *fields("training", SWITCH, "fp16", "bf16", "gradient_checkpointing", "torch_compile"),
    Flag("max_steps", STEPS, "training.max_steps", always=(-1,), reason="-1: training.num_train_epochs is the length"),
    *renamed(WHOLE, generation_max_length="decode.max_length", generation_num_beams="decode.num_beams"),
    *renamed(WHOLE, save_total_limit="checkpoint.num_to_keep"),
    *renamed(WHOLE, per_gpu_train_batch_size="training.per_device_train_batch_size"),
    *renamed(WHOLE, per_gpu_eval_batch_size="training.per_device_eval_batch_size"),
    *renamed(SWITCH, activation_checkpointing="training.gradient_checkpointing"),
    *renamed(SWITCH, push_to_hub="hub.push", hub_private_repo="hub.private"),
    *renamed(TEXT, hub_model_id="hub.model_id", ddp_backend="scaling.backend"),
    Flag(
        "report_to",
        WORDS,
        "training.report_to",
        sets=lambda names: {"training.report_to": [] if names == ["none"] else names},
    ),
    Flag("metric_for_best_model", TEXT, "checkpoint.checkpoint_score_attribute", sets=_best, reason=_BEST),
    *(
        Flag(name, SWITCH, "scaling.use_gpu", meanings={True: False}, reason="scaling.use_gpu: true trains on GPUs")
        for name in ("use_cpu", "no_cuda")
    ),
    Flag("adafactor", SWITCH, "training.training_args.optim", always=(False,), meanings={True: "adafactor"}),
    Flag(
        "deepspeed",
        TEXT,
        "strategy.ds_config",
        sets=lambda path: {"strategy.name": "deepspeed", "strategy.ds_config": path},
    ),
    Flag("fsdp", WORDS, "strategy.name", sets=_fsdp, reason="full_shard auto_wrap, which is FSDP2; no other word"),
    Flag(
        "resume_from_checkpoint",
        SWITCH_OR_TEXT,
        "run.resume",
        meanings={True: "auto", False: "never"},
        reason="a run continues from its newest checkpoint by itself; run.resume: from:<checkpoint> starts another run "
        "with a checkpoint's weights",
    ),
    Flag(
        "debug",
        SWITCH_OR_TEXT,
        "training.training_args.debug",
        always=(True, False, ""),
        reason="the flag alone takes two batches through every stage, and keeps no files; a text is the Trainer's",
    ),
)
DECIDED = (
    *only(False, "nothing is ever deleted: give another run.name", "overwrite_output_dir"),
    *only("steps", _BY_STEPS.format("eval_steps"), "eval_strategy", "evaluation_strategy"),
    *only(True, _BY_STEPS.format("eval_steps"), "evaluate_during_training"),
    *only(0.0, "every checkpoint is scored: training.eval_steps is the interval", "eval_delay"),
    *only(False, "the first score is after training.eval_steps; --verb evaluate scores weights", "eval_on_start"),
    *only("steps", _BY_STEPS.format("save_steps"), "save_strategy"),
    *only("steps", _BY_STEPS.format("logging_steps"), "logging_strategy"),
    *only(True, "hypotheses are always generated, of at most decode.max_length tokens", "predict_with_generate"),
    *only(False, "hypotheses are always generated, and checkpoints ranked by their errors", "prediction_loss_only"),
    *refused(TEXT, "the weights' own is used, with decode.max_length and decode.num_beams", "generation_config"),
    *only(
        True,
        "the best checkpoint is always exported; the newest stays in checkpoints/ (checkpoint.num_to_keep)",
        "load_best_model_at_end",
    ),
    *only(False, _BEST, "greater_is_better"),
    *ignored(SWITCH, _LENGTHS, "group_by_length"),
    *ignored(TEXT, _LENGTHS, "length_column_name"),
    *only(False, _LENGTHS, "sortish_sampler"),
    Flag("train_sampling_strategy", TEXT, always=("random", "group_by_length"), reason=_LENGTHS),
    *only(0.0, "give the number of steps: training.warmup_steps = ratio × training.max_steps", "warmup_ratio"),
    *refused(WHOLE, "run.seed is also the seed of the order of utterances", "data_seed"),
    *only(
        False,
        "run.resume: auto restores everything that training depends on, and continues with the next batch of the plan",
        *("ignore_data_skip", "restore_callback_states_from_checkpoint"),
    ),
    *only(False, "training.max_batch_duration_s limits the size of a batch", "auto_find_batch_size"),
    *only(False, "a checkpoint has everything that a run needs to continue; model/ has weights", "save_only_model"),
    *only(False, "a checkpoint is saved once, in run.storage_path", "save_on_each_node"),
    *only(True, "weights are always stored as safetensors", "save_safetensors"),
    *ignored(SWITCH, "a run that is asked to stop always saves a checkpoint", "enable_jit_checkpoint"),
    *only(False, _PRECISION, "fp16_full_eval", "bf16_full_eval"),
    Flag("half_precision_backend", TEXT, always=("auto", "cuda_amp", "cpu_amp"), reason=_AUTOCAST),
    Flag("fp16_backend", TEXT, always=("auto", "amp", "cuda_amp", "cpu_amp"), reason=_AUTOCAST),
    *refused(TEXT, _AUTOCAST, "fp16_opt_level"),
    *only(False, _DEVICE, "use_mps_device", "tpu_metrics_debug", "use_ipex"),
    *refused(WHOLE, _DEVICE, "tpu_num_cores"),
    *refused(TEXT, _DEVICE, "xpu_backend"),
    *only(False, _COMPILER, "jit_mode_eval"),
    *refused(TEXT, _COMPILER, "torchdynamo"),
    *only("inductor", _COMPILER, "torch_compile_backend"),
    *only("default", _COMPILER, "torch_compile_mode"),
    *refused(TEXT, "TensorBoard reads the run folder: <run.storage_path>/<run.name>/tensorboard", "logging_dir"),
    *only(-1, "Ray starts the workers: scaling.num_workers", "local_rank"),
    *only(1800, "a collective that hangs for 1800 s ends the worker group", "ddp_timeout"),
    *only(True, "without this, a resumed run would differ from an uninterrupted one", "ddp_find_unused_parameters"),
    *only(True, "the loss is normalized by the labels of all workers", "average_tokens_across_devices"),
    *refused(
        TEXT, _SHARDED, "fsdp_config", "fsdp_transformer_layer_cls_to_wrap", "parallelism_config", "mp_parameters"
    ),
    *refused(WHOLE, _SHARDED, "fsdp_min_num_params"),
    *refused(WORDS, _SHARDED, "sharded_ddp"),
    *refused(TEXT, _PLANNED, "accelerator_config"),
    *only(False, _PLANNED, "dispatch_batches", "split_batches", "dataloader_drop_last"),
    *only(True, _PLANNED, "dataloader_in_order"),
    *refused(TEXT, "the loader's processes start in torch's default way", "dataloader_multiprocessing_context"),
    *ignored(SWITCH, "a prepared set has no unused columns", "remove_unused_columns"),
    *only(["labels"], "the labels of a recognizer are named labels", "label_names"),
    *ignored(WHOLE, _COUNTED, "eval_accumulation_steps"),
    *ignored(SWITCH, _COUNTED, "eval_do_concat_batches", "eval_use_gather_object", "batch_eval_metrics"),
    *only(False, _COUNTED, "use_legacy_prediction_loop"),
    *only(-1, "recognizers carry no state from batch to batch", "past_index"),
    *refused(WORDS, _RATES, "include_for_metrics"),
    *only(False, _RATES, "include_inputs_for_metrics"),
    *only(False, "clips, not tokens, are counted per second", "include_tokens_per_second"),
    *only("last", "hyperparameters are not searched: each run is one config", "ray_scope"),
    *only("end", CHECKPOINTS_STAY, "hub_strategy"),
    *ignored(SWITCH, CHECKPOINTS_STAY, "hub_always_push"),
    *only("main", "the model is pushed to the branch main of hub.model_id", "hub_revision"),
    *refused(TEXT, _REPOSITORY, "push_to_hub_model_id", "push_to_hub_organization"),
    *refused(TEXT, TOKEN, "hub_token", "push_to_hub_token"),
)
_AS_IT_IS = {
    SWITCH: (
        *("tf32", "use_liger_kernel", "use_cache", "logging_first_step", "log_on_each_node"),
        *("logging_nan_inf_filter", "disable_tqdm", "dataloader_pin_memory", "dataloader_persistent_workers"),
        *("ddp_broadcast_buffers", "ddp_static_graph", "skip_memory_metrics", "full_determinism"),
    ),
    WHOLE: ("torch_empty_cache_steps", "dataloader_num_workers", "dataloader_prefetch_factor", "ddp_bucket_cap_mb"),
    NUMBER: ("adam_beta1", "adam_beta2", "adam_epsilon", "label_smoothing_factor", "neftune_noise_alpha"),
    TEXT: (
        *("optim", "optim_args", "log_level", "log_level_replica"),
        *("project", "trackio_space_id", "trackio_bucket_id", "trackio_static_space_id"),
    ),
    SWITCH_OR_TEXT: ("include_num_input_tokens_seen",),
    WORDS: ("optim_target_modules",),
    MAPPING: (
        *("lr_scheduler_kwargs", "gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"),
        "liger_kernel_config",
    ),
}
PASSED_ON = tuple(flag for kind, names in _AS_IT_IS.items() for flag in fields("training.training_args", kind, *names))
