import warnings
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import Seq2SeqTrainingArguments
from transformers.integrations.deepspeed import is_deepspeed_zero3_enabled
from transformers.integrations.integration_utils import INTEGRATION_TO_CALLBACK

from tests.trainers.synthetic import config
from trainers.config import optional_packages
from trainers.config.optional_packages import TRACKERS, missing_access
from trainers.distributed.machine import CPUS
from trainers.errors import ConfigError
from trainers.training.arguments import (
    LOADERS,
    OWNED,
    autocast_dtype,
    check_trackers,
    check_training_args,
    strategy_arguments,
    training_arguments,
)


def arguments(changes: dict[str, Any], folder: Path, accumulation: int = 1) -> Seq2SeqTrainingArguments:
    return training_arguments(config(changes), output_dir=folder, accumulation=accumulation, on_gpu=False)


@pytest.mark.parametrize(
    ("field", "value", "argument"),
    [
        ("run.seed", 7, "seed"),
        ("training.max_steps", 77, "max_steps"),
        ("training.per_device_train_batch_size", 3, "per_device_train_batch_size"),
        ("training.per_device_eval_batch_size", 5, "per_device_eval_batch_size"),
        ("training.learning_rate", 3e-4, "learning_rate"),
        ("training.warmup_steps", 9, "warmup_steps"),
        ("training.lr_scheduler_type", "cosine", "lr_scheduler_type"),
        ("training.weight_decay", 0.02, "weight_decay"),
        ("training.max_grad_norm", 0.5, "max_grad_norm"),
        ("training.save_steps", 40, "save_steps"),
        ("training.save_steps", 40, "eval_steps"),
        ("training.logging_steps", 6, "logging_steps"),
        ("training.bf16", True, "bf16"),
        ("training.gradient_checkpointing", True, "gradient_checkpointing"),
        ("training.report_to", ["clearml"], "report_to"),
        ("training.report_to", [], "report_to"),
    ],
)
def test_a_field_reaches_its_argument(field: str, value: Any, argument: str, tmp_path: Path) -> None:
    assert getattr(arguments({field: value}, tmp_path), argument) == value


