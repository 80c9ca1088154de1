"""`rayscribe import-command`: recipes of lines from the READMEs of transformers and of Optimum for Gaudi."""

import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner, Result

from jobs.cli.app import app, main
from jobs.submission.job_spec import RunConfig
from trainers.config.flags.script_recipe import SCRIPTS, without_defaults
from trainers.config.loader import build_config
from trainers.config.parts.decode_part import GenerationPart
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError
from trainers.models.ctc.ctc_part import CtcPart

WHISPER_HINDI = r"""
torchrun \
	--nproc_per_node 2 run_speech_recognition_seq2seq.py \
	--model_name_or_path="openai/whisper-small" \
	--dataset_name="mozilla-foundation/common_voice_17_0" \
	--dataset_config_name="hi" \
	--language="hindi" \
	--task="transcribe" \
	--train_split_name="train+validation" \
	--eval_split_name="test" \
	--max_steps="5000" \
	--output_dir="./whisper-small-hi" \
	--per_device_train_batch_size="16" \
	--per_device_eval_batch_size="16" \
	--logging_steps="25" \
	--learning_rate="1e-5" \
	--warmup_steps="500" \
	--eval_strategy="steps" \
	--eval_steps="1000" \
	--save_strategy="steps" \
	--save_steps="1000" \
	--generation_max_length="225" \
	--preprocessing_num_workers="16" \
	--max_duration_in_seconds="30" \
	--text_column_name="sentence" \
	--freeze_feature_encoder="False" \
	--gradient_checkpointing \
	--fp16 \
	--do_train \
	--do_eval \
	--predict_with_generate \
	--use_auth_token
"""
CTC_TURKISH = r"""
python run_speech_recognition_ctc.py \
	--dataset_name="mozilla-foundation/common_voice_17_0" \
	--model_name_or_path="facebook/wav2vec2-large-xlsr-53" \
	--dataset_config_name="tr" \
	--output_dir="./wav2vec2-common_voice-tr-demo" \
	--num_train_epochs="15" \
	--per_device_train_batch_size="16" \
	--gradient_accumulation_steps="2" \
	--learning_rate="3e-4" \
	--warmup_steps="500" \
	--eval_strategy="steps" \
	--text_column_name="sentence" \
	--length_column_name="input_length" \
	--save_steps="400" \
	--eval_steps="100" \
	--layerdrop="0.0" \
	--save_total_limit="3" \
	--freeze_feature_encoder \
	--gradient_checkpointing \
	--chars_to_ignore , ? . ! - \; \: \" “ % ‘ ” � \
	--fp16 \
	--group_by_length \
	--push_to_hub \
	--do_train --do_eval
"""
GAUDI_LIBRISPEECH = r"""
PT_HPU_LAZY_MODE=1 python ../gaudi_spawn.py \
    --world_size 8 --use_mpi run_speech_recognition_ctc.py \
    --dataset_name librispeech_asr \
    --model_name_or_path facebook/wav2vec2-large-lv60 \
    --dataset_config_name clean \
    --train_split_name train.100 \
    --eval_split_name validation \
    --output_dir /tmp/wav2vec2-librispeech-clean-100h-demo-dist \
    --preprocessing_num_workers 64 \
    --dataloader_num_workers 8 \
    --overwrite_output_dir \
    --num_train_epochs 3 \
    --per_device_train_batch_size 4 \
    --per_device_eval_batch_size 8 \
    --learning_rate 3e-4 \
    --warmup_steps 500 \
    --text_column_name text \
    --layerdrop 0.0 \
    --freeze_feature_encoder \
    --chars_to_ignore '",?.!-;:\"“%‘”"' \
    --do_train \
    --do_eval \
    --use_habana \
    --use_lazy_mode \
    --gaudi_config_name Habana/wav2vec2 \
    --throughput_warmup_steps 3 \
    --bf16 \
    --sdp_on_bf16 \
    --use_hpu_graphs_for_training \
    --use_hpu_graphs_for_inference \
    --attn_implementation sdpa \
    --trust_remote_code True
"""
VARIABLES = "job.runtime_env.env_vars"
SHORT = "run_speech_recognition_seq2seq.py --model_name_or_path openai/whisper-tiny --dataset_name a/b --do_train"


def imported(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["import-command", *arguments], catch_exceptions=False)


def content_of(result: Result) -> dict[str, Any]:
    assert result.exit_code == 0, result.output
    content: dict[str, Any] = yaml.safe_load(result.stdout)
    return content


def config_of(result: Result) -> TrainConfig:
    content = content_of(result)
    RunConfig.model_validate(content)
    return build_config(content, origin="imported")


