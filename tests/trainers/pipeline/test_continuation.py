"""Each change between two starts of a run is said, or refused with the reason; none is silently ignored."""

import random
from dataclasses import replace
from pathlib import Path
from typing import Any, ClassVar

import pytest

from tests.settings import examples
from tests.trainers.pipeline.decisions_of_starts import URL, again, keys, started
from tests.trainers.pipeline.second_starts import ALONE, FIELDS, FIRST, FIRST_CTC, Outcome, SecondStart, second_start
from tests.trainers.synthetic import config
from trainers.config.schema import TrainConfig
from trainers.errors import ConfigError, ResumeError
from trainers.pipeline.continuation import Continuation, decide, previous_config
from trainers.run_folder.journal import State
from trainers.run_folder.layout import RunFolder
from trainers.storage import open_storage


def is_exact(continuation: Continuation) -> bool:
    """Returns True if weights are equal bit for bit to those without the changes."""
    inexact = ("only up to rounding", "the run ends at")
    return not any(words in line for line in continuation.changes for words in inexact)


class TestAnyChange:
    def test_the_table_knows_every_field(self) -> None:
        parts = [
            item
            for first in (FIRST, FIRST_CTC)
            for item in config(first).model_dump(exclude={"trainer", "job"}).items()
        ]
        fields = {f"{part}.{name}" for part, values in parts for name in values}
        known = {*ALONE, *FIELDS} - {"training.training_args.adam_beta2"}
        assert known == fields, "a field is new or gone: decide what a change of it means for a run that has begun"

    @pytest.mark.parametrize("name", FIELDS)
    def test_of_one_field(self, name: str) -> None:
        section, _, field = name.partition(".")
        of_whisper = config(FIRST).model_dump()[section]
        first = FIRST_CTC if section in ("model", "decode") and field not in of_whisper else FIRST
        outcome, values = FIELDS[name]
        tried = 0
        for value in values:
            if (other := _valid({**first, name: value})) is not None:
                _check(config(first), SecondStart({name: value}, other))
                tried += 1
        with_others = {"model.name_or_path", "training.max_batch_duration_s", "training.fp16", "data.do_normalize_eval"}
        assert tried or name in with_others, f"no value of {name} is valid by itself: {outcome}"

    @pytest.mark.parametrize("seed", range(examples(500)))
    def test_of_several_at_random(self, seed: int) -> None:
        _check(config(FIRST), second_start(random.Random(seed), FIRST, sorted(FIELDS)))


class TestFieldOfALaterVersion:
    """A run of an earlier version, whose description lacks a field, began with the field's default."""

    @staticmethod
    def without(name: str, config: TrainConfig) -> State:
        state = started(config)
        assert state.experiment is not None
        described = {key: value for key, value in state.experiment["experiment"].items() if key != name}
        assert len(described) == len(state.experiment["experiment"]) - 1
        return replace(state, experiment={**state.experiment, "experiment": described})

    @pytest.mark.parametrize(
        ("name", "other"),
        [
            ("training.weight_decay", 0.5),
            ("augment.speed_factors", [0.9]),
            ("adapt.target_modules", ["q_proj"]),
            ("data.max_duration_s", 7),
            ("model.dropout", 0.5),
        ],
    )
    def test_goes_on_with_the_default_alone(self, name: str, other: Any) -> None:
        first = config(FIRST)
        again(self.without(name, first), first, first)
        with pytest.raises(ResumeError, match=rf"holds another experiment(.|\n)*{name}: "):
            second = config({**FIRST, name: other, **({"adapt.method": "lora"} if "adapt" in name else {})})
            again(self.without(name, first), first, second)


LORA = {"adapt.method": "lora"}
LAST = {"adapt.method": "last_n_layers", "adapt.n": 1}
NOISE = {"augment.noise_manifest": "/data/noise.csv"}
ROOMS = {"augment.rir_manifest": "/data/rirs.csv"}
MASKS = {"augment.time_masks": 2, "augment.frequency_masks": 2}
RANKED = {"scoring.metrics": {"own": "own:Metric"}, "checkpoint.checkpoint_score_attribute": "eval_own"}


