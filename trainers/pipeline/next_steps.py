"""Suggests next steps after a successful command, as lines whose commands can be copied. Pure."""

import shlex
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import chain, islice

from trainers.config.schema import TrainConfig
from trainers.run_folder import layout

_SET = "--set"
# Fields that only training uses, among those often set by hand.
_TRAINING = "max_steps num_train_epochs extend learning_rate warmup_steps eval_steps save_steps logging_steps"
_TRAINING += " global_batch_size per_device_train_batch_size"
OF_TRAINING = frozenset(("run.name", *(f"training.{name}" for name in _TRAINING.split())))


def next_steps(
    verb: str, command: Sequence[str], config: TrainConfig, folder: str, split: str, best_step: int | None = None
) -> Iterator[str]:
    """Yields lines to print after a command; for `folder`, `split` and `best_step` see `RunResult`.

    `command` has the user's words after the verb: the recipe, and options that all verbs accept.
    """
    if verb == "prepare":
        yield f"train on it: {_line('train', command)}"
        return
    yield f"each {split} utterance with its hypothesis: {folder}/{layout.EVALUATION}/{split}.jsonl"
    if verb == "train":
        scored = [*command, "--model", folder, "--split", "validation"]
        yield f"score another split: {_line('evaluate', scored, OF_TRAINING)}"
        if best_step is None:
            longer = [f"run.name={config.run.name}", _longer(config), "training.extend=rescale"]
            options = [word for change in longer for word in (_SET, change)]
            yield f"train on, twice as long: {_line('train', [*command, *options])}"
        else:
            yield (
                f"later checkpoints were worse on the validation set than the best one, of step {best_step}: "
                "train on more speech, or with a lower training.learning_rate, rather than longer"
            )
        yield f"transcribe with it: {shlex.join(['rayscribe', 'transcribe', folder])} recording.wav"
        recognize = f'rayscribe.transcribe("{folder}", "recording.wav").text'
        yield f"use the model in Python: import rayscribe; print({recognize})"


def _line(verb: str, words: Iterable[str], dropped: Collection[str] = ()) -> str:
    """Returns a command with only the last override of each field, and no overrides of the dropped fields."""
    kept: dict[object, list[str]] = {}
    rest = iter(words)
    for place, word in enumerate(rest):
        option = [word, *islice(rest, 1)] if word == _SET else [word]
        field = option[-1].partition("=")[0].strip() if word == _SET else place
        kept.pop(field, None)
        if field not in dropped:
            kept[field] = option
    return shlex.join(["rayscribe", verb, *chain(*kept.values())])


def _longer(config: TrainConfig) -> str:
    training = config.training
    if training.max_steps is not None:
        return f"training.max_steps={2 * training.max_steps}"
    return f"training.num_train_epochs={2 * (training.num_train_epochs or 1):g}"