def left_out(result: Result) -> list[str]:
    lines = [line for line in result.stderr.splitlines() if line.startswith("not carried over: ")]
    return [line.removeprefix("not carried over: ") for line in lines]


def test_the_line_of_the_whisper_example_is_carried_over_completely() -> None:
    result = imported("--strict", WHISPER_HINDI)
    assert left_out(result) == []
    assert content_of(result) == {
        "run": {"storage_path": ".", "name": "whisper-small-hi"},
        "data": {
            "dataset": {
                "name": "mozilla-foundation/common_voice_17_0",
                "config_name": "hi",
                "train_split": "train+validation",
                "validation_split": "test",
                "test_split": None,
            },
            "audio_column_name": "audio",
            "text_column_name": "sentence",
            "min_duration_s": 0.0,
            "do_lower_case": True,
            "do_normalize_eval": False,
            "too_long_eval": "skip",
        },
        "model": {"name_or_path": "openai/whisper-small", "language": "hindi"},
        "training": {
            "max_steps": 5000,
            "warmup_steps": 500,
            "eval_steps": 1000,
            "fp16": True,
            "gradient_checkpointing": True,
        },
        "scaling": {"use_gpu": True, "num_workers": 2},
    }
    config_of(result)


def test_the_line_of_the_ctc_example_is_carried_over_completely() -> None:
    result = imported("--strict", CTC_TURKISH)
    assert left_out(result) == []
    assert content_of(result)["hub"] == {"push": True}
    config = config_of(result)
    assert isinstance(config.model, CtcPart)
    assert config.model.apply_spec_augment and config.model.hidden_dropout == 0.0
    assert (config.training.num_train_epochs, config.training.max_steps) == (15, None)
    assert (config.training.eval_steps, config.training.save_steps) == (100, 400)
    # In the class that the script makes of them, !-; is a range.
    assert "".join(config.data.chars_to_ignore) == "!\"#$%&'()*+,-./0123456789:;?‘“”�"
    assert "note: --chars_to_ignore" in result.stderr and "all digits among them" in result.stderr
    assert (config.data.max_duration_s, config.data.do_lower_case) == (20.0, True)
    assert config.data.dataset is not None
    assert config.data.dataset.train_split == "train+validation"
    assert "max_duration_s" in result.stdout.partition("defaults of the script")[2].partition("\n#\n")[0]
    assert imported("--strict", f"python {SHORT} --warmup_ratio 0.1").exit_code == 1


def test_of_a_line_for_gaudi_each_argument_of_hpus_is_named() -> None:
    result = imported(GAUDI_LIBRISPEECH)
    named = {line.partition(":")[0] for line in left_out(result)}
    assert named == {
        "gaudi_spawn.py",
        "PT_HPU_LAZY_MODE=1",
        "--use_habana True",
        "--use_lazy_mode True",
        "--gaudi_config_name Habana/wav2vec2",
        "--sdp_on_bf16 True",
        "--use_hpu_graphs_for_training True",
        "--use_hpu_graphs_for_inference True",
        "--overwrite_output_dir True",
        "--trust_remote_code True",
    }
    assert "the vendor's image" in result.stderr and "`rayscribe launch`" in result.stderr
    assert len(set(left_out(result))) == len(left_out(result))
    config = config_of(result)
    assert (config.scaling.num_workers, config.scaling.use_gpu, config.training.bf16) == (8, True, True)
    assert config.training.training_args == {"dataloader_num_workers": 8}
    assert "".join(config.data.chars_to_ignore) == "!\"#$%&'()*+,-./0123456789:;?‘“”"
    assert config.data.dataset is not None
    assert (config.data.dataset.validation_split, config.data.dataset.test_split) == ("validation", None)


def test_what_is_not_carried_over_stands_in_the_recipe_too() -> None:
    result = imported(GAUDI_LIBRISPEECH)
    assert [line for line in left_out(result) if f"#   {line}\n" not in result.stdout] == []


def test_a_recipe_has_no_field_with_its_default() -> None:
    for line in (WHISPER_HINDI, CTC_TURKISH, GAUDI_LIBRISPEECH):
        content = content_of(imported(line))
        assert without_defaults(content, "imported") == content