@pytest.mark.parametrize(
    ("before", "now"),
    [
        (LORA, {**LORA, "adapt.r": 8}),
        (LORA, {**LORA, "adapt.alpha": 16}),
        (LORA, {**LORA, "adapt.dropout": 0.1}),
        (LORA, {**LORA, "adapt.target_modules": ["q_proj"]}),
        (LORA, {}),
        (LAST, {**LAST, "adapt.n": 2}),
        (NOISE, {**NOISE, "augment.noise_snr_db": [0.0, 10.0]}),
        (NOISE, {**NOISE, "augment.noise_probability": 0.9}),
        (ROOMS, {**ROOMS, "augment.rir_probability": 0.9}),
        (MASKS, {**MASKS, "augment.time_mask_s": 0.2}),
        (MASKS, {**MASKS, "augment.time_mask_fraction": 0.1}),
        (MASKS, {**MASKS, "augment.frequency_mask_fraction": 0.1}),
        (RANKED, {**RANKED, "checkpoint.checkpoint_score_order": "max"}),
        (RANKED, {**RANKED, "scoring.metrics": {"own": "other:Metric"}}),
    ],
)
def test_what_is_trained_and_on_what_is_part_of_the_experiment(before: dict[str, Any], now: dict[str, Any]) -> None:
    first, second = config({**FIRST, **before}), config({**FIRST, **now})
    (name,) = {key for key in {**before, **now} if before.get(key) != now.get(key)}
    with pytest.raises(ResumeError, match=rf"holds another experiment(.|\n)*{name}: "):
        again(started(first), first, second)


def test_another_value_of_a_field_that_nothing_reads_is_not_taken_for_one() -> None:
    unread = {"training.lr_scheduler_type": "constant", "training.warmup_steps": 2}
    first = config({**FIRST, **unread})
    with pytest.raises(ResumeError, match=r"training\.warmup_steps: 2 → 5"):
        again(started(first), first, config({**FIRST, **unread, "training.warmup_steps": 5}))


@pytest.mark.parametrize("name", ["augment.noise_manifest", "augment.rir_manifest", "model.vocabulary_file"])
class TestContentOfAFile:
    FIELDS: ClassVar = {
        "augment.noise_manifest": NOISE,
        "augment.rir_manifest": ROOMS,
        "model.vocabulary_file": {**FIRST_CTC, "model.vocabulary_file": "/data/vocab.json"},
    }

    def test_is_part_of_the_experiment(self, name: str) -> None:
        first = config({**FIRST, **self.FIELDS[name]})
        state = self._started(first, {name: "one"})
        assert is_exact(decide(URL, state, None, first, {**keys(first), name: "one"}))
        with pytest.raises(ResumeError, match=rf"{name}: the file has other content \(one → other\)"):
            decide(URL, state, None, first, {**keys(first), name: "other"})

    def test_is_the_run_s_own_from_the_first_attempt_that_knows_it(self, name: str) -> None:
        first = config({**FIRST, **self.FIELDS[name]})
        state = self._started(first, {})
        known = decide(URL, state, None, first, {**keys(first), name: "one"})
        assert is_exact(known)
        later = replace(state, experiment=known.experiment)
        assert decide(URL, later, None, first, keys(first)).experiment == known.experiment, "where the file is gone"
        with pytest.raises(ResumeError, match=rf"{name}: the file has other content \(one → other\)"):
            decide(URL, later, None, first, {**keys(first), name: "other"})

    def test_another_one_before_a_checkpoint_begins_another_experiment(self, name: str) -> None:
        first = config({**FIRST, **self.FIELDS[name]})
        state = replace(self._started(first, {name: "one"}), checkpoints=())
        assert state.experiment is not None
        same, other = (decide(URL, state, None, first, {**keys(first), name: it}) for it in ("one", "other"))
        assert same.experiment["id"] == state.experiment["id"] != other.experiment["id"]

    def _started(self, first: TrainConfig, contents: dict[str, str]) -> State:
        begun = decide(URL, State(), None, first, {**keys(first), **contents})
        return replace(started(first), experiment=begun.experiment)


