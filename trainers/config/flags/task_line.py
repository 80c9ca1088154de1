"""The command line of `task.py`; `rayscribe train`, `prepare` and `evaluate` fill in its arguments themselves."""

import argparse
import difflib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from trainers.config.flags import script_line

EXAMPLES = """examples:
  python task.py    (the demo recipe, on this node)
  python task.py --config jobs/specs/whisper_micro.yaml --set scaling.num_workers=2
  python task.py --config my.yaml --debug    (two batches through every stage, nothing is kept)
  python task.py --config my.yaml --set data.train=my/train.csv --set run.storage_path=s3://bucket/runs
  python task.py --model_size tiny --name sr --language Serbian --max_steps 5000 --num-workers 3 --use-gpu
The flags of transformers' speech recognition scripts and of its Trainer are all known; docs/flags.md says what each
means here, or why it is refused. Dashes and underscores are the same, and --x=False is off.
"""
_VERBS = ("train", "prepare", "evaluate", "check")


@dataclass(frozen=True)
class TaskArguments:
    """The arguments of `parser`.

    Attributes:
        config: The recipe. None: flags alone, or the config that the service submitted.
        flags: Value of each flag of `script_line.FLAGS` by its key; None if it was not given.
        ray: True: run on Ray. False: run in this process. None: on Ray if the run requires it.
        recipe: Content to use instead of the file `config`, if there is no such file.
        texts: With the verb prepare, report on the transcripts.
        debug: Run two batches through every stage, and keep nothing.
        demo: No arguments were given: run the demo recipe on the driver's node.
        json: Print one JSON document per line, for programs.
        command: What the user typed after the verb; the next steps are derived from it. None: no advice is printed.
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
    attempt: int | None = None
    only: str | None = None
    elsewhere: bool = False
    recordings_s: float = 60.0
    light: bool = False
    demo: bool = False
    json: bool = False
    command: Sequence[str] | None = None
    recipe: Mapping[str, Any] | None = None


def parse_line(arguments: Sequence[str], *, demo: bool = False) -> TaskArguments:
    """Parses the arguments of task.py; exits the process where argparse does."""
    known = parser()
    parsed, unknown = known.parse_known_args(script_line.usually_spelled(arguments))
    if unknown:
        known.error(_unknown(unknown, [option for action in known._actions for option in action.option_strings]))
    values = vars(parsed)
    given = {flag.key: values.pop(flag.key) for flag in script_line.FLAGS}
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
    result.add_argument("--address", help="address of a Ray cluster (default: RAY_ADDRESS, or a Ray started here)")
    result.add_argument("--ray", action="store_true", default=None, help="run on Ray (default: where it is needed)")
    result.add_argument("--no-ray", action="store_false", dest="ray", help="run in this process, without Ray")
    result.add_argument("--json", action="store_true", help="print one JSON document per line, for programs")
    result.add_argument("--texts", action="store_true", help="with prepare, report on the transcripts")
    result.add_argument(
        "--attempt",
        type=int,
        metavar="K",
        help="train: this is attempt K of the run, which takes it over from all before; a service counts them "
        "(default: the next one)",
    )
    result.add_argument("--only", metavar="GROUPS", help="check: some of storage,data,model,hardware,nodes")
    result.add_argument("--light", action="store_true", help="check: load torch only where a check needs it")
    result.add_argument("--elsewhere", action="store_true", help="check: the job runs on other machines than this")
    result.add_argument(
        "--recordings-s", type=float, default=60.0, metavar="S", help="check: longest look at a split's recordings"
    )
    script_line.add_sections(result)
    return result
