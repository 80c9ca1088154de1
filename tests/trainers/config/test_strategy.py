"""The strategy part: what is refused before anything starts, and the DeepSpeed config that comes of the rest."""

import importlib
import inspect
import json
from pathlib import Path
from typing import Any

import pytest

from tests.trainers.config import advice
from tests.trainers.synthetic import config, content
from trainers.config.loader import build_config
from trainers.config.overrides import apply_overrides, parse_override
from trainers.config.parts.ds_config import FILLED, OFFLOAD_KEYS, ZERO_KEYS, ds_problems
from trainers.config.parts.part import PREPARE_SCOPE
from trainers.config.parts.strategy_part import WITHOUT_SHARDS, ds_config_of

ZERO: dict[str, Any] = {"strategy.name": "deepspeed", "scaling.num_workers": 2}
WHOLE: dict[str, Any] = {
    "train_batch_size": "auto",
    "train_micro_batch_size_per_gpu": "auto",
    "gradient_accumulation_steps": "auto",
    "gradient_clipping": "auto",
    "bf16": {"enabled": "auto"},
    "fp16": {"enabled": "auto"},
    "zero_optimization": {"stage": 3, "stage3_gather_16bit_weights_on_model_save": True},
}


def whole(changes: dict[str, Any] | None = None) -> dict[str, Any]:
    """A valid DeepSpeed config, with some keys changed and those of None removed."""
    merged = {**WHOLE, **(changes or {})}
    return {name: value for name, value in merged.items() if value is not None}


def documented(stage: int, schedule: str) -> dict[str, Any]:
    """The ds_config.json of transformers' documentation for this ZeRO stage."""
    on_cpu = {"device": "cpu", "pin_memory": True}
    common = {"stage": stage, "offload_optimizer": on_cpu, "overlap_comm": True, "contiguous_gradients": True}
    two = {
        "allgather_partitions": True,
        "allgather_bucket_size": 5e8,
        "reduce_scatter": True,
        "reduce_bucket_size": 5e8,
        "round_robin_gradients": True,
    }
    three = {
        "offload_param": on_cpu,
        "sub_group_size": 1e9,
        "reduce_bucket_size": "auto",
        "stage3_prefetch_bucket_size": "auto",
        "stage3_param_persistence_threshold": "auto",
        "stage3_max_live_parameters": 1e9,
        "stage3_max_reuse_distance": 1e9,
        "stage3_gather_16bit_weights_on_model_save": True,
    }
    autos = ["warmup_min_lr", "warmup_max_lr", "warmup_num_steps"]
    autos += ["total_num_steps"] if schedule == "WarmupDecayLR" else []
    loss_scale = {"loss_scale": 0, "loss_scale_window": 1000, "initial_scale_power": 16, "hysteresis": 2}
    return {
        "fp16": {"enabled": "auto", **loss_scale, "min_loss_scale": 1},
        "bf16": {"enabled": "auto"},
        "optimizer": {"type": "AdamW", "params": dict.fromkeys(("lr", "betas", "eps", "weight_decay"), "auto")},
        "scheduler": {"type": schedule, "params": dict.fromkeys(autos, "auto")},
        "zero_optimization": {**common, **(two if stage == 2 else three)},
        "gradient_accumulation_steps": "auto",
        "gradient_clipping": "auto",
        "steps_per_print": 2000,
        "train_batch_size": "auto",
        "train_micro_batch_size_per_gpu": "auto",
        "wall_clock_breakdown": False,
    }


def refused(changes: dict[str, Any]) -> str:
    return advice.refused(content({**ZERO, **changes}))


