"""What a config refuses, and how it says so: all errors at once, each with the field, the value and the fix."""

import importlib
from collections.abc import Mapping
from typing import Any

import pytest
import yaml

from tests.trainers.config import advice
from tests.trainers.synthetic import config, content
from trainers.config.loader import build_config
from trainers.config.overrides import apply_overrides, parse_override
from trainers.config.parts.part import ConfigScope
from trainers.config.parts.scaling_part import WITHOUT_GPU
from trainers.config.schema import UNUSED_ACCELERATORS
from trainers.errors import ConfigError

DEMO: dict[str, Any] = {"data.train": None, "data.validation": None, "data.demo": {}}

ELASTIC: dict[str, Any] = {"scaling.num_workers": {"min": 2, "max": 4}, "training.global_batch_size": 8}
MATCHED = {
    "model.init": "pretrained",
    "model.name_or_path": "openai/whisper-tiny",
    "model.full_context_matching": 1,
}


def refused(changes: Mapping[str, Any], environment: Mapping[str, str] | None = None) -> str:
    """The message for the smallest recipe with these changes, which must be refused."""
    return advice.refused(content(changes), environment)


@pytest.mark.parametrize("field", ["training.max_steps", "training.warmup_steps", "run.max_failures", "model.d_model"])
def test_an_integer_that_json_does_not_have_exactly_is_refused(field: str) -> None:
    assert (
        f"{field}: " in (message := refused({field: 10**400})) and "less than or equal to 9007199254740991" in message
    )


class TestAllAtOnce:
    @pytest.mark.parametrize("key", ["pretrained", "scratch", "colour"])
    def test_an_unknown_key_is_named_also_where_it_is_a_value_of_another_field(self, key: str) -> None:
        message = refused({f"model.{key}": "foo", "model.d_model": 15, "training.learning_rate": -1})
        for words in (f"model.{key}: unknown key", "model: d_model 15", "training.learning_rate: "):
            assert words in message
        assert "3 problems" in message

    def test_fields_that_do_not_fit_together_are_named_with_those_that_are_wrong_by_themselves(self) -> None:
        message = refused(
            {
                "training.max_step": 3,
                "training.learning_rate": "fast",
                "training.save_steps": 7,
                "training.eval_steps": 2,
                "training.fp16": True,
                "training.bf16": True,
                "data.min_duration_s": 40,
                "scaling.backend": "nccl",
            }
        )
        for words in (
            "training.max_step: unknown key; did you mean training.max_steps?",
            "training.learning_rate: Input should be a valid number",
            "training: save_steps 7 must be a multiple of eval_steps 2",
            "training: fp16 and bf16 are both true",
            "data: min_duration_s 40.0 must be below max_duration_s 30.0",
            "scaling: backend nccl needs GPUs",
            "training.fp16 needs a GPU",
        ):
            assert words in message

    def test_a_value_that_is_wrong_is_not_judged_by_its_default_too(self) -> None:
        assert "1 problem\n" in refused({"training.max_steps": "many"})
        assert "1 problem\n" in refused({"training": {"max_step": 3}})

    def test_members_of_a_list_are_all_looked_at(self) -> None:
        members = [{"name": "a", "train": "a.csv", "weigth": 1}, {"name": "b"}]
        message = refused({**DEMO, "data.demo": None, "data.mix": members, "training.eval_steps": 3})
        assert "data.mix.0.weigth: unknown key" in message and "data.mix.1: b has no data" in message
        assert "must be a multiple of eval_steps 3" in message


class TestLearningRate:
    def test_one_that_adamw_diverges_at_is_refused_unless_the_optimizer_is_named(self) -> None:
        assert "training: learning_rate is 5, and AdamW diverges above 0.1: give 1e-6 to 1e-3" in refused(
            {"training.learning_rate": 5}
        )
        optimizer = {"training.learning_rate": 5, "training.training_args": {"optim": "sgd"}}
        assert config(optimizer).training.learning_rate == 5


