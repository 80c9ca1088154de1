"""What a user may do after a command that has ended well, as lines; commands in it work as they stand. Pure."""

import shlex
from collections.abc import Iterator, Sequence

from trainers.config.schema import TrainConfig
from trainers.run_folder import layout


def next_steps(verb: str, command: Sequence[str], config: TrainConfig, folder: str, split: str) -> Iterator[str]:
    """Lines after a command.

    Args:
        verb: train, prepare or evaluate.
        command: What the user typed after the verb: the recipe and options that all verbs take.
        config: The config, which has the run's name.
        folder: Where the result is; of prepare nowhere.
        split: What was scored.
    """
    if verb == "prepare":
        yield f"train on it: {_line('train', command)}"
        return
    yield f"each {split} utterance with its hypothesis: {folder}/{layout.EVALUATION}/{split}.jsonl"
    if verb == "train":
        yield f"score another split: {_line('evaluate', command, '--model', folder, '--split', 'validation')}"
        longer = [f"run.name={config.run.name}", _longer(config), "training.extend=rescale"]
        options = [word for change in longer for word in ("--set", change)]
        yield f"train on, twice as long: {_line('train', command, *options)}"
        yield f'use the model in Python: pipeline("automatic-speech-recognition", "{folder}/{layout.MODEL}")'


def _line(verb: str, command: Sequence[str], *more: str) -> str:
    return shlex.join(["rayscribe", verb, *command, *more])


def _longer(config: TrainConfig) -> str:
    training = config.training
    if training.max_steps is not None:
        return f"training.max_steps={2 * training.max_steps}"
    return f"training.num_train_epochs={2 * (training.num_train_epochs or 1):g}"
