"""Converts the journal of a run, which no ledger knows, to events. Pure."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from jobs.model import Event, Run, RunState
from trainers.config.wording import both_contexts, counted
from trainers.run_folder.layout import seconds_of

STATES = {"opened": RunState.TRAINING, "prepared": RunState.PREPARING_DATA, "finished": RunState.SUCCEEDED}


def events_of(run: Run, entries: Iterable[Mapping[str, Any]]) -> Iterator[Event]:
    """Yields one event per entry, see `trainers.run_folder.journal`; and how the run ended, unless it finished."""
    number = 0
    before: RunState | None = None
    trained: set[Any] = set()
    for number, entry in enumerate(entries, start=1):
        kind = str(entry.get("kind"))
        begins = kind == "opened" and "group" not in entry
        state = RunState.SETTING_UP if begins else STATES.get(kind, before or RunState.TRAINING)
        yield Event(
            number=number,
            run_id=run.id,
            attempt=int(entry.get("attempt") or 0),
            at_s=seconds_of(str(entry["at"])),
            state=state,
            before=before,
            cause=kind,
            text=_text(kind, entry, again=entry.get("attempt") in trained),
        )
        if kind == "opened" and "group" in entry:
            trained.add(entry.get("attempt"))
        before = state
    if run.state.ended and before not in (None, run.state):
        # No driver records its own end, which may be a kill.
        yield Event(
            number=number + 1,
            run_id=run.id,
            attempt=run.attempt,
            at_s=run.ended_s or run.updated_s,
            state=run.state,
            before=before,
            cause="ended",
            text=run.reason,
        )


def _text(kind: str, entry: Mapping[str, Any], *, again: bool) -> str:
    match kind:
        case "opened":
            text = f"attempt {entry['attempt']} begins"
            if "group" in entry:
                reason = f", after: {entry['reason']}" if entry.get("reason") else ""
                trains = "trains again" if again else "trains"
                workers = "its workers" if entry.get("workers") is None else counted(entry["workers"], "worker")
                text = f"attempt {entry['attempt']} {trains}, with {workers}{reason}"
        case "prepared":
            text = f"the data of attempt {entry['attempt']} is prepared"
        case "resized":
            text = f"from step {entry['step']} on there are {entry['to']} workers, before {entry['from']}"
        case "checkpoint":
            made = entry["checkpoint"]
            metrics = made.get("metrics", {})
            wer, full = metrics.get("eval_wer"), metrics.get("eval_full_context_wer")
            text = f"{made['name']} is stored{'' if wer is None else f' · WER {both_contexts(wer, full)}'}"
        case "quarantined":
            text = f"{entry['name']} is damaged, and was left out"
        case "finished":
            text = f"attempt {entry['attempt']} has finished the run"
        case _:
            text = kind
    return text