class TestPackedSegments:
    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"training.previous_text": 0.2}, "training.previous_text is 0.2, but only packed segments have a text"),
            ({"data.pack_segments_s": 4}, "data.pack_segments_s is 4, but clips longer than model.max_context_s 3 "),
            (
                {"data.pack_segments_s": 31, "model.max_context_s": None},
                "data.pack_segments_s is 31, but clips longer than data.max_duration_s 30 are left out",
            ),
        ],
    )
    def test_what_no_clip_would_have_is_refused(self, changes: dict[str, Any], words: str) -> None:
        assert words in refused(changes)

    def test_the_longest_clips_may_be_packed(self) -> None:
        assert config({"data.pack_segments_s": 3, "training.previous_text": 0.2}).data.pack_segments_s == 3


class TestUnknownKeys:
    @pytest.mark.parametrize(
        ("key", "suggestion"),
        [
            ("training.max_step", "training.max_steps"),
            ("data.audio_column", "data.audio_column_name"),
            ("modell", "model"),
            ("max_steps", "training.max_steps"),
            ("scaling.max_failures", "run.max_failures"),
        ],
    )
    def test_a_key_close_to_a_known_one_is_refused_with_the_known_one(self, key: str, suggestion: str) -> None:
        message = refused({key: 1})
        assert f"{key}: unknown key" in message
        assert f"did you mean {suggestion}?" in message

    def test_a_key_that_is_missing_under_its_right_name_is_no_second_problem(self) -> None:
        whole = content({})
        with pytest.raises(ConfigError, match=r"1 problem\n  - modell: unknown key; did you mean model\?$"):
            build_config({"modell" if key == "model" else key: part for key, part in whole.items()}, origin="x")
        whole["training"]["max_step"] = whole["training"].pop("max_steps")
        del whole["model"]
        with pytest.raises(ConfigError) as caught:
            build_config(whole, origin="x")
        assert "model: missing; --set model=…" in str(caught.value)
        assert "training.max_steps: missing" not in str(caught.value)

    def test_a_thousand_unknown_keys_make_a_message_of_the_first_hundred(self) -> None:
        message = refused({f"key_{number}": 1 for number in range(1000)})
        assert message.count("unknown key") == 100
        assert message.endswith("further problems are shown when these are fixed")

    def test_a_key_close_to_none_is_refused_with_the_keys_that_there_are(self) -> None:
        message = refused({"scaling.zzzz": 1})
        assert "scaling.zzzz: unknown key; the keys here are num_workers, use_gpu" in message

    def test_job_carries_any_key(self) -> None:
        assert config({"job.queue": "gpu", "job.anything": [1]}).job == {"queue": "gpu", "anything": [1]}

    def test_an_empty_step_of_a_name_is_an_unknown_key(self) -> None:
        assert "training.: unknown key" in refused({"training.": 1})


