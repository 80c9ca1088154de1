"""A package of 0.1 is started with arguments alone: its task.py makes of them what the ledger holds."""

import itertools
import shlex
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from jobs.submission.ray_request import build_request
from tests.jobs.sample import sample_run
from trainers.config.overrides import apply_overrides, parse_override

NUMBERS = st.integers() | st.floats(allow_nan=False, allow_infinity=False)
SCALARS = (
    st.none() | st.booleans() | NUMBERS | st.text() | st.sampled_from(["yes", "1e3", "~", "a: b", "$HOME", "'", ""])
)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10)


@given(part=st.dictionaries(st.text(min_size=1), VALUES))
def test_any_value_comes_through_the_command_line(part: dict[str, Any]) -> None:
    run = sample_run()
    config = {**run.config, "training": part}
    request = build_request(
        sample_run(config=config), 1, package="/packages/a.zip", resume="scratch", legacy_recipe="specs/sr.yaml"
    )
    arguments = shlex.split(request.entrypoint)
    overrides = [text for option, text in itertools.pairwise(arguments) if option == "--set"]
    assert apply_overrides({}, [parse_override(text) for text in overrides]) == config