@pytest.mark.parametrize(
    ("given", "cpus", "loaders"),
    [({}, 2 * LOADERS, LOADERS), ({}, LOADERS - 1, LOADERS - 1), ({"dataloader_num_workers": 0}, LOADERS, 0)],
)
def test_a_gpu_s_clips_are_decoded_by_processes_of_their_own(
    given: dict[str, Any], cpus: int, loaders: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(CPUS, str(cpus))
    made = config({"training.training_args": given})
    on_gpu = training_arguments(made, output_dir=tmp_path, accumulation=1, on_gpu=True)
    assert on_gpu.dataloader_num_workers == loaders
    assert on_gpu.dataloader_persistent_workers == bool(loaders)
    assert arguments({"training.training_args": given}, tmp_path).dataloader_num_workers == 0


@pytest.mark.parametrize("given", [{}, {"logging_nan_inf_filter": True}])
def test_a_loss_that_is_not_finite_is_logged_as_it_is(given: dict[str, Any], tmp_path: Path) -> None:
    assert not arguments({"training.training_args": given}, tmp_path).logging_nan_inf_filter


@pytest.mark.parametrize("name", ["gradient_checkpointing_kwargs", "activation_checkpointing_kwargs"])
def test_nothing_is_given_by_a_name_that_transformers_warns_of(name: str, tmp_path: Path) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error", FutureWarning)
        arguments({}, tmp_path)
        given = {"training.gradient_checkpointing": True, "training.training_args": {name: {"use_reentrant": True}}}
        made = arguments(given, tmp_path)
    assert made.gradient_checkpointing_kwargs == {"use_reentrant": True}, "the user's, by whichever name"


def test_scores_come_at_their_own_steps(tmp_path: Path) -> None:
    made = arguments({"training.save_steps": 40, "training.eval_steps": 20}, tmp_path)
    assert (made.save_steps, made.eval_steps) == (40, 20)


def test_epochs_stand_for_steps(tmp_path: Path) -> None:
    made = arguments({"training.max_steps": None, "training.num_train_epochs": 2.5}, tmp_path)
    assert (made.max_steps, made.num_train_epochs) == (-1, 2.5)


def test_accumulation_is_that_of_the_batch_shape(tmp_path: Path) -> None:
    made = arguments({"training.gradient_accumulation_steps": 2}, tmp_path, accumulation=6)
    assert made.gradient_accumulation_steps == 6
    assert made.output_dir == str(tmp_path)


def test_what_exactness_rests_on_is_always_set(tmp_path: Path) -> None:
    made = arguments({}, tmp_path)
    assert made.ddp_find_unused_parameters is True
    assert made.average_tokens_across_devices is True
    assert made.remove_unused_columns is False
    assert made.load_best_model_at_end is False
    assert made.dataloader_drop_last is False
    assert made.use_cpu is True


def test_further_arguments_reach_the_trainer(tmp_path: Path) -> None:
    extra = {"adam_beta2": 0.98, "dataloader_num_workers": 2, "label_smoothing_factor": 0.1}
    made = arguments({"training.training_args": extra}, tmp_path)
    assert {name: getattr(made, name) for name in extra} == extra


@pytest.mark.parametrize("name", sorted(OWNED))
def test_an_owned_argument_is_refused_with_what_to_use(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_training_args({name: 1})
    assert f"training.training_args.{name}: Rayscribe sets this itself; {OWNED[name]}" in str(caught.value)


def test_an_unknown_argument_is_refused_with_the_nearest(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"adam_beta3: no Seq2SeqTrainingArguments .* did you mean adam_beta[12]\?"):
        arguments({"training.training_args": {"adam_beta3": 0.9}}, tmp_path)


def test_all_of_them_come_in_one_message() -> None:
    with pytest.raises(ConfigError) as caught:
        check_training_args({"output_dir": "x", "zzz": 1, "adam_beta1": 0.9})
    lines = str(caught.value).splitlines()
    assert [line.split(":")[0].rpartition(".")[2] for line in lines] == ["output_dir", "zzz"]


def test_a_value_that_transformers_refuses_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="training: transformers refuses"):
        arguments({"training.lr_scheduler_type": "zigzag"}, tmp_path)


@pytest.mark.parametrize(
    ("changes", "dtype"),
    [
        ({}, None),
        ({"training.bf16": True}, torch.bfloat16),
        ({"training.fp16": True, "scaling.use_gpu": True}, torch.float16),
    ],
)
def test_scoring_shares_the_precision_of_training(changes: dict[str, Any], dtype: torch.dtype | None) -> None:
    assert autocast_dtype(config(changes)) == dtype


class TestStrategy:
    def test_ddp_asks_for_nothing(self, tmp_path: Path) -> None:
        assert strategy_arguments(config().strategy) == {}
        made = arguments({}, tmp_path)
        assert (made.deepspeed, bool(made.fsdp)) == (None, False)

    def test_deepspeed_gets_the_config_with_its_autos_filled(self, tmp_path: Path) -> None:
        pytest.importorskip("deepspeed")
        zero = {"strategy.name": "deepspeed", "strategy.zero_stage": 3, "training.max_grad_norm": 0.5}
        made = arguments({**zero, "training.per_device_train_batch_size": 3}, tmp_path, accumulation=2)
        filled = made.hf_deepspeed_config.config
        assert filled["train_micro_batch_size_per_gpu"] == 3
        assert filled["gradient_accumulation_steps"] == 2
        assert filled["gradient_clipping"] == 0.5
        assert filled["bf16"] == filled["fp16"] == {"enabled": False}
        assert filled["zero_optimization"]["stage"] == 3
        assert not is_deepspeed_zero3_enabled(), "models that are loaded meanwhile are whole"

    def test_fsdp_is_version_2(self) -> None:
        rendered = strategy_arguments(config({"strategy.name": "fsdp", "scaling.use_gpu": True}).strategy)
        assert rendered == {"fsdp": True, "fsdp_config": {"version": 2, "state_dict_type": "SHARDED_STATE_DICT"}}
        made = Seq2SeqTrainingArguments(use_cpu=True, report_to="none", **rendered)
        assert made.fsdp_plugin_args is not None
        assert made.fsdp_plugin_args["fsdp_version"] == 2
        assert made.fsdp_plugin_args["reshard_after_forward"] is True


class TestPackages:
    def test_one_that_is_missing_is_found_before_the_workers_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        wanted = config({"strategy.name": "deepspeed", "training.report_to": ["tensorboard"]})
        check_trackers(wanted)
        monkeypatch.setattr(optional_packages, "find_spec", lambda name: None)
        with pytest.raises(ConfigError) as caught:
            check_trackers(wanted)
        deepspeed, tensorboard = str(caught.value).splitlines()
        assert "strategy.name deepspeed needs the package deepspeed" in deepspeed
        assert "pip install 'rayscribe[deepspeed]' (on a cluster" in deepspeed
        assert tensorboard.startswith("training.report_to tensorboard needs the package tensorboard, which is not")

    @pytest.mark.parametrize("name", sorted(INTEGRATION_TO_CALLBACK))
    def test_each_tracker_of_transformers_can_be_used_or_is_refused_by_name(
        self, name: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        need, wanted = TRACKERS.get(name), config({"training.report_to": [name]})
        assert need is not None or name == "kubeflow"
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        if need is not None and need.is_installed:
            check_trackers(wanted)
            return
        with pytest.raises((ImportError, RuntimeError, ValueError)):
            INTEGRATION_TO_CALLBACK[name]()
        with pytest.raises(ConfigError, match=rf"training.report_to:? {name} .*leave {name} out"):
            check_trackers(wanted)

    def test_a_tracker_that_transformers_lacks_is_named_with_the_nearest(self) -> None:
        with pytest.raises(ConfigError, match=r"wandbb is not a tracker of transformers: did you mean wandb\?"):
            check_trackers(config({"training.report_to": ["wandbb"]}))

    def test_all_are_those_that_are_installed(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("WANDB_MODE", "offline")
        monkeypatch.setenv("MLFLOW_TRACKING_URI", "http://127.0.0.1:9")
        check_trackers(config({"training.report_to": ["all"]}))

    def test_transformers_feeds_only_trackers_that_we_do_not(self, tmp_path: Path) -> None:
        fed = ["tensorboard", "wandb", "mlflow", "trackio"]
        assert arguments({"training.report_to": [*fed, "clearml"]}, tmp_path).report_to == ["clearml"]
        assert arguments({"training.report_to": fed}, tmp_path).report_to == []

    def test_what_a_tracker_lacks_to_reach_its_server_is_an_error(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        login = tmp_path / "netrc"
        login.write_text("machine wandb.example.org login user password secret")
        lacks = partial(missing_access, ["tensorboard", "wandb", "mlflow"])
        nowhere = {"NETRC": str(tmp_path / "none")}
        wandb, mlflow = lacks(nowhere)
        assert wandb.startswith("training.report_to wandb needs WANDB_API_KEY (of a job: job.runtime_env.secrets)")
        assert mlflow.startswith("training.report_to mlflow needs MLFLOW_TRACKING_URI: set it to the server's URL")
        served = {**nowhere, "MLFLOW_TRACKING_URI": "http://server"}
        assert lacks(served) == [wandb]
        assert lacks({**served, "WANDB_API_KEY": "k"}) == lacks({**served, "WANDB_MODE": "offline"}) == []
        logged_in = {**served, "NETRC": str(login)}
        assert lacks(logged_in) == [wandb]
        assert lacks({**logged_in, "WANDB_BASE_URL": "https://wandb.example.org"}) == []
        monkeypatch.setattr(optional_packages, "find_spec", lambda name: name)
        for name in ("WANDB_API_KEY", "WANDB_MODE", "WANDB_IDENTITY_TOKEN_FILE"):
            monkeypatch.delenv(name, raising=False)
        monkeypatch.setenv("NETRC", nowhere["NETRC"])
        with pytest.raises(ConfigError, match=r"training\.report_to wandb needs WANDB_API_KEY"):
            check_trackers(config({"training.report_to": ["wandb"]}))
