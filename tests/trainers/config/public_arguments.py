"""Names of the arguments of the public speech recognition scripts, and of the Trainer's that newer versions dropped."""

SEQ2SEQ = (
    "model_name_or_path config_name tokenizer_name feature_extractor_name cache_dir use_fast_tokenizer model_revision "
    "token use_auth_token trust_remote_code freeze_feature_encoder freeze_encoder forced_decoder_ids suppress_tokens "
    "apply_spec_augment dataset_name dataset_config_name text_column overwrite_cache preprocessing_num_workers "
    "max_train_samples max_eval_samples audio_column_name text_column_name max_duration_in_seconds "
    "min_duration_in_seconds preprocessing_only train_split_name eval_split_name do_lower_case language task"
)
SEQ2SEQ_STREAMING = "do_remove_punctuation do_normalize_eval shuffle_buffer_size streaming"
CTC = (
    "model_name_or_path tokenizer_name_or_path cache_dir freeze_feature_encoder attention_dropout activation_dropout "
    "feat_proj_dropout hidden_dropout final_dropout mask_time_prob mask_time_length mask_feature_prob "
    "mask_feature_length layerdrop ctc_loss_reduction ctc_zero_infinity add_adapter dataset_name dataset_config_name "
    "train_split_name eval_split_name audio_column_name text_column_name overwrite_cache preprocessing_num_workers "
    "max_train_samples max_eval_samples chars_to_ignore eval_metrics max_duration_in_seconds min_duration_in_seconds "
    "preprocessing_only token use_auth_token trust_remote_code unk_token pad_token word_delimiter_token "
    "phoneme_language adapter_attn_dim target_language overwrite_lang_vocab"
)
GAUDI = (
    "label_features_max_length use_habana gaudi_config_name use_lazy_mode use_hpu_graphs use_hpu_graphs_for_inference "
    "use_hpu_graphs_for_training use_compiled_autograd compile_dynamic disable_tensor_cache_hpu_graphs max_hpu_graphs "
    "distribution_strategy context_parallel_size throughput_warmup_steps adjust_throughput pipelining_fwd_bwd "
    "ignore_eos non_blocking_data_copy profiling_warmup_steps profiling_steps profiling_record_shapes "
    "profiling_with_stack half_precision_backend ddp_backend sdp_on_bf16 fp8"
)
LAUNCHER = "world_size hostfile use_mpi use_deepspeed master_port"
DROPPED = (
    "overwrite_output_dir evaluation_strategy evaluate_during_training per_gpu_train_batch_size "
    "per_gpu_eval_batch_size warmup_ratio logging_dir save_safetensors no_cuda use_mps_device jit_mode_eval use_ipex "
    "half_precision_backend fp16_backend fp16_opt_level tpu_num_cores tpu_metrics_debug past_index group_by_length "
    "adafactor sharded_ddp fsdp_min_num_params fsdp_transformer_layer_cls_to_wrap push_to_hub_token "
    "push_to_hub_model_id push_to_hub_organization torchdynamo ray_scope include_inputs_for_metrics mp_parameters "
    "dispatch_batches split_batches include_tokens_per_second use_legacy_prediction_loop xpu_backend"
)
