"""Which exit code a command that waited for a run gives back."""

import pytest

from jobs.cli.following import exit_code_of
from jobs.model import RunState
from tests.jobs.sample import sample_run


@pytest.mark.parametrize(
    ("state", "code", "given"),
    [
        (RunState.SUCCEEDED, 0, 0),
        (RunState.FAILED, 7, 7),
        (RunState.FAILED, -9, 137),
        (RunState.FAILED, None, 1),
        (RunState.STOPPED, None, 143),
        (RunState.STOPPED, 143, 143),
    ],
)
def test_the_entrypoint_s_own_exit_code_is_given_back(state: RunState, code: int | None, given: int) -> None:
    assert exit_code_of(sample_run(state=state, exit_code=code)) == given