def _valid(changes: dict[str, Any]) -> TrainConfig | None:
    try:
        return config(changes)
    except ConfigError:
        return None


def _check(first: TrainConfig, second: SecondStart) -> None:
    state = started(first)
    refused = second.fields(Outcome.REFUSED)
    # Another length is no longer refused where the config says how the learning rate goes on.
    extend, steps = second.changes.get("training.extend"), second.changes.get("training.max_steps")
    extended = steps is not None and (extend == "rescale" or (extend == "restart" and steps > 8))
    if extended:
        refused.remove("training.max_steps")
    if refused:
        with pytest.raises(ResumeError) as caught:
            again(state, first, second.config)
        named = str(caught.value).replace("data.normalizer", "data.normalizer data.do_normalize_eval")
        assert any(name in named or _hashed(name) in named for name in refused), named
        return
    continuation = again(state, first, second.config)
    said = "\n".join(continuation.changes)
    for name in second.changes:
        if not (extended and name in ("training.extend", "training.max_steps")):
            assert name in said
    if extended:
        assert f"the run ends at max_steps {steps}, not max_steps 8 (training.extend {extend})" in said
    assert is_exact(continuation) == (not extended and not second.fields(Outcome.ROUNDED))
    assert continuation.experiment["id"] == state.experiment["id"]  # type: ignore[index]


def _hashed(name: str) -> str:
    """What a refusal names where a field is part of a hash, or of what fields come to together."""
    of_data = {"audio_column_name", "text_column_name", "do_lower_case", "do_remove_punctuation", "chars_to_ignore"}
    part, field = name.split(".", 1)
    if part == "data" and field in of_data:
        return "data.train"
    return {
        "training.max_steps": "max_steps",
    }.get(name, name)


def test_a_run_goes_on_with_an_elastic_number_of_workers_and_the_same_global_batch() -> None:
    first = config({**FIRST, "scaling.num_workers": 2, "training.global_batch_size": 4})
    elastic = {"scaling.num_workers": {"min": 1, "max": 3}, "training.global_batch_size": 4}
    second = again(started(first), first, config({**FIRST, **elastic}))
    assert second.changes[0] == "scaling.num_workers: 2 → {'min': 1, 'max': 3}"
    assert not is_exact(second)
    with pytest.raises(
        ResumeError, match=r"training\.global_batch_size: 4 → 5, .*: utterances of an optimizer step: 4 → 5"
    ):
        again(started(first), first, config({**FIRST, **elastic, "training.global_batch_size": 5}))


def test_a_number_of_workers_that_changes_the_steps_is_refused_by_its_name_with_the_fix() -> None:
    two = {**FIRST, "training.global_batch_size": None, "training.per_device_train_batch_size": 4}
    before = config({**two, "scaling.num_workers": 2})
    line = "scaling.num_workers: 2 → 1: utterances of an optimizer step: 8 → 4; "
    with pytest.raises(ResumeError, match=f"{line}--set training.global_batch_size=8 keeps them") as caught:
        again(started(before), before, config({**two, "scaling.num_workers": 1}))
    assert "per_step" not in str(caught.value)
    kept = again(started(before), before, config({**two, "scaling.num_workers": 1, "training.global_batch_size": 8}))
    assert "scaling.num_workers: 2 → 1" in kept.changes
    by_seconds = {**FIRST, "training.global_batch_size": None, "training.max_batch_duration_s": 20.0}
    before = config({**by_seconds, "scaling.num_workers": 2})
    line = "scaling.num_workers: 2 → 1: forward passes of an optimizer step: 2 → 1; a "
    with pytest.raises(ResumeError, match=f"{line}training.gradient_accumulation_steps that makes them 2 "):
        again(started(before), before, config({**by_seconds, "scaling.num_workers": 1}))