class TestRendering:
    def test_by_default_nothing_is_sharded(self) -> None:
        part = config().strategy
        assert (part.name, part.stage, part.is_sharded) == ("ddp", 0, False)

    @pytest.mark.parametrize("stage", [1, 2, 3, None])
    def test_a_stage_reaches_deepspeed(self, stage: int | None) -> None:
        part = config({**ZERO, "strategy.zero_stage": stage}).strategy
        assert part.stage == (stage or 2)
        rendered = ds_config_of(part)
        assert rendered["zero_optimization"]["stage"] == (stage or 2)
        assert [rendered[name] for name in ("train_batch_size", "gradient_clipping")] == ["auto", "auto"]
        assert rendered["bf16"] == rendered["fp16"] == {"enabled": "auto"}
        assert not {"optimizer", "scheduler"} & set(rendered), "both are the Trainer's own"

    def test_every_field_reaches_deepspeed(self) -> None:
        part = config(
            {
                **ZERO,
                "strategy.zero_stage": 3,
                "strategy.offload_optimizer": "nvme",
                "strategy.offload_param": "cpu",
                "strategy.nvme_path": "/local",
                "strategy.reduce_bucket_size": 11,
                "strategy.allgather_bucket_size": 12,
                "strategy.stage3_prefetch_bucket_size": 13,
                "strategy.stage3_param_persistence_threshold": 0,
                "strategy.overlap_comm": False,
            }
        ).strategy
        assert ds_config_of(part)["zero_optimization"] == {
            "stage": 3,
            "offload_optimizer": {"device": "nvme", "nvme_path": "/local"},
            "offload_param": {"device": "cpu"},
            "reduce_bucket_size": 11,
            "allgather_bucket_size": 12,
            "stage3_prefetch_bucket_size": 13,
            "stage3_param_persistence_threshold": 0,
            "overlap_comm": False,
            "stage3_gather_16bit_weights_on_model_save": True,
        }

    def test_an_optimizer_on_the_cpu_is_the_trainers_own(self) -> None:
        rendered = ds_config_of(config({**ZERO, "strategy.offload_optimizer": "cpu"}).strategy)
        assert rendered["zero_force_ds_cpu_optimizer"] is False
        assert rendered["zero_optimization"] == {"stage": 2, "offload_optimizer": {"device": "cpu"}}

    def test_stages_below_3_get_nothing_of_stage_3(self) -> None:
        changes = {"strategy.zero_stage": 2, "strategy.stage3_prefetch_bucket_size": 13}
        assert ds_config_of(config({**ZERO, **changes}).strategy)["zero_optimization"] == {"stage": 2}

    def test_what_is_rendered_has_no_fault_by_our_own_rules(self) -> None:
        rendered = ds_config_of(config({**ZERO, "strategy.zero_stage": 3}).strategy)
        assert config({**ZERO, "strategy.ds_config": rendered}).strategy.ds_config == rendered

    def test_our_keys_are_deepspeeds(self) -> None:
        pytest.importorskip("deepspeed")
        zero = importlib.import_module("deepspeed.runtime.zero.config").DeepSpeedZeroConfig.model_fields
        offload = importlib.import_module("deepspeed.runtime.zero.offload_config")
        assert {*ZERO_KEYS} <= {field.alias or name for name, field in zero.items()}
        assert {*OFFLOAD_KEYS["offload_param"]} <= {*offload.DeepSpeedZeroOffloadParamConfig.model_fields}
        assert {*OFFLOAD_KEYS["offload_optimizer"]} <= {*offload.DeepSpeedZeroOffloadOptimizerConfig.model_fields}