@pytest.mark.parametrize(
    ("line", "field", "value"),
    [
        (f"python {SHORT}", "scaling.num_workers", 1),
        (f"python {SHORT}", "training.learning_rate", 5e-5),
        (f"python {SHORT}", "training.num_train_epochs", 3.0),
        (f"python {SHORT}", "training.save_steps", 500),
        (f"python {SHORT} --max_steps 10", "training.num_train_epochs", None),
        (f"python {SHORT} --max_steps 10 --num_train_epochs 2", "training.max_steps", 10),
        (f"python {SHORT} --max_steps 10", "training.warmup_steps", 0),
        (f"python {SHORT} --eval_strategy steps --logging_steps 250", "training.eval_steps", 250),
        (f"python {SHORT} --do_lower_case False", "data.do_lower_case", False),
        (f"python {SHORT} --per_gpu_train_batch_size 3", "training.per_device_train_batch_size", 3),
        (f"python {SHORT} --use_cpu", "scaling.use_gpu", False),
        (f"accelerate launch --cpu --num_processes 4 {SHORT}", "scaling.use_gpu", False),
        (f"accelerate launch --mixed_precision bf16 --num_processes 4 {SHORT}", "training.bf16", True),
        (f"accelerate launch --dynamo_backend inductor --num_processes 4 {SHORT}", "training.torch_compile", True),
        (f"torchrun --max_restarts 7 {SHORT}", "job.max_retries", 7),
        (
            f"accelerate launch --num_processes 2 --num_cpu_threads_per_process 4 {SHORT}",
            f"{VARIABLES}.OMP_NUM_THREADS",
            "4",
        ),
        (f"torchrun --rdzv_id 7 {SHORT}", VARIABLES, {}),
        (f"WANDB_PROJECT=sr torchrun {SHORT}", f"{VARIABLES}.WANDB_PROJECT", "sr"),
        (f"torchrun --nnodes 1:2 --nproc_per_node 4 {SHORT}", "scaling.num_workers.max", 8),
        (f"torchrun --nnodes 1:2 --nproc_per_node 4 {SHORT}", "training.global_batch_size", 64),
    ],
)
def test_what_a_line_says_is_in_the_recipe(line: str, field: str, value: Any) -> None:
    result = imported(line)
    assert left_out(result) == []
    found: Any = RunConfig.model_validate(content_of(result))
    for name in field.split("."):
        found = found[name] if isinstance(found, dict) else getattr(found, name)
    assert found == value


@pytest.mark.parametrize(
    ("line", "named"),
    [
        (f"torchrun --nproc_per_node gpu {SHORT}", "torchrun: it counts the devices"),
        (f"python {SHORT} --eval_steps 300", "--eval_steps 300: each checkpoint is scored"),
        (f"python {SHORT.removesuffix('--do_train')} --do_eval", "--do_eval without --do_train: it requests only"),
        (f"python {SHORT} --lr 1", "--lr: not a known argument of run_speech_recognition_seq2seq.py"),
        (f"python {SHORT} --max_step 1", "--max_step: not an argument of run_speech_recognition_seq2seq.py; did you"),
        (f"python {SHORT.replace('.py', '.py args.json', 1)}", "args.json: the file is not read"),
        (f"python {SHORT} --deepspeed none.json", "--deepspeed none.json: cannot be read as JSON"),
        (f"accelerate launch --use_deepspeed --num_processes 2 {SHORT}", "ACCELERATE_USE_DEEPSPEED=true, which"),
        (f"python {SHORT} --eval_strategy epoch", "--eval_strategy epoch: training.eval_steps"),
    ],
)  # fmt: skip
def test_what_has_no_field_is_named(line: str, named: str) -> None:
    result = imported(line)
    assert [text for text in left_out(result) if text.startswith(named)], result.stderr
    config_of(result)


@pytest.mark.parametrize(
    "words", ["-t hunter22", "--foo bar hunter22", "--task=transcribe hunter22", "-hunter22", "--foo=1 hunter22"]
)
def test_a_word_that_may_be_a_value_is_named_by_its_place(words: str) -> None:
    result = imported(f"python {SHORT} {words}")
    assert result.exit_code == 0 and "hunter22" not in result.stdout + result.stderr
    assert [text for text in left_out(result) if text.startswith(("-t: ", "word "))], result.stderr


def test_what_is_no_switch_is_not_repeated() -> None:
    with pytest.raises(ConfigError, match="argument --use_auth_token: write True or False") as caught:
        imported(f"python {SHORT} --use_auth_token hunter22")
    assert "hunter22" not in str(caught.value)


def test_secrets_are_neither_in_the_recipe_nor_in_messages() -> None:
    token = "hf_" + "abcdefghijklmnopqrstuvwxyz"
    unknown = "--wandb_api_key hunter22 --password=hunter22"
    result = imported(f"HF_TOKEN={token} python {SHORT} --token {token} --hub_token {token} {unknown}")
    assert len(left_out(result)) == 5
    assert token not in result.output + result.stderr and "hunter22" not in result.output + result.stderr
    config_of(result)


def test_what_has_no_effect_is_a_note_and_no_failure() -> None:
    result = imported("--strict", f"torchrun --standalone --log_dir x {SHORT}")
    assert result.exit_code == 0
    assert [line for line in result.stderr.splitlines() if line.startswith("note: torchrun --log_dir x: ")]