class TestFaults:
    def test_what_is_missing_is_told_once_however_much_else_is_wrong(self) -> None:
        wrong = {"scaling.num_workers": {"min": 2}, "training.max_step": 3, "training.learning_rate": 3}
        with pytest.raises(ConfigError) as raised:
            config(wrong)
        assert str(raised.value).count("scaling.num_workers.max: missing") == 1

    def test_all_faults_are_listed_at_once_with_the_origin_and_their_count(self) -> None:
        message = refused(
            {"training.max_step": 3, "training.learning_rate": "fast", "scaling.num_workers": 0, "run.resume": "maybe"}
        )
        lines = message.splitlines()
        assert lines[0] == "my.yaml: 4 problems"
        assert len(lines) == 5
        assert any("training.learning_rate" in line and "'fast'" in line for line in lines)
        assert any("scaling.num_workers" in line and "(got 0)" in line for line in lines)
        assert any("run.resume" in line and "'maybe'" in line for line in lines)

    @pytest.mark.parametrize("url", ["hdfs://bucket/x.csv", "S3://bucket/x.csv", "s3:/bucket/x.csv", "file:///x.csv"])
    @pytest.mark.parametrize(
        "field",
        [
            "run.storage_path",
            "data.train",
            "data.validation",
            "data.test",
            "data.cache_dir",
            "run.resume",
        ],
    )
    def test_a_url_that_no_storage_opens_is_refused_by_its_scheme(self, field: str, url: str) -> None:
        message = refused({field: f"from:{url}" if field == "run.resume" else url})
        scheme = url.partition(":")[0]
        assert f"{field}: {scheme}:// is not supported: give a folder, or an s3://bucket/…" in message

    @pytest.mark.parametrize("url", ["s3://bucket/model", "https://user:pw@huggingface.co/openai/whisper-tiny"])
    @pytest.mark.parametrize(
        ("changes", "field", "instead"),
        [
            (
                {"model.family": "ctc", "decode.method": "beam"},
                "decode.rescoring_model",
                "a Hub id, e.g. openai/whisper-tiny, or a folder",
            ),
            ({"model.family": "ctc"}, "model.vocabulary_file", "a file on a disk: copy it there"),
            ({**DEMO, "data.dataset.name": "x"}, "data.dataset.name", "a Hub id, or a folder on every node"),
        ],
    )
    def test_where_no_url_is_opened_none_is_recommended(
        self, changes: dict[str, Any], field: str, instead: str, url: str
    ) -> None:
        message = refused({**changes, field: url})
        assert f"{field}: {url.partition(':')[0]}:// is not supported: give {instead}" in message
        assert url not in message

    def test_a_data_set_is_named_by_what_datasets_opens(self) -> None:
        assert "data.dataset.name: hdfs:// is not supported" in refused({**DEMO, "data.dataset": {"name": "hdfs://x"}})
        manifests = {"data.train": None, "data.validation": None}
        opened = config({**manifests, "data.dataset": {"name": "hf://datasets/a/b"}}).data.dataset
        assert opened is not None and opened.name == "hf://datasets/a/b"

    @pytest.mark.parametrize("field", ["training.training_args", "strategy.ds_config", "job"])
    def test_a_number_that_json_cannot_say_is_refused_where_names_are_free(self, field: str) -> None:
        for value in (float("inf"), float("nan")):
            message = refused({field: {"a": {"b": [1.0, value]}}})
            assert f"{field}: a.b.1 is {value}, which is not finite" in message

    def test_an_unset_variable_stands_among_the_other_faults(self) -> None:
        message = refused({"data.train": "${CORPUS}/train.csv", "training.learning_rate": -1})
        assert message.startswith("my.yaml: 2 problems")
        assert "data.train: ${CORPUS}/train.csv names the variable CORPUS" in message
        assert "export CORPUS=…" in message
        assert "--set data.train=…" in message
        assert "training.learning_rate" in message

    def test_a_missing_part_is_named_with_the_fix(self) -> None:
        with pytest.raises(ConfigError, match=r"model: missing; --set model=…"):
            build_config({"data": content()["data"], "training": {"max_steps": 1}}, origin="x", environment={})

    @pytest.mark.parametrize("value", [None, 5, "text", [1]])
    def test_a_part_that_is_no_mapping_is_refused(self, value: Any) -> None:
        assert "training: " in refused({"training": value})

    @pytest.mark.parametrize(
        ("changes", "words"),
        [
            ({"training.num_train_epochs": 3}, "max_steps is 10 and num_train_epochs is 3"),
            ({"training.max_steps": None}, "set one of them"),
            (
                {"training.save_steps": 100, "training.eval_steps": 30},
                "save_steps 100 must be a multiple of eval_steps",
            ),
            ({"training.save_steps": 100, "training.eval_steps": 200}, "save_steps 100 must be a multiple"),
            ({"training.fp16": True, "training.bf16": True}, "fp16 and bf16 are both true"),
            ({"training.fp16": True}, "training.fp16 needs a GPU"),
            (
                {"training.global_batch_size": 32, "training.max_batch_duration_s": 60},
                "both size the batch: set one of them to null",
            ),
            ({"training.global_batch_size": 3, "scaling.num_workers": 4}, "some workers would be idle"),
            ({"training.full_context_fraction": 0.5, "model.max_context_s": None}, "needs buckets"),
            ({"model.full_context_matching": 1}, "model.init is scratch, and new weights have learned nothing at 30 s"),
            ({**MATCHED, "model.max_context_s": None}, "model.max_context_s is null"),
            ({**MATCHED, "adapt.method": "freeze_encoder"}, "adapt.method freeze_encoder keeps the encoder as it is"),
            ({**MATCHED, "strategy.name": "deepspeed"}, "strategy.name is deepspeed, and the original is a full copy"),
            (
                {**MATCHED, "training.max_batch_duration_s": 60},
                "does not count what is padded to the full",
            ),
            ({"model.full_context_matching_fraction": 0.5}, "full_context_matching is 0: give it a weight"),
            ({**MATCHED, "model.full_context_matching_fraction": 0}, "model.full_context_matching_fraction"),
            ({"data.min_duration_s": 5, "data.max_duration_s": 5}, "must be below max_duration_s"),
            ({"data.min_duration_s": 4}, "leaves nothing below model.max_context_s 3"),
            ({"model.max_context_s": 31}, "model.max_context_s"),
            ({"model.max_context_s": 2.5}, "model.max_context_s"),
            ({"adapt.method": "last_n_layers"}, "adapt: n is missing: set the number of layers"),
            (
                {
                    "adapt.method": "lora",
                    "training.training_args": {"gradient_checkpointing_kwargs": {"use_reentrant": True}},
                },
                "use_reentrant, which stops gradients at the first frozen layer (adapt.method lora): leave it out",
            ),
            ({"adapt.n": 2}, "adapt: n is 2, but method is full: set method: last_n_layers"),
            (
                {"adapt.method": "freeze_encoder", "adapt.r": 8},
                "r is 8, but method is freeze_encoder: set method: lora",
            ),
            ({"adapt.target_modules": ["q_proj"]}, "target_modules is ['q_proj'], but method is full"),
            ({"adapt.method": "lora", "adapt.r": 0}, "adapt.r: Input should be greater than 0"),
            ({"adapt.method": "lora", "adapt.target_modules": []}, "adapt.target_modules: List should have at least 1"),
            ({"model.attention_heads": 3}, "d_model 16 must be a multiple of attention_heads 3"),
            ({"model.language": None}, "a scratch model needs one"),
            ({"model.name_or_path": "openai/whisper-tiny"}, "or for a new model name_or_path: null"),
            ({"model.init": "pretrained"}, "name_or_path is missing"),
            ({"model.max_label_tokens": 449}, "model.max_label_tokens"),
            ({"run.name": "a/b"}, "run.name"),
            ({"run.name": "prepared"}, "run.name: is a folder that Rayscribe keeps next to the runs"),
            ({"run.max_failures": -2}, "run.max_failures"),
            ({"scaling.num_workers": 10**400}, "scaling.num_workers"),
            ({"scaling.num_workers": "many"}, "scaling.num_workers: Input should be a valid integer"),
            (
                {**ELASTIC, "scaling.placement_strategy": "STRICT_SPREAD"},
                "placement_strategy STRICT_SPREAD does not work with num_workers 2 to 4",
            ),
            (
                {**ELASTIC, "scaling.placement_strategy": "STRICT_PACK"},
                "set placement_strategy: PACK, or num_workers: 4",
            ),
            ({"scaling.num_workers": {"min": 2}}, "scaling.num_workers.max: missing"),
            ({"scaling.num_workers": {"min": 0, "max": 2}}, "scaling.num_workers.min: Input should be greater than 0"),
            ({"scaling.num_workers": {"min": 3, "max": 2}}, "scaling.num_workers: min 3 is more than max 2: exchange"),
            (
                {"scaling.num_workers": {"min": 1, "max": 2, "most": 2}},
                "num_workers.most: unknown key; the keys here are min",
            ),
            ({**ELASTIC, "training.global_batch_size": None}, "2 to 4, and the size of a step would change with it"),
            (
                {**ELASTIC, "training.global_batch_size": None, "training.max_batch_duration_s": 9},
                "set training.global_batch_size, without training.max_batch_duration_s",
            ),
            ({**ELASTIC, "training.global_batch_size": 3}, "less than scaling.num_workers.max × training.gradient_acc"),
            (
                {**ELASTIC, "strategy.name": "deepspeed"},
                "shard in a checkpoint, which another number of workers",
            ),
            (
                {**ELASTIC, "strategy.name": "fsdp", "scaling.use_gpu": True},
                "set strategy: {name: ddp}, or scaling.num_workers: 4",
            ),
            (
                {"scaling.resources_per_worker": {"HPU": 1}},
                "remove scaling.resources_per_worker.HPU; scaling.use_gpu requests GPUs",
            ),
            (
                {"scaling.resources_per_worker": {"neuron_cores": 2}},
                "resources_per_worker.neuron_cores is 2, but",
            ),
            ({"scaling.resources_per_worker": {"GPU": 1}}, "GPU is 1, but use_gpu is false: set scaling.use_gpu: true"),
            ({"scaling.use_gpu": True, "scaling.resources_per_worker": {"GPU": 0}}, "use_gpu is true, but resources_"),
            ({"scaling.resources_per_worker": {"CPU": 1e308}}, "scaling.resources_per_worker.CPU"),
        ],
    )
    def test_values_that_cannot_work_are_refused(self, changes: dict[str, Any], words: str) -> None:
        assert words in refused(changes)

    def test_a_recipe_for_gpus_trains_without_them_as_the_message_says(self) -> None:
        on_gpus = content({"scaling.use_gpu": True, "scaling.resources_per_worker": {"CPU": 2, "GPU": 1}})
        advice = [tuple(item.split(": ")) for item in WITHOUT_GPU.removeprefix("set ").split(" and ")]
        changed = apply_overrides(on_gpus, [parse_override(f"{name}={value}") for name, value in advice])
        scaling = build_config(changed, origin="my.yaml").scaling
        assert (scaling.use_gpu, scaling.worker_resources) == (False, {"CPU": 2, "GPU": 0})

    def test_ray_s_accelerators_are_gpus_or_refused(self) -> None:
        names = importlib.import_module("ray._private.accelerators").get_all_accelerator_resource_names()
        assert {*names} == {"GPU", *UNUSED_ACCELERATORS}

    @pytest.mark.parametrize("changes", [MATCHED, {"training.full_context_fraction": 0.5}])
    def test_what_keeps_the_whole_context_in_training_does_not_stop_a_score_at_it(
        self, changes: dict[str, Any]
    ) -> None:
        wanted = content({**changes, "model.max_context_s": None})
        assert "model.max_context_s" in refused({**changes, "model.max_context_s": None})
        scored = build_config(wanted, origin="x", environment={}, scope=ConfigScope.for_scoring("test"))
        assert scored.model.max_context_s is None

    @pytest.mark.parametrize("method", ["full", "freeze_encoder", "decoder_only"])
    def test_weights_of_bfloat16_are_not_trained(self, method: str) -> None:
        model = {"name_or_path": "/weights", "language": "English", "dtype": "bfloat16"}
        message = refused({"model": model, "adapt.method": method})
        assert f"model.dtype is bfloat16, but adapt.method {method} trains the weights themselves" in message
        assert "set model.dtype: float32, with training.bf16: true" in message and "or adapt.method: lora" in message
        assert config({"model": model, "adapt.method": "lora"}).model.dtype == "bfloat16"
        scored = content({"model": model, "adapt.method": method})
        scope = ConfigScope.for_scoring("test")
        assert build_config(scored, origin="x", environment={}, scope=scope).model.dtype == "bfloat16"

    @pytest.mark.parametrize("value", ["eval_loss", "loss", "wer"])
    def test_a_loss_ranks_no_checkpoints(self, value: str) -> None:
        message = refused({"checkpoint.checkpoint_score_attribute": value})
        assert "checkpoint.checkpoint_score_attribute" in message
        assert "eval_wer" in message

    def test_a_larger_error_rate_is_never_better(self) -> None:
        assert "checkpoint.checkpoint_score_order" in refused({"checkpoint.checkpoint_score_order": "max"})

    @pytest.mark.parametrize("value", ["auto", "never", "from:checkpoint-100", "from:s3://bucket/run/checkpoint-5"])
    def test_resume_takes_its_three_words(self, value: str) -> None:
        assert config({"run.resume": value}).run.resume == value

    @pytest.mark.parametrize("value", ["always", "from:", "", True, None])
    def test_resume_takes_no_other(self, value: Any) -> None:
        assert "run.resume" in refused({"run.resume": value})

    @pytest.mark.parametrize(("eval_steps", "expected"), [(None, 100), (50, 50), (100, 100)])
    def test_scores_come_as_often_as_checkpoints_unless_said(self, eval_steps: int | None, expected: int) -> None:
        training = config({"training.save_steps": 100, "training.eval_steps": eval_steps}).training
        assert training.scoring_steps == expected


