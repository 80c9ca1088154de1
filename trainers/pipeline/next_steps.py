"""Suggests next steps after a successful command, as lines whose commands can be copied. Pure."""

import shlex
from collections.abc import Collection, Iterator, Sequence

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
    """Yields lines to print after a command.

    Args:
        verb: train, prepare or evaluate.
        command: The user's words after the verb: the recipe, and options that all verbs accept.
        config: The config, with the run's name.
        folder: Folder of the result; empty for prepare.
        split: The split that was scored.
        best_step: See `RunResult`.
    """
    if verb == "prepare":
        yield f"train on it: {_line('train', command)}"
        return
    yield f"each {split} utterance with its hypothesis: {folder}/{layout.EVALUATION}/{split}.jsonl"
    if verb == "train":
        scored = [*_for_scoring(command), "--model", folder, "--split", "validation"]
        yield f"score another split: {_line('evaluate', scored)}"
        if best_step is None:
            longer = [f"run.name={config.run.name}", _longer(config), "training.extend=rescale"]
            options = [word for change in longer for word in (_SET, change)]
            yield f"train on, twice as long: {_line('train', command, *options)}"
        else:
            yield (
                f"later checkpoints were worse on the validation set than the best one, of step {best_step}: "
                "train on more speech, or with a lower training.learning_rate, rather than longer"
            )
        yield f"transcribe with it: {shlex.join(['rayscribe', 'transcribe', folder])} recording.wav"
        recognize = f'rayscribe.transcribe("{folder}", "recording.wav").text'
        yield f"use the model in Python: import rayscribe; print({recognize})"


def _line(verb: str, command: Sequence[str], *more: str) -> str:
    return shlex.join(["rayscribe", verb, *_last_overrides([*command, *more])])


def _last_overrides(words: Sequence[str]) -> list[str]:
    """Returns the words of a command with only the last override of each field."""
    last = {_field(words[at]): at for at in _overrides(words)}
    return _without(words, {at for at in _overrides(words) if last[_field(words[at])] != at})


def _for_scoring(words: Sequence[str]) -> list[str]:
    return _without(words, {at for at in _overrides(words) if _field(words[at]) in OF_TRAINING})


def _overrides(words: Sequence[str]) -> list[int]:
    """Returns the positions of overrides, each of which follows a --set."""
    return [at for at in range(1, len(words)) if words[at - 1] == _SET]


def _field(override: str) -> str:
    return override.partition("=")[0].strip()


def _without(words: Sequence[str], dropped: Collection[int]) -> list[str]:
    return [word for at, word in enumerate(words) if at not in dropped and at + 1 not in dropped]


def _longer(config: TrainConfig) -> str:
    training = config.training
    if training.max_steps is not None:
        return f"training.max_steps={2 * training.max_steps}"
    return f"training.num_train_epochs={2 * (training.num_train_epochs or 1):g}"
