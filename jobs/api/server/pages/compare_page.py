"""The page that compares runs ticked in the list, as `rayscribe compare` does."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query, Request, Response
from pydantic import Field

from jobs.api.server.dependencies import in_threads
from jobs.api.server.pages.page_rendering import PagesDep, RunsDep, page
from jobs.api.server.pages.run_page import MAX_KEY
from jobs.api.server.routes.run_routes import QueryString
from trainers.errors import ConfigError, StorageError
from trainers.run_folder.layout import EVALUATION, RunFolder
from trainers.scoring.comparison.comparison import compare_named
from trainers.scoring.comparison.systems import System, differing_settings
from trainers.scoring.report.comparison_page import COMPARISON, comparison_values

MOST_RUNS = 8
# Limit of one run's score files; those of a hundred thousand utterances have a quarter of this.
MAX_SCORES_BYTES = 64 << 20
TIMEOUT_S = 30.0

router = APIRouter()


class CompareQuery(QueryString):
    """Keys of the runs, and the split on which they were scored."""

    run: list[Annotated[str, Field(max_length=MAX_KEY)]] = Field([], max_length=100)
    split: str = Field("test", pattern=r"^[A-Za-z0-9_.-]+$", max_length=100)


@router.get("/compare")
@in_threads("folders")
def show_comparison(
    request: Request, query: Annotated[CompareQuery, Query()], pages: PagesDep, runs: RunsDep
) -> Response:
    """Compares each of the runs with the first."""
    keys = [*dict.fromkeys(query.run)]
    if not 2 <= len(keys) <= MOST_RUNS:
        raise ConfigError(f"{len(keys)} runs are ticked: tick 2 to {MOST_RUNS} in the list of runs")
    found = [runs.run(key) for key in keys]
    names = [run.id for run in found]
    shown = names if len({*names}) == len(names) else keys
    systems = [
        pages.folders.read(run, partial(_system, name, query.split), TIMEOUT_S)
        for name, run in zip(shown, found, strict=True)
    ]
    values = comparison_values(compare_named(systems), differing_settings(systems), query.split)
    return page(request, COMPARISON, **values)


def _system(name: str, split: str, folder: RunFolder) -> System:
    size_bytes = sum(entry.size_bytes for entry in folder.storage.list_files(EVALUATION))
    if size_bytes > MAX_SCORES_BYTES:
        raise StorageError(f"{folder.url}: its scores are too large for a page: `rayscribe compare` compares them")
    return System.of_folder(name, folder, split)
