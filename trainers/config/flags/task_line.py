"""Parses the command line of `task.py`, and turns the flags of public fine-tuning scripts into overrides.

`rayscribe train`, `prepare` and `evaluate` fill in the arguments of `task.py` themselves.
"""

import argparse
import difflib
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import quote

from trainers.config.flags.flag import SWITCH, Flag
from trainers.config.flags.script_flags import (
    DATA,
    DEFAULT_DATASET,
    GAUDI,
    LAUNCHER,
    MODEL,
    RUN,
    SCORE_ALONE,
    with_urls,
)
from trainers.config.flags.trainer_flags import DECIDED, FIELDS, PASSED_ON
from trainers.config.overrides import Override, apply_overrides
from trainers.config.parts.data_location import FORMATS, WITH_SPLITS, DataLocation
from trainers.config.schema import TrainConfig
from trainers.config.validation import description_of
from trainers.errors import ConfigError

# From the widely used recipe for Whisper; with fewer steps, a tenth of them are warm-up.
DEFAULT_MAX_STEPS, DEFAULT_WARMUP_STEPS = 5000, 500
STORAGE_VARIABLE = "BUCKET_URI"
# Prefixes of the names of CTC models' weights.
CTC_NAMES = ("wav2vec2", "w2v", "hubert", "wavlm", "data2vec", "mms")
SECTIONS: Mapping[str, tuple[Flag, ...]] = {
    "model": MODEL,
    "data": DATA,
    "run": RUN,
    "training": FIELDS,
    "the Trainer, decided by Rayscribe": DECIDED,
    "the Trainer, passed on": PASSED_ON,
    "Gaudi": GAUDI,
    "Gaudi's launcher": LAUNCHER,
}
FLAGS = tuple(flag for flags in SECTIONS.values() for flag in flags)
BY_KEY = {flag.key: flag for flag in FLAGS}
_DATASET, _LANGUAGE = ("dataset", "dataset_name"), ("name", "dataset_config_name")
_SPLIT_FLAGS = {"train": "train_split_name", "validation": "eval_split_name", "test": None}

EXAMPLES = """examples:
  python task.py    (the demo recipe, on this node)
  python task.py --config jobs/specs/whisper_micro.yaml --set scaling.num_workers=2
  python task.py --config my.yaml --debug    (two batches through every stage, nothing is kept)
  python task.py --config my.yaml --set data.train=my/train.csv --set run.storage_path=s3://bucket/runs
  python task.py --model_size tiny --name sr --language Serbian --max_steps 5000 --num-workers 3 --use-gpu
The flags of transformers' speech recognition scripts and of its Trainer are all known; docs/flags.md says what each
means here, or why it is refused. Dashes and underscores are equivalent, and --x=False turns a flag off.
"""
_VERBS = ("train", "prepare", "evaluate", "check")


@dataclass(frozen=True)
class TaskArguments:
    """The arguments of `parser`.

    Attributes:
        config: The recipe. None if there are only flags, or the service has the config.
        flags: Value of each flag of `FLAGS` by its key; None if it was not given.
        ray: True to run on Ray, False to run in this process, None to use Ray only if the run requires it.
        recipe: Content to use instead of the file `config`, if there is no such file.
        texts: Whether the verb prepare reports on the transcripts.
        debug: Whether to run two batches through every stage, and keep nothing.
        find_lr: Whether to train a few dozen steps with a rising learning rate, and keep nothing.
        demo: Whether no arguments were given, which runs the demo recipe on the driver's node.
        json: Whether to print one JSON document per line, for programs.
        command: What the user typed after the verb, from which advice on next steps is made; None for no advice.
    """

    config: Path | None = None
    sets: Sequence[str] = ()
    flags: Mapping[str, Any] = field(default_factory=dict)
    verb: str = "train"
    model: str | None = None
    split: str = "test"
    nbest: int | None = None
    address: str | None = None
    ray: bool | None = None
    texts: bool = False
    debug: bool = False
    find_lr: bool = False
    attempt: int | None = None
    only: str | None = None
    elsewhere: bool = False
    recordings_s: float = 60.0
    light: bool = False
    demo: bool = False
    json: bool = False
    command: Sequence[str] | None = None
    recipe: Mapping[str, Any] | None = None

    @property
    def keeps_nothing(self) -> bool:
        """True for a training in this process whose run folder is temporary."""
        return self.debug or self.find_lr


def parse_line(arguments: Sequence[str], *, demo: bool = False) -> TaskArguments:
    """Parses the arguments of task.py; exits the process on --help or an error, as argparse does."""
    known = parser()
    parsed, unknown = known.parse_known_args(usually_spelled(arguments))
    if unknown:
        known.error(_unknown(unknown, [option for action in known._actions for option in action.option_strings]))
    values = vars(parsed)
    given = {flag.key: values.pop(flag.key) for flag in FLAGS}
    debug = given["debug"] is True
    return TaskArguments(sets=values.pop("set"), flags=given, demo=demo, debug=debug, **values)