class TestMix:
    MEMBERS: ClassVar[list[dict[str, Any]]] = [
        {"name": "one", "train": "/one.csv", "weight": 1, "language": "sr"},
        {"name": "other", "train": "/other.csv", "weight": 2},
    ]

    def _mix(self, changes: dict[str, Any], **of_one: Any) -> TrainConfig:
        members = [{**self.MEMBERS[0], **of_one}, self.MEMBERS[1]]
        return config({**FIRST, "data.train": None, "data.mix": members, "data.mix_temperature": 2.0, **changes})

    def test_weights_names_and_temperature_are_the_experiment(self) -> None:
        before = self._mix({})
        for changed, said in (
            (self._mix({}, weight=3), r"data.mix: \[\['one', 1.0\], .* → \[\['one', 3.0\]"),
            (self._mix({}, name="first"), r"data.mix: \[\['one', 1.0\], .* → \[\['first', 1.0\]"),
            (self._mix({"data.mix_temperature": 5.0}), "data.mix_temperature: 2.0 → 5.0"),
            (self._mix({"data.mix_temperature": None}), "data.mix_temperature: 2.0 → None"),
        ):
            with pytest.raises(ResumeError, match=said):
                again(started(before), before, changed)

    def test_the_same_recordings_may_be_elsewhere(self) -> None:
        before = self._mix({})
        second = again(started(before), before, self._mix({}, train="/mounted/one.csv"))
        assert is_exact(second)
        assert second.changes[0].startswith("data.mix: ") and "/mounted/one.csv" in second.changes[0]


class TestShards:
    ZERO: ClassVar[dict[str, Any]] = {
        **FIRST,
        "strategy.name": "deepspeed",
        "scaling.num_workers": 2,
        "training.global_batch_size": 4,
    }

    @pytest.mark.parametrize(
        ("changes", "said"),
        [
            ({"scaling.num_workers": 3}, "scaling.num_workers: '2, each with its shard' → '3, each with its shard'"),
            ({"strategy.zero_stage": 3}, "strategy.zero_stage: None → 3"),
            ({"strategy.offload_optimizer": "cpu"}, "strategy.offload_optimizer: None → 'cpu'"),
            ({"strategy.name": "ddp"}, "strategy.name: 'deepspeed' → 'ddp'"),
        ],
    )
    def test_shards_are_not_taken_for_others(self, changes: dict[str, Any], said: str) -> None:
        before = config(self.ZERO)
        with pytest.raises(ResumeError) as caught:
            again(started(before), before, config({**self.ZERO, **changes}))
        assert said in str(caught.value)
        assert "--set run.resume=from:<checkpoint>" in str(caught.value)

    def test_whole_checkpoints_do_not_go_on_as_shards(self) -> None:
        before = config({**self.ZERO, "strategy.name": "ddp"})
        with pytest.raises(ResumeError, match=r"strategy\.name: 'ddp' → 'deepspeed'"):
            again(started(before), before, config(self.ZERO))

    def test_the_same_shards_go_on(self) -> None:
        before = config(self.ZERO)
        assert is_exact(again(started(before), before, before))

    def test_one_that_was_staged_under_another_strategy_is_not_taken_over(self) -> None:
        first = decide(URL, State(), None, config(self.ZERO), keys(config(self.ZERO)))
        state = State(number=3, attempt=1, prepared=1, experiment=first.experiment)
        other = config({**self.ZERO, "strategy.name": "ddp"})
        second = decide(URL, state, config(self.ZERO).model_dump(mode="json"), other, keys(other))
        assert second.experiment["id"] != first.experiment["id"]


def test_a_damaged_copy_of_the_config_before_is_not_read(tmp_path: Path) -> None:
    folder, state = RunFolder(open_storage(str(tmp_path))), State(prepared=1)
    assert previous_config(folder, state) is None
    folder.storage.write_bytes("config.yaml", b"run: {name: x}")
    for damaged in (b"", b"run: {na\xe1me", b"run: [", bytes(9)):
        folder.storage.write_bytes("attempts/1/config.yaml", damaged)
        assert previous_config(folder, state) == {"run": {"name": "x"}}
    folder.storage.write_bytes("config.yaml", b"")
    with pytest.raises(ResumeError, match=r"attempts/1/config.yaml and .*/config.yaml: damaged"):
        previous_config(folder, state)
