"""fit(config): begins the attempt, trains, and returns the result of the run."""

from collections.abc import Sequence
from contextlib import ExitStack

from trainers.config.parts.model_part import ModelPart
from trainers.config.schema import TrainConfig
from trainers.distributed.console import is_main_process, print_line, show
from trainers.distributed.console.events import Stage
from trainers.errors import RayscribeError, RefusedError
from trainers.pipeline.attempt import begin
from trainers.pipeline.engine import Engine
from trainers.pipeline.evaluate import RunResult
from trainers.pipeline.splits import writing_page
from trainers.run_folder import layout
from trainers.run_folder.acceptance import refuse_not_accepted
from trainers.run_folder.attempt_request import AttemptRequest
from trainers.run_folder.attempt_status import FinalStatus, Phase, StatusWriter
from trainers.run_folder.checkpoints import newest
from trainers.run_folder.driver_log import DriverLog
from trainers.run_folder.hub_push import is_pushed, push_run
from trainers.run_folder.journal import Journal
from trainers.run_folder.layout import RunFolder
from trainers.scoring.comparison.verdict import Judgment, Verdict
from trainers.training.tasks import TrainTask


def fit(
    config: TrainConfig,
    engine: Engine,
    *,
    overrides: Sequence[str] = (),
    attempt: int | None = None,
    expected: str | None = None,
) -> RunResult:
    """Runs one experiment from manifests to an exported, scored model; continues it if it was interrupted.

    The config must have `run.name` and absolute paths; for the other arguments see `AttemptRequest`. Errors are raised
    before training if possible.
    """
    # All ranks use rank 0's config, since a name that is made from the time may differ between ranks.
    config = engine.run_on_main_process(lambda: config)
    folder = RunFolder.of(config)
    with (
        ExitStack() as pages,
        FinalStatus(config, folder, attempt) as final,
        ExitStack() as stack,
    ):
        # For a service's attempt, the service keeps the log of the job.
        log = stack.enter_context(DriverLog(folder)) if attempt is None and is_main_process() else None
        with StatusWriter(folder, attempt) as status:
            request = AttemptRequest(folder, overrides=overrides, number=attempt, expected=expected)
            task = engine.run_on_main_process(lambda: begin(config, engine, request, status))
        if task is not None:
            final.attempt = task.attempt
            if log is not None:
                log.begin(task.attempt)
            engine.run(task, folder)
        result = _result_of(folder, task, config.model)
        # The page has the final status, and is written also for a model that is not accepted.
        if is_main_process() and (task is not None or not folder.storage.exists(layout.REPORT)):
            pages.callback(_write_report, folder)
        final.headline = result.headline
        if log is not None:
            log.add(result.headline)
        if config.evaluate.require_better:
            _refuse_not_better(result)
        if config.hub.push and is_main_process():
            final.headline += _push(config, folder, final.attempt)
    return result


def _write_report(folder: RunFolder) -> None:
    with writing_page("the run", folder.url):
        # Imported here, since plotting is slow to load and needed once.
        from trainers.scoring.report.page import write_report  # noqa: PLC0415

        write_report(folder)


def _refuse_not_better(result: RunResult) -> None:
    """Raises RefusedError unless the model is better than the weights that the run began with."""
    verdict = result.verdict
    if verdict is None or verdict.judgment is not Judgment.BETTER:
        found = str(verdict) if verdict is not None else "scores of the initial weights are missing"
        raise RefusedError(
            f"{result.folder}: the model is not better than the initial weights ({found}); it is kept. Train again "
            "under another run.name, with a lower training.learning_rate, fewer steps or more data, or score both on a "
            "larger test set"
        )


def _push(config: TrainConfig, folder: RunFolder, attempt: int | None) -> str:
    """Pushes the run's model to the Hub unless it is there. Returns a suffix for the headline, "" after success.

    A failed push does not fail the run.
    """
    again = f"rayscribe push {folder.url}"
    try:
        if is_pushed(Journal(folder).read(), config.hub, folder.name):
            return ""
        refuse_not_accepted(folder)
        with StatusWriter(folder, attempt, after_workers=True) as status:
            status.update(Phase.EVALUATING, detail="pushing the model to the Hub", eta_s=None)
            show(Stage("push", "the best model, to the Hub"))
            push = push_run(folder, config.hub)
    except Exception as error:
        reason = str(error) if isinstance(error, RayscribeError) else f"{type(error).__name__}: {error}"
        again += " --allow-worse" if isinstance(error, RefusedError) else ""
        print_line(f"warning: the model was not pushed ({reason}); the run is complete: push it with {again}")
        return f" · not pushed to the Hub: {again}"
    print_line(f"pushed to {push.repository}, commit {push.commit}")
    return ""


def _result_of(folder: RunFolder, task: TrainTask | None, model: ModelPart) -> RunResult:
    state = Journal(folder).read()
    finish = state.finished
    if finish is None or (task is not None and finish.attempt < task.attempt):
        raise RayscribeError(f"{folder.url}: the workers ended without a result; look into {layout.ATTEMPTS}/")
    split = "validation" if finish.result["test"] is None else "test"
    totals = folder.read_json(f"{finish.outputs}/{layout.EVALUATION}/{split}.json")
    best_step, last = finish.result["best_step"], newest(state.checkpoints)
    base = finish.result.get("base") or {}
    guards = finish.result.get("guards") or {}
    best = best_step if last and last.step > best_step else None
    verdicts = {name: Verdict.of_json_dict(each) for name, each in (finish.result.get("verdicts") or {}).items()}
    return RunResult(folder.url, totals or {}, split, model, best, base, guards, verdicts)