def _unknown(arguments: Sequence[str], options: Sequence[str]) -> str:
    names = [argument.partition("=")[0] for argument in arguments if argument.startswith("--")]
    near = [match for name in names for match in difflib.get_close_matches(name, options, n=1)]
    hint = f"; did you mean {', '.join(near)}?" if near else ""
    return f"unrecognized arguments: {' '.join(names or arguments)}{hint}"


def parser() -> argparse.ArgumentParser:
    """Returns the parser with all arguments of task.py."""
    result = argparse.ArgumentParser(
        prog="task.py",
        usage="task.py [--config RECIPE] [--set KEY=VALUE] [--verb VERB] [flags of a fine-tuning script]",
        description="Fine-tunes a speech recognizer on the Ray cluster that this process finds, or on this machine.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    result.add_argument("--config", type=Path, help="recipe, e.g. jobs/specs/whisper_micro.yaml")
    result.add_argument("--set", action="append", default=[], metavar="KEY=VALUE", help="override a field; repeatable")
    result.add_argument("--verb", choices=_VERBS, default="train", help="what to do (default: train)")
    result.add_argument("--model", help="evaluate: a run folder, a folder with a model, or a Hub id")
    result.add_argument("--split", default="test", help="evaluate: train, validation or test (default: test)")
    result.add_argument("--nbest", type=int, metavar="N", help="evaluate: give the N best hypotheses of each utterance")
    result.add_argument("--find-lr", action="store_true", help="print losses by learning rate, and suggest a rate")
    result.add_argument("--address", help="address of a Ray cluster (default: RAY_ADDRESS, or a Ray started here)")
    result.add_argument("--ray", action="store_true", default=None, help="run on Ray (default: where it is needed)")
    result.add_argument("--no-ray", action="store_false", dest="ray", help="run in this process, without Ray")
    result.add_argument("--json", action="store_true", help="print one JSON document per line, for programs")
    result.add_argument("--texts", action="store_true", help="with prepare, report on the transcripts")
    result.add_argument(
        "--attempt",
        type=int,
        metavar="K",
        help="train: this is attempt K of the run, which supersedes all earlier ones; a service counts them "
        "(default: the next one)",
    )
    result.add_argument("--only", metavar="GROUPS", help="check: some of storage,data,model,hardware,nodes")
    result.add_argument("--light", action="store_true", help="check: load torch only where a check needs it")
    result.add_argument("--elsewhere", action="store_true", help="check: the job runs on other machines than this")
    result.add_argument(
        "--recordings-s", type=float, default=60.0, metavar="S", help="check: seconds to spend on a split's recordings"
    )
    add_sections(result)
    return result


def add_sections(parser: argparse.ArgumentParser) -> None:
    """Adds all flags, in a group for each section; --help shows only those that set a field to their value."""
    for title, flags in SECTIONS.items():
        group = parser.add_argument_group(f"{title}, each short for a --set")
        for flag in flags:
            group.add_argument(
                flag.option,
                dest=flag.key,
                type=flag.kind.read,
                nargs=flag.kind.nargs,
                const=flag.kind.const,
                metavar="X" if flag.kind.nargs != "?" else "BOOL",
                help=_help(flag),
            )


def _help(flag: Flag) -> str:
    """Returns a flag's own explanation, or the first sentence of its field's description."""
    description = description_of(flag.field.partition(",")[0], TrainConfig) if flag.meanings is None else ""
    if not description:
        return argparse.SUPPRESS
    sentence = re.split(r"(?<!e\.g)\. |\.$", description, maxsplit=1)[0]
    return f"{flag.reason or sentence} → {flag.field}".replace("%", "%%")


def usually_spelled(arguments: Sequence[str]) -> list[str]:
    """Returns the arguments with each flag in its script's spelling, whether given with dashes or underscores.

    `--no_x` becomes `--x=False`, as in the scripts.
    """
    return [_usual(argument) if argument.startswith("--") else argument for argument in arguments]


def _usual(argument: str) -> str:
    name, equals, value = argument.partition("=")
    key = name.removeprefix("--").replace("-", "_")
    if key in BY_KEY:
        return f"{BY_KEY[key].option}{equals}{value}"
    negated = BY_KEY.get(key.removeprefix("no_"))
    if key.startswith("no_") and not equals and negated is not None and negated.kind is SWITCH:
        return f"{negated.option}=False"
    return argument


def given_flags(values: Mapping[str, Any]) -> Iterator[tuple[Flag, Any]]:
    """Yields each flag that was given, with its value."""
    return ((flag, values[flag.key]) for flag in FLAGS if values.get(flag.key) is not None)


def notes_on(values: Mapping[str, Any]) -> list[str]:
    """Returns the notes on the values of flags; all values must be accepted ones."""
    notes = (flag.note(value) for flag, value in given_flags(values) if flag.note is not None)
    return [note for note in notes if note is not None]


def overrides_of(values: Mapping[str, Any], verb: str = "train") -> list[Override]:
    """Returns the overrides that the given flags stand for; `values` is by flag key, None where a flag was not given.

    Raises:
        ConfigError: Flags are refused or contradict each other; one message lists all of them.
    """
    setting: dict[str, tuple[Flag, Any]] = {}
    problems = []
    values, corpus = with_corpus(with_urls(values))
    for flag, value in given_flags(values):
        try:
            fields = flag.fields_of(value, verb)
        except ConfigError as refusal:
            problems.append(str(refusal))
            continue
        for name, content in fields.items():
            other, before = setting.setdefault(name, (flag, content))
            if before != content:
                problems.append(
                    f"{other.option} and {flag.option} both set {name}, to {before} and {content}: keep one"
                )
    if verb == "train" and values.get("do_train") is None:
        problems += [
            f"--{name} without --do_train requests only a score, and task.py trains: add --do_train, or "
            f"{SCORE_ALONE} alone"
            for name in ("do_eval", "do_predict")
            if values.get(name)
        ]
    if problems:
        raise ConfigError("\n".join(problems))
    return [*((tuple(name.split(".")), content) for name, (_, content) in setting.items()), *corpus]


def base_of_flags(values: Mapping[str, Any], overrides: Sequence[Override] = ()) -> dict[str, Any]:
    """Returns the config that flags alone start from: pretrained weights, and a Hub data set or manifests.

    The default length and warm-up depend on `overrides`, which are all that will be set in this config.
    """
    address = re.split("[?#]", str(values.get("model_name_or_path")))[0]
    weights = values.get("model_size") or Path(address).name.removeprefix("whisper-")
    family = None if str(weights).lower().startswith(CTC_NAMES) else "whisper"
    language = values.get("name") or values.get("dataset_config_name")
    words = "-".join(str(part).lower() for part in (family, weights, language) if part)
    return {
        "run": {"name": re.sub(r"[^a-z0-9._-]+", "-", words).strip("-")},
        "data": _usual_data(values, overrides),
        "model": {"init": "pretrained"},
        "training": _usual_length(apply_overrides({}, overrides).get("training")),
    }


def _usual_data(values: Mapping[str, Any], overrides: Sequence[Override]) -> dict[str, Any]:
    values, _ = with_corpus(values)
    given = values.get("dataset") or values.get("dataset_name")
    manifests = {("data", split) for split in ("train", "validation", "test")}
    if given is None and any(path in manifests for path, _ in overrides):
        return {}
    name = given or DEFAULT_DATASET
    dataset = {"name": name}
    if "test" in re.split(r"[^A-Za-z0-9_.-]+", values.get("eval_split_name") or ""):
        # The script has two splits, and the one that selects the best model gives no final score.
        dataset["test_split"] = None
    columns = {"audio_column_name": "audio"}
    if name == DEFAULT_DATASET:
        columns["text_column_name"] = "raw_transcription"
    return {"dataset": dataset, **columns}


def _usual_length(training: Any) -> dict[str, Any]:
    given = training if isinstance(training, Mapping) else {}
    steps = given.get("max_steps")
    if steps is None and given.get("num_train_epochs") is not None:
        return {}
    length = {"max_steps": DEFAULT_MAX_STEPS}
    if given.get("lr_scheduler_type") == "constant":
        # This schedule has no warm-up.
        return length
    known = steps if isinstance(steps, int) else DEFAULT_MAX_STEPS
    return {**length, "warmup_steps": min(DEFAULT_WARMUP_STEPS, known // 10)}


def storage_override(environment: Mapping[str, str]) -> list[Override]:
    """Returns the value of `BUCKET_URI` as an override of the storage path; empty if it is not set."""
    value = environment.get(STORAGE_VARIABLE)
    return [(("run", "storage_path"), value)] if value else []


def with_corpus(values: Mapping[str, Any]) -> tuple[dict[str, Any], list[Override]]:
    """Separates the flags that name a corpus: returns the values without them, and the fields that they set.

    An example is `--dataset common_voice:/data/cv --name sr`; the format has splits of its own. Raises ConfigError if
    the location is wrong, or has only one split.
    """
    given = next((values[flag] for flag in _DATASET if values.get(flag) is not None), None)
    name, colon, path = str(given).partition(":")
    if given is None or not colon or name not in FORMATS:
        return dict(values), []
    if name not in WITH_SPLITS:
        raise ConfigError(
            f"--dataset {given}: {name}: is one split: give each as --set data.train={name}:…, --set "
            f"data.validation={name}:…"
        )
    language = next((values[flag] for flag in _LANGUAGE if values.get(flag) is not None), None)
    fields: list[Override] = []
    for split, flag in _SPLIT_FLAGS.items():
        options = {"language": language, "split": values.get(flag) if flag is not None else None}
        query = "&".join(
            f"{option}={quote(str(value), safe='+')}" for option, value in options.items() if value is not None
        )
        location = f"{given}{'&' if '?' in path else '?'}{query}" if query else given
        try:
            DataLocation.parse(location)
        except ValueError as error:
            raise ConfigError(f"--dataset {given}: {error}") from None
        fields.append((("data", split), location))
    taken = (*_DATASET, *_LANGUAGE, *filter(None, _SPLIT_FLAGS.values()))
    return {flag: value for flag, value in values.items() if flag not in taken}, fields