class TestFields:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (
                {"strategy.name": "ddp", "strategy.zero_stage": 2},
                "set strategy.name: deepspeed, or strategy: {name: ddp}",
            ),
            ({"strategy.name": "ddp", "strategy.ds_config": WHOLE}, "strategy.ds_config is for DeepSpeed"),
            ({"strategy.ds_config": WHOLE, "strategy.zero_stage": 3}, "write zero_stage into it"),
            ({"strategy.offload_optimizer": "nvme", "strategy.zero_stage": 3}, "strategy.nvme_path: missing"),
            (
                {"strategy.offload_optimizer": "nvme", "strategy.nvme_path": "/x"},
                "needs strategy.zero_stage: 3 (got 2)",
            ),
            ({"strategy.offload_param": "cpu"}, "set strategy.zero_stage: 3, or strategy.offload_param: null"),
            ({"strategy.nvme_path": "/x"}, "strategy.nvme_path /x has no effect"),
            ({"strategy.zero_stage": 4}, "strategy.zero_stage"),
            ({"strategy.zero_stag": 2}, "did you mean strategy.zero_stage?"),
            ({"adapt": {"method": "lora"}}, "the optimizer of an adapter is small: set strategy: {name: ddp}"),
            ({"strategy.name": "fsdp"}, "strategy.name fsdp needs GPUs, but scaling.use_gpu is false"),
            (
                {
                    "strategy.offload_optimizer": "nvme",
                    "strategy.nvme_path": "/x",
                    "strategy.zero_stage": 3,
                    "training.training_args": {"optim": "adafactor"},
                },
                "remove training.training_args.optim, or set strategy.offload_optimizer: cpu",
            ),
            ({"scaling.backend": "nccl"}, "backend nccl needs GPUs"),
            ({"scaling.backend": "a b"}, "must name a backend of torch.distributed, as gloo, nccl"),
        ],
    )
    def test_what_does_not_fit_is_refused_with_the_fix(self, changes: dict[str, Any], words: str) -> None:
        assert words in refused(changes)

    @pytest.mark.parametrize("changes", [{"adapt": {"method": "lora"}}, {"scaling.num_workers": {"min": 1, "max": 2}}])
    def test_the_way_back_to_ddp_works_as_it_is_said(self, changes: dict[str, Any]) -> None:
        zero = {**ZERO, "strategy.ds_config": whole(), "training.global_batch_size": 16, **changes}
        assert WITHOUT_SHARDS in refused(zero)
        (path, value) = parse_override(WITHOUT_SHARDS.removeprefix("set ").replace(": {", "={"))
        assert build_config(apply_overrides(content(zero), [(path, value)]), origin="x").strategy.stage == 0

    def test_fsdp_is_for_gpus(self) -> None:
        part = config({"strategy.name": "fsdp", "scaling.use_gpu": True}).strategy
        assert (part.is_sharded, part.stage) == (True, 0)

    def test_scoring_does_not_ask_how_training_shards(self) -> None:
        wanted = content({"strategy.name": "fsdp", "data.train": None})
        assert build_config(wanted, origin="x", environment={}, scope=PREPARE_SCOPE).strategy.name == "fsdp"