class TestDoors:
    @pytest.mark.parametrize(
        ("changes", "sources"),
        [
            ({"data.demo": {}}, "train and demo"),
            ({"data.dataset": {"name": "x"}}, "train and dataset"),
            ({**DEMO, "data.dataset": {"name": "x"}}, "demo and dataset"),
        ],
    )
    def test_two_data_sources_are_rejected_by_name(self, changes: dict[str, Any], sources: str) -> None:
        assert f"names {sources}: keep one" in refused(changes)

    def test_no_door_is_refused_with_the_usual_one(self) -> None:
        assert "--set data.train=my.csv" in refused({"data.train": None, "data.validation": None})

    @pytest.mark.parametrize("changes", [DEMO, {"data.train": None, "data.dataset": {"name": "google/fleurs"}}])
    def test_each_door_is_enough_alone(self, changes: dict[str, Any]) -> None:
        assert config(changes).data.train is None

    def test_a_training_manifest_needs_a_validation_set(self) -> None:
        assert "--set data.validation=valid.csv" in refused({"data.validation": None})

    @pytest.mark.parametrize("field", ["data.train", "data.validation"])
    def test_the_test_set_is_neither_trained_on_nor_chooses(self, field: str) -> None:
        assert "which is also train or validation" in refused({field: "/data/test.csv", "data.test": "/data/test.csv"})

    def test_the_validation_set_is_not_trained_on(self) -> None:
        assert "train and validation are both /data/a.csv" in refused(
            {"data.train": "/data/a.csv", "data.validation": "/data/a.csv"}
        )


class TestNumbers:
    @pytest.mark.parametrize("text", ["1e-5", "1E-5", "1.0e-5", "0.00001"])
    def test_every_way_to_write_a_small_number_is_a_float(self, text: str) -> None:
        written = yaml.safe_load(f"training: {{max_steps: 10, learning_rate: {text}}}")
        assert build_config({**content(), **written}, origin="x").training.learning_rate == 1e-5

    def test_a_fraction_of_a_step_is_refused(self) -> None:
        assert "training.max_steps" in refused({"training.max_steps": 10.5})

    def test_a_seed_has_32_bits_as_those_of_numpy(self) -> None:
        assert f"run.seed: Input should be less than or equal to {2**32 - 1}" in refused({"run.seed": 2**32})

    @pytest.mark.parametrize("value", [float("nan"), float("inf")])
    def test_a_learning_rate_is_a_number(self, value: float) -> None:
        assert "training.learning_rate" in refused({"training.learning_rate": value})