def test_words_after_two_dashes_a_file_and_standard_input_are_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = imported(WHISPER_HINDI).stdout
    file = tmp_path / "hindi.yaml"
    words = shlex.split(WHISPER_HINDI.replace("\\\n", " "))
    assert imported("--out", str(file), "--", *words).stdout == ""
    assert file.read_text(encoding="utf-8") == text
    assert main(["import-command", SHORT, "--out", str(file)]) == 2
    assert file.read_text(encoding="utf-8") == text
    assert main(["import-command", SHORT, "--force", "--out", str(file)]) == 0
    assert file.read_text(encoding="utf-8") != text
    assert CliRunner().invoke(app, ["import-command", "-"], input=WHISPER_HINDI).stdout == text


@pytest.mark.parametrize(
    ("arguments", "problem"),
    [
        (["torchrun train.py"], "train.py: only run_speech_recognition_seq2seq.py"),
        (["torchrun train.py"], "--as seq2seq or --as ctc says which one it is a copy of"),
        (["torchrun --nprocs 2 train.py"], "there is no such option"),
        (["python run_speech_recognition_ctc.py --dataset_name a"], "--model_name_or_path is missing"),
        (["python run_speech_recognition_ctc.py --model_name_or_path a"], "--dataset_name is missing"),
        ([f"python {SHORT} --bf16 maybe"], "True or False"),
        ([f"python {SHORT}", "--out", "/dev/null/x"], "--out /dev/null/x"),
    ],
)
def test_what_cannot_be_imported_is_an_error(
    arguments: list[str], problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["import-command", *arguments]) == 2
    assert problem in capsys.readouterr().err


@pytest.mark.parametrize("kind", ["seq2seq", "ctc"])
def test_a_copy_of_a_script_under_another_name_is_what_it_is_a_copy_of(kind: str) -> None:
    line = f"python my/finetune.py {SHORT.partition(' ')[2]}"
    named = imported(f"python run_speech_recognition_{kind}.py {SHORT.partition(' ')[2]}")
    assert content_of(imported("--as", kind, line)) == content_of(named)
    assert main(["import-command", "--as", "rnnt", line]) == 2


def test_what_the_script_does_not_score_is_named_and_does_not_end_the_recipe() -> None:
    result = imported(f"python {SHORT} --max_duration_in_seconds 15")
    assert "note: the script takes clips that are longer than 0 s and shorter than 15 s, of the eval split, too" in (
        result.stderr
    )
    assert config_of(result).data.too_long_eval == "skip"
    streaming = imported(f"python {SHORT.replace('seq2seq', 'seq2seq_streaming')}")
    assert "eval split" not in streaming.stderr and config_of(streaming).data.too_long_eval == "refuse"


def test_what_keeps_the_recipe_s_numbers_from_being_the_script_s_is_named() -> None:
    result = imported(f"python {SHORT}")
    assert "note: the script shuffles by torch's generator" in result.stderr
    assert "note: the script scores and stores its last weights" in result.stderr
    assert "# the script shuffles by torch's generator" in result.stdout
    assert "last weights" not in imported(f"python {SHORT} --load_best_model_at_end").stderr
    # As long as the script's, which are those of the weights' generation config.
    assert config_of(result).decode == GenerationPart(max_length=448)


@pytest.mark.parametrize("split", ["test", "validation", "dev"])
def test_a_recipe_has_no_test_split_as_the_script_has_none(split: str) -> None:
    dataset = config_of(imported(f"python {SHORT} --eval_split_name {split}")).data.dataset
    assert dataset is not None and (dataset.validation_split, dataset.test_split) == (split, None)


@pytest.mark.parametrize("script", SCRIPTS)
def test_each_script_has_a_recipe_of_its_smallest_line(script: str) -> None:
    config_of(imported("--strict", f"python {script} --model_name_or_path a/b --dataset_name c/d --do_train"))


def test_a_signed_url_of_weights_is_refused_and_not_repeated() -> None:
    line = SHORT.replace("openai/whisper-tiny", "'https://host/m.zip?X-Amz-Signature=hunter22'")
    result = CliRunner().invoke(app, ["import-command", f"python {line}"])
    assert isinstance(result.exception, ConfigError)
    assert "model.name_or_path: looks like a credential (not shown)" in str(result.exception)
    assert "hunter22" not in f"{result.output}{result.exception}"


@pytest.mark.parametrize("wrapper", ["uv run", "sudo", "$"])
def test_what_stands_before_a_launcher_is_named_as_such(wrapper: str) -> None:
    with pytest.raises(ConfigError, match="begin the line with what starts the script"):
        imported(f"{wrapper} python {SHORT}")
