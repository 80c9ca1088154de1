"""Flags of the Hugging Face Trainer: all fields of Seq2SeqTrainingArguments, and those of earlier versions.

A name that is in no other table here is passed to the Trainer unchanged, through `training.training_args`.
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
    ValueType,
    fields,
    ignored,
    off,
    on,
    refused,
)
from trainers.config.parts.hub_part import CHECKPOINTS_STAY
from trainers.metrics.known_metrics import known_metrics

_BY_STEPS = "training.{} says after how many optimizer steps, each time; epochs do not"
_BEST = (
    "checkpoint.checkpoint_score_attribute: eval_wer, eval_cer or eval_ser ranks checkpoints, where less is better, or "
    "a metric of scoring.metrics by checkpoint.checkpoint_score_order"
)
_REPOSITORY = "hub.model_id names the repository: --hub_model_id OWNER/NAME"
TOKEN = "a token has no place in a command: set HF_TOKEN where the job runs (job.runtime_env.secrets), or log in there"
_SHARDED = "strategy.name says how training is sharded: ddp, deepspeed or fsdp"
_PLANNED = "the batch plan decides which utterances form a batch, and leaves none out"
_COUNTED = "each utterance's errors are counted in its own batch, and nothing else is kept of it"
_AUTOCAST = "mixed precision is torch's autocast: training.fp16 or training.bf16 alone"
_COMPILER = "training.torch_compile compiles the model's layers, by torch's own compiler"
_BACKEND = "scaling.backend says what processes communicate by"
_LENGTHS = "lengths come from the recordings, and model.max_context_s batches by them"
_CPU = "scaling.use_gpu: true says one GPU for each worker, false none"


def _best(name: str) -> dict[str, str]:
    if name.removeprefix("eval_") not in known_metrics():
        raise ValueError(_BEST)
    return {"checkpoint.checkpoint_score_attribute": f"eval_{name.removeprefix('eval_')}"}


def _fsdp(texts: list[str]) -> dict[str, str]:
    options = set(" ".join(texts).lower().split())
    if options <= {"false"}:
        return {}
    if other := options - {"full_shard", "auto_wrap", "true"}:
        raise ValueError(
            f"strategy.name: fsdp is full_shard auto_wrap (FSDP2), and knows no {', '.join(sorted(other))}"
        )
    return {"strategy.name": "fsdp"}


def _training(name: str, kind: ValueType, text: str) -> Flag:
    return Flag(name, kind, f"training.{name}", help=text)


FIELDS = (
    _training("per_device_train_batch_size", WHOLE, "utterances of one forward pass of a worker"),
    _training("per_device_eval_batch_size", WHOLE, "utterances of one generate call"),
    _training("gradient_accumulation_steps", WHOLE, "forward passes per optimizer step"),
    _training("learning_rate", NUMBER, "peak learning rate"),
    _training("lr_scheduler_type", TEXT, "shape of the decay after warm-up"),
    _training("warmup_steps", STEPS, "from zero to the peak learning rate (default: max_steps / 10, at most 500)"),
    *fields("training", NUMBER, "weight_decay", "max_grad_norm"),
    Flag(
        "max_steps",
        STEPS,
        "training.max_steps",
        always=(-1,),
        reason="-1: training.num_train_epochs says how long",
        help="optimizer steps",
    ),
    _training("num_train_epochs", NUMBER, "passes over the data, instead"),
    _training("save_steps", STEPS, "checkpoint this often"),
    _training("eval_steps", STEPS, "score the validation set this often"),
    _training("logging_steps", STEPS, "report the loss this often"),
    Flag("generation_max_length", WHOLE, "decode.max_length", help="most tokens of a hypothesis"),
    Flag("generation_num_beams", WHOLE, "decode.num_beams", help="beams of a hypothesis"),
    _training("fp16", SWITCH, "16-bit floats"),
    _training("bf16", SWITCH, "bfloat16"),
    _training("gradient_checkpointing", SWITCH, "recompute activations to save memory"),
    Flag("activation_checkpointing", SWITCH, "training.gradient_checkpointing"),
    _training("torch_compile", SWITCH, "compile the model's layers"),
    Flag(
        "report_to",
        WORDS,
        "training.report_to",
        sets=lambda names: {"training.report_to": [] if names == ["none"] else names},
        help="trackers; none for none",
    ),
    Flag("push_to_hub", SWITCH, "hub.push", help="push the best model to the Hub"),
    Flag("hub_model_id", TEXT, "hub.model_id", help="to this repository, OWNER/NAME"),
    Flag("hub_private_repo", SWITCH, "hub.private", help="which is private, where it is made"),
    Flag("hub_strategy", TEXT, "hub.strategy", meanings={"end": "end"}, reason=CHECKPOINTS_STAY),
    Flag("save_total_limit", WHOLE, "checkpoint.num_to_keep", help="keep this many of the best, and the newest"),
    Flag("metric_for_best_model", TEXT, "checkpoint.checkpoint_score_attribute", sets=_best, reason=_BEST),
    Flag("per_gpu_train_batch_size", WHOLE, "training.per_device_train_batch_size"),
    Flag("per_gpu_eval_batch_size", WHOLE, "training.per_device_eval_batch_size"),
    Flag("use_cpu", SWITCH, "scaling.use_gpu", meanings={True: False}, reason=_CPU),
    Flag("no_cuda", SWITCH, "scaling.use_gpu", meanings={True: False}, reason=_CPU),
    Flag("adafactor", SWITCH, "training.training_args.optim", always=(False,), meanings={True: "adafactor"}),
    Flag(
        "resume_from_checkpoint",
        SWITCH_OR_TEXT,
        "run.resume",
        meanings={True: "auto", False: "never"},
        reason="a run continues from its newest checkpoint by itself; run.resume: from:<checkpoint> starts another run "
        "with a checkpoint's weights",
    ),
)
DECIDED = (
    *off("nothing is ever deleted: give another run.name", "overwrite_output_dir"),
    Flag("eval_strategy", TEXT, always=("steps",), reason=_BY_STEPS.format("eval_steps")),
    Flag("evaluation_strategy", TEXT, always=("steps",), reason=_BY_STEPS.format("eval_steps")),
    *on(_BY_STEPS.format("eval_steps"), "evaluate_during_training"),
    Flag("save_strategy", TEXT, always=("steps",), reason=_BY_STEPS.format("save_steps")),
    Flag("logging_strategy", TEXT, always=("steps",), reason=_BY_STEPS.format("logging_steps")),
    *on(
        "hypotheses are always generated, decode.max_length tokens at most: a loss is no score",
        "predict_with_generate",
    ),
    *off("a checkpoint is ranked by an error rate: checkpoint.checkpoint_score_attribute", "prediction_loss_only"),
    *on(
        "the best checkpoint is always exported; the newest stays in checkpoints/ (checkpoint.num_to_keep)",
        "load_best_model_at_end",
    ),
    *off(_BEST, "greater_is_better"),
    *ignored(SWITCH, "with model.max_context_s, batches are of one length bucket each", "group_by_length"),
    Flag(
        "train_sampling_strategy",
        TEXT,
        always=("random", "group_by_length"),
        reason="utterances are shuffled, and grouped by length with model.max_context_s",
    ),
    *off(_LENGTHS, "sortish_sampler"),
    *ignored(TEXT, _LENGTHS, "length_column_name"),
    Flag(
        "warmup_ratio",
        NUMBER,
        always=(0.0,),
        reason="count the steps: training.warmup_steps is the ratio × training.max_steps",
    ),
    Flag("eval_delay", NUMBER, always=(0.0,), reason="every checkpoint is scored, each training.eval_steps"),
    *off(
        "the first score is that of step training.eval_steps; --verb evaluate scores the weights before",
        "eval_on_start",
    ),
    Flag("data_seed", WHOLE, reason="run.seed is the seed of the order too"),
    *off("a run that continues goes on with the next batch of its plan (run.resume: auto)", "ignore_data_skip"),
    *off("run.resume: auto restores what training depends on", "restore_callback_states_from_checkpoint"),
    *off("training.max_batch_duration_s bounds what a batch takes, whatever its length", "auto_find_batch_size"),
    *off("a checkpoint holds what continuing needs; model/ is the weights alone", "save_only_model"),
    *off("a checkpoint is saved once, in run.storage_path", "save_on_each_node"),
    *on("weights are always stored as safetensors", "save_safetensors"),
    *ignored(SWITCH, "a run that is asked to stop always saves a checkpoint", "enable_jit_checkpoint"),
    *off("scoring has the precision of training: training.fp16", "fp16_full_eval"),
    *off("scoring has the precision of training: training.bf16", "bf16_full_eval"),
    Flag("half_precision_backend", TEXT, always=("auto", "cuda_amp", "cpu_amp"), reason=_AUTOCAST),
    Flag("fp16_backend", TEXT, always=("auto", "amp", "cuda_amp", "cpu_amp"), reason=_AUTOCAST),
    Flag("fp16_opt_level", TEXT, reason=_AUTOCAST),
    *off("training is on CUDA GPUs (scaling.use_gpu: true) or on CPUs", "use_mps_device"),
    Flag("tpu_num_cores", WHOLE, reason="TPUs are not supported: scaling.use_gpu"),
    *off("TPUs are not supported: scaling.use_gpu", "tpu_metrics_debug"),
    *off("plain torch runs on CPUs", "use_ipex"),
    *off("training.torch_compile compiles the model", "jit_mode_eval"),
    Flag("torchdynamo", TEXT, reason=_COMPILER),
    Flag("torch_compile_backend", TEXT, always=("inductor",), reason=_COMPILER),
    Flag("torch_compile_mode", TEXT, always=("default",), reason=_COMPILER),
    *refused(TEXT, "TensorBoard reads the run folder: <run.storage_path>/<run.name>/tensorboard", "logging_dir"),
    Flag("local_rank", WHOLE, always=(-1,), reason="Ray starts the workers: scaling.num_workers"),
    Flag("ddp_backend", TEXT, "scaling.backend"),
    Flag("xpu_backend", TEXT, reason=_BACKEND),
    Flag("ddp_timeout", WHOLE, always=(1800,), reason="a collective that hangs for 1800 s ends the worker group"),
    *on("without it a resumed run would differ from an undisturbed one", "ddp_find_unused_parameters"),
    *on("the loss is normalized by the labels of all workers", "average_tokens_across_devices"),
    Flag(
        "deepspeed",
        TEXT,
        "strategy.ds_config",
        sets=lambda path: {"strategy.name": "deepspeed", "strategy.ds_config": path},
    ),
    Flag("fsdp", WORDS, "strategy.name", sets=_fsdp, reason="full_shard auto_wrap, which is FSDP2; no other word"),
    *refused(
        TEXT, _SHARDED, "fsdp_config", "fsdp_transformer_layer_cls_to_wrap", "parallelism_config", "mp_parameters"
    ),
    *refused(WHOLE, _SHARDED, "fsdp_min_num_params"),
    *refused(WORDS, _SHARDED, "sharded_ddp"),
    Flag("accelerator_config", TEXT, reason=_PLANNED),
    *off(_PLANNED, "dispatch_batches", "split_batches", "dataloader_drop_last"),
    *on(_PLANNED, "dataloader_in_order"),
    Flag("dataloader_multiprocessing_context", TEXT, reason="torch's default starts the loader's processes"),
    *ignored(SWITCH, "a prepared set has no unused columns", "remove_unused_columns"),
    Flag("label_names", WORDS, always=(["labels"],), reason="the labels of a recognizer are named labels"),
    *ignored(WHOLE, _COUNTED, "eval_accumulation_steps"),
    *ignored(SWITCH, _COUNTED, "eval_do_concat_batches", "eval_use_gather_object", "batch_eval_metrics"),
    *off(_COUNTED, "use_legacy_prediction_loop"),
    Flag("past_index", WHOLE, always=(-1,), reason="recognizers carry no state from batch to batch"),
    Flag("include_for_metrics", WORDS, reason="metrics are error rates of transcripts, see docs/scoring.md"),
    *off("metrics are error rates of transcripts, see docs/scoring.md", "include_inputs_for_metrics"),
    *off("clips, not tokens, are counted per second", "include_tokens_per_second"),
    Flag("generation_config", TEXT, reason="the weights' own is used; decode.max_length and decode.num_beams"),
    Flag(
        "debug",
        SWITCH_OR_TEXT,
        "training.training_args.debug",
        always=(True, False, ""),
        reason="the flag alone takes two batches through every stage, and keeps nothing; a text is the Trainer's",
    ),
    Flag("ray_scope", TEXT, always=("last",), reason="hyperparameters are not searched: each run is one config"),
    *ignored(SWITCH, "the model is pushed once, at the end", "hub_always_push"),
    *refused(TEXT, _REPOSITORY, "push_to_hub_model_id", "push_to_hub_organization"),
    *refused(TEXT, TOKEN, "hub_token", "push_to_hub_token"),
    Flag("hub_revision", TEXT, always=("main",), reason="the model is pushed to the branch main of hub.model_id"),
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
