"""Flags that Optimum's scripts for Intel Gaudi have next to those of transformers: why each means nothing on a GPU."""

from trainers.config.flags.flag import SWITCH, TEXT, WHOLE, Flag, ignored, off, refused

_HPU = (
    "HPUs need the vendor's image and Optimum's Trainer, with which `rayscribe launch` runs the script itself; "
    "scaling.use_gpu: true trains on GPUs, false on CPUs"
)
_GRAPHS = "HPU graphs are how Gaudi replays a step; on GPUs and CPUs training.torch_compile compiles the model's layers"
_COMPILED = "training.torch_compile compiles the model's layers for each shape of a batch"
_PROFILER = "the profiler is that of HPUs: profile on Gaudi, with `rayscribe launch`"

GAUDI = (
    *off(_HPU, "use_habana"),
    *refused(
        TEXT,
        "the file chooses operators of HPUs, such as their fused AdamW; on GPUs and CPUs they are torch's own",
        "gaudi_config_name",
    ),
    *off(
        "lazy mode is how HPUs collect a graph; GPUs and CPUs execute at once, and training.torch_compile compiles",
        "use_lazy_mode",
    ),
    *off(_GRAPHS, "use_hpu_graphs", "use_hpu_graphs_for_inference", "use_hpu_graphs_for_training"),
    *off("it bounds the memory of HPU graphs, and there are none", "disable_tensor_cache_hpu_graphs"),
    *refused(WHOLE, "it bounds the memory of HPU graphs, and there are none", "max_hpu_graphs"),
    *off(_COMPILED, "use_compiled_autograd", "compile_dynamic"),
    Flag(
        "distribution_strategy",
        TEXT,
        always=("ddp",),
        reason="strategy.name says how the workers share the training: ddp, deepspeed or fsdp",
    ),
    *refused(WHOLE, "each recording is on one worker; strategy.name shards the weights", "context_parallel_size"),
    *ignored(WHOLE, "it only measures: clips per second are reported of all steps", "throughput_warmup_steps"),
    *ignored(SWITCH, "it only measures: what a step waits for is reported by itself", "adjust_throughput"),
    *off("it overlaps the graphs of an HPU's forward and backward pass, and there are none", "pipelining_fwd_bwd"),
    *off("a hypothesis ends where the model ends it", "ignore_eos"),
    *off("training.training_args.dataloader_pin_memory says how batches reach the device", "non_blocking_data_copy"),
    *refused(WHOLE, _PROFILER, "profiling_warmup_steps", "profiling_steps"),
    *off(_PROFILER, "profiling_record_shapes", "profiling_with_stack"),
    *off("it is about attention on HPUs; model.attn_implementation says how it is computed here", "sdp_on_bf16"),
    *off("training is in training.bf16 or training.fp16, or in 32 bits", "fp8"),
)
