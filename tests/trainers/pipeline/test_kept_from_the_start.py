"""What a run keeps of how it began: its length, its origin, and the defaults of its version."""

from dataclasses import replace

import pytest

from tests.trainers.pipeline.decisions_of_starts import URL, again, keys, lengths, started
from tests.trainers.pipeline.second_starts import FIRST
from tests.trainers.synthetic import config
from trainers.errors import ResumeError
from trainers.pipeline.continuation import decide
from trainers.run_folder.journal import State
from trainers.training.tasks import Length


class TestLength:
    def test_another_length_of_a_schedule_with_an_end_is_refused_with_the_choice(self) -> None:
        first = config(FIRST)
        for steps in (12, 6):
            with pytest.raises(ResumeError, match=r"training\.extend=rescale .* restart .* constant") as caught:
                again(started(first), first, config({**FIRST, "training.max_steps": steps}))
            assert f"ends at training.max_steps 8, and max_steps {steps} is asked for" in str(caught.value)

    def test_a_schedule_without_an_end_goes_on(self) -> None:
        endless = {**FIRST, "training.lr_scheduler_type": "constant_with_warmup"}
        first = config(endless)
        for steps in (12, 6):
            longer = again(started(first), first, config({**endless, "training.max_steps": steps}))
            assert lengths(longer) == [(steps, None)]
            assert longer.changes == (
                f"the run ends at max_steps {steps}, not max_steps 8; "
                "the learning rate (constant_with_warmup) does not depend on it",
            )

    def test_lengths_are_remembered_over_attempts(self) -> None:
        first = config(FIRST)
        more = config({**FIRST, "training.max_steps": 12, "training.extend": "restart"})
        second = again(started(first), first, more)
        assert lengths(second) == [(8, None), (12, "restart")]
        state = replace(started(first), experiment=second.experiment)
        retry = again(state, more, more)
        assert (lengths(retry), retry.changes) == (lengths(second), ())
        rescaled = config({**FIRST, "training.max_steps": 16, "training.extend": "rescale"})
        assert lengths(again(state, more, rescaled)) == [(8, None), (16, "restart")]
        shorter = config({**FIRST, "training.max_steps": 6, "training.extend": "rescale"})
        assert lengths(again(state, more, shorter)) == [(6, None)], "the restart would begin after the end"
        with pytest.raises(ResumeError, match=r"training\.extend restart adds steps"):
            again(state, more, config({**FIRST, "training.max_steps": 10, "training.extend": "restart"}))

    def test_a_constant_rate_of_nothing_is_refused(self) -> None:
        first = config(FIRST)
        with pytest.raises(ResumeError, match="the last rate of linear is 0"):
            again(started(first), first, config({**FIRST, "training.max_steps": 12, "training.extend": "constant"}))
        decays = {**FIRST, "training.lr_scheduler_type": "polynomial"}
        longer = {**decays, "training.max_steps": 12, "training.extend": "constant"}
        assert lengths(again(started(config(decays)), config(decays), config(longer))) == [(8, None), (12, "constant")]

    def test_steps_do_not_become_epochs(self) -> None:
        first = config(FIRST)
        epochs = {**FIRST, "training.max_steps": None, "training.num_train_epochs": 3, "training.extend": "rescale"}
        with pytest.raises(ResumeError, match="keep the one that the run began with"):
            again(started(first), first, config(epochs))

    def test_a_run_is_not_shorter_than_its_newest_checkpoint(self) -> None:
        first = config(FIRST)
        with pytest.raises(ResumeError, match=r"training\.max_steps is 3, but the run is at step 4"):
            again(started(first), first, config({**FIRST, "training.max_steps": 3, "training.extend": "rescale"}))


class TestBeganFrom:
    def test_a_run_keeps_what_it_began_from(self) -> None:
        origin = {**FIRST, "run.resume": "from:/data/a/checkpoints/checkpoint-4"}
        first = config(origin)
        state = started(first)
        for resume in ("auto", origin["run.resume"]):
            same = again(state, first, config({**FIRST, "run.resume": resume}))
            assert same.began_from == "/data/a/checkpoints/checkpoint-4"
            assert same.changes == ()
        with pytest.raises(ResumeError, match=r"run\.resume: 'from:/data/a/.*' → 'from:/data/b"):
            again(state, first, config({**FIRST, "run.resume": "from:/data/b/checkpoints/checkpoint-4"}))


class TestResolvedFields:
    def test_a_new_run_takes_the_defaults_of_now(self) -> None:
        made = decide(URL, State(), None, config(FIRST), keys(config(FIRST))).config
        assert made.data.normalizer == "basic"
        assert made.data.use_language_column is True
        assert made.checkpoint.checkpoint_score_attribute == "eval_wer"
        assert made.training.shuffle_window_shards == 0
        assert made.training.pad_to == "longest"

    def test_few_lengths_are_compiled(self) -> None:
        compiled = config({**FIRST, "training.torch_compile": True})
        assert decide(URL, State(), None, compiled, keys(compiled)).config.training.pad_to == "bucket"

    def test_a_language_without_spaces_is_ranked_by_cer(self) -> None:
        thai = config({**FIRST, "model.language": "Thai"})
        assert decide(URL, State(), None, thai, keys(thai)).config.checkpoint.score_attribute == "eval_cer"

    def test_a_set_in_a_bucket_is_shuffled_within_windows(self) -> None:
        remote = config({**FIRST, "data.cache_dir": "s3://bucket/prepared"})
        window = decide(URL, State(), None, remote, keys(remote)).config.training.shuffle_window_shards
        assert window is not None and window > 1


def test_an_extension_that_changes_nothing_is_said() -> None:
    first = config(FIRST)
    second = again(started(first), first, config({**FIRST, "training.extend": "restart"}))
    assert second.changes == ("training.extend: None → 'restart', which has no effect: the run's length is the same",)
    assert second.lengths == [Length(8, None)]