class TestOwnConfig:
    @pytest.mark.parametrize("name", ["zero_optimization", "scheduler", "optimizer", "fp16", "bf16"])
    def test_a_section_without_a_value_is_no_mapping(self, name: str) -> None:
        assert f"strategy.ds_config.{name}: must be a mapping (got None)" in ds_problems({**WHOLE, name: None})

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"zero_optimisation": {}}, "zero_optimisation: unknown key; did you mean zero_optimization?"),
            ({"zero_optimization": None}, "zero_optimization: missing; write it, with its stage"),
            ({"gradient_clipping": None}, "gradient_clipping: missing; write it as auto"),
            ({"zero_optimization": [3]}, "zero_optimization: must be a mapping (got [3])"),
            ({"optimizer": {"type": "AdamW", "params": None}}, "optimizer.params: must be a mapping (got None)"),
            (
                {"zero_optimization": {"stage": 0}},
                "stage: must be 1, 2 or 3 (got 0); without ZeRO, set strategy: {",
            ),
            ({"zero_optimization": {"stage": 3}}, "stage3_gather_16bit_weights_on_model_save: set it to true"),
            (
                {"zero_optimization": {"stage": 2, "reduce_bucket": 1}},
                "did you mean zero_optimization.reduce_bucket_size",
            ),
            (
                {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "disk"}}},
                "device: must be none, cpu or nvme (got 'disk')",
            ),
            (
                {"zero_optimization": {**WHOLE["zero_optimization"], "offload_param": {"device": "nvme"}}},
                "offload_param.nvme_path: missing; give a folder on each node's NVMe disk",
            ),
            (
                {"zero_optimization": {"stage": 2, "offload_param": {"device": "cpu"}}},
                "offload_param.device: cpu needs zero_optimization.stage 3 (got 2)",
            ),
            ({"zero_optimization": {"stage": 2, "overlap_comm": "auto"}}, "overlap_comm: auto is not filled in here"),
            (
                {"zero_optimization": {"stage": 2, "offload_optimizer": {"device": "cpu"}}},
                "does not name one: set zero_force_ds_cpu_optimizer to false",
            ),
            ({"scheduler": {"type": "OneCycle"}}, "scheduler.type: must be WarmupLR or WarmupDecayLR (got 'OneCycle')"),
            ({"scheduler": {"type": "WarmupLR", "params": {"warmup_type": "log"}}}, "must be linear (got 'log')"),
            ({"scheduler": {"type": "WarmupLR", "params": {"step": 1}}}, "scheduler.params.step: unknown key"),
            ({"elasticity": {"enabled": True}}, "elasticity: remove it; use scaling.num_workers"),
            ({"checkpoint": {"load_universal": True}}, "checkpoint: remove it"),
            ({"optimizer": {"type": "Lamb"}}, "optimizer.type: must be AdamW or Adam (got 'Lamb')"),
            ({"optimizer": {"type": "AdamW", "params": {"rate": 1}}}, "optimizer.params.rate: unknown key"),
        ],
    )
    def test_a_fault_is_named_with_the_fix(self, changes: dict[str, Any], words: str) -> None:
        assert words in refused({"strategy.ds_config": whole(changes)})

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            (
                {"train_micro_batch_size_per_gpu": 8},
                "train_micro_batch_size_per_gpu is 8, but training.per_device_train_batch_size is 16: "
                "set it to auto or 16",
            ),
            ({"gradient_accumulation_steps": 3}, "but training.gradient_accumulation_steps is 1"),
            ({"train_batch_size": 16}, "× scaling.num_workers is 32"),
            ({"gradient_clipping": 0.5}, "gradient_clipping is 0.5, but training.max_grad_norm is 1.0"),
            ({"bf16": {"enabled": True}}, "bf16.enabled is True, but training.bf16 is False"),
            ({"fp16": {"enabled": True}}, "fp16.enabled is True, but training.fp16 is False"),
            (
                {"optimizer": {"type": "AdamW", "params": {"lr": 1.0}}},
                "params.lr is 1.0, but training.learning_rate is",
            ),
            ({"optimizer": {"type": "AdamW"}}, "optimizer.params.betas is None, but training.training_args.adam_beta1"),
        ],
    )
    def test_a_contradiction_is_named_with_both_values(self, changes: dict[str, Any], words: str) -> None:
        assert words in refused({"strategy.ds_config": whole(changes)})

    def test_precision_that_it_leaves_out_is_off(self) -> None:
        message = refused({"strategy.ds_config": whole({"bf16": None}), "training.bf16": True})
        assert "bf16.enabled is False, but training.bf16 is True: set it to auto or True" in message

    def test_a_planned_batch_leaves_the_number_of_passes_open(self) -> None:
        changes = {"gradient_accumulation_steps": 1, "train_batch_size": 32}
        message = refused({"strategy.ds_config": whole(changes), "training.global_batch_size": 32})
        assert "gradient_accumulation_steps is 1, but training.global_batch_size decides it: set it to auto" in message
        assert "train_batch_size is 32, but training.global_batch_size decides it: set it to auto" in message

    def test_values_that_the_recipe_has_too_are_taken(self) -> None:
        changes = {
            "train_micro_batch_size_per_gpu": 16,
            "train_batch_size": 32,
            "gradient_accumulation_steps": 1,
            "gradient_clipping": 1,
            "optimizer": {
                "type": "AdamW",
                "params": {"lr": "auto", "betas": [0.9, 0.999], "eps": 1e-8, "weight_decay": 0},
            },
            "zero_optimization": {
                **WHOLE["zero_optimization"],
                "reduce_bucket_size": "auto",
                "offload_optimizer": {"device": "cpu"},
            },
            "steps_per_print": 100,
        }
        part = config({**ZERO, "strategy.ds_config": whole(changes)}).strategy
        assert part.stage == 3
        assert ds_config_of(part) == whole(changes)

    @pytest.mark.parametrize(("kind", "same"), [("WarmupLR", "constant_with_warmup"), ("WarmupDecayLR", "linear")])
    @pytest.mark.parametrize("stage", [2, 3])
    def test_the_file_of_transformers_documentation_is_taken(self, stage: int, kind: str, same: str) -> None:
        file = documented(stage, kind)
        wanted = {**ZERO, "strategy.ds_config": file, "training.lr_scheduler_type": same, "training.warmup_steps": 7}
        rendered = ds_config_of(config(wanted).strategy)
        assert rendered == {name: value for name, value in file.items() if name != "scheduler"}

    def test_another_schedule_than_the_recipe_s_is_one_message(self) -> None:
        message = refused({"strategy.ds_config": documented(2, "WarmupLR")})
        assert message.startswith("my.yaml: 1 problem\n")
        assert "but that is linear: set training.lr_scheduler_type: constant_with_warmup, or remove" in message

    @pytest.mark.parametrize(
        ("params", "words"),
        [
            ({"warmup_num_steps": 500}, "warmup_num_steps is 500, but training.warmup_steps is 0: set it to auto or 0"),
            ({"warmup_max_lr": 1.0}, "warmup_max_lr is 1.0, but training.learning_rate is"),
            ({"warmup_min_lr": 0.1}, "warmup_min_lr is 0.1, but the learning rate before the first step is 0"),
            ({"total_num_steps": 9}, "total_num_steps is 9, but training.max_steps is"),
        ],
    )
    def test_a_schedule_of_other_numbers_is_named_with_both(self, params: dict[str, Any], words: str) -> None:
        file = documented(2, "WarmupDecayLR")
        file["scheduler"]["params"] |= params
        message = refused({"strategy.ds_config": file})
        assert message.count("strategy.ds_config") == 1
        assert words in message

    def test_without_warmup_a_constant_rate_is_deepspeeds_too(self) -> None:
        wanted = {"strategy.ds_config": documented(2, "WarmupLR"), "training.lr_scheduler_type": "constant"}
        assert config({**ZERO, **wanted}).strategy.stage == 2

    def test_the_content_of_a_file_takes_the_place_of_its_path(self, tmp_path: Path) -> None:
        path = tmp_path / "ds_config.json"
        path.write_text(json.dumps(WHOLE))
        assert config({**ZERO, "strategy.ds_config": str(path)}).strategy.ds_config == WHOLE

    @pytest.mark.parametrize("text", [None, "{"])
    def test_a_file_that_cannot_be_read_is_named(self, tmp_path: Path, text: str | None) -> None:
        path = tmp_path / "ds_config.json"
        if text is not None:
            path.write_text(text)
        assert f"strategy.ds_config: {path}: cannot be read as JSON" in refused({"strategy.ds_config": str(path)})

    def test_the_trainer_fills_what_we_let_pass(self) -> None:
        trainer = pytest.importorskip("transformers.integrations.deepspeed")
        pytest.importorskip("deepspeed")
        source = inspect.getsource(trainer.HfTrainerDeepSpeedConfig)
        assert [name for name in FILLED if f'"{name}"' not in source] == []
