"""What a process without Ray refuses."""

import pytest

from tests.trainers.synthetic import config
from trainers.errors import ConfigError
from trainers.pipeline.engine import LocalEngine


def test_as_many_processes_as_workers() -> None:
    LocalEngine().check(config(), trains=True)
    LocalEngine().check(config({"scaling.num_workers": 2}), trains=False)
    with pytest.raises(ConfigError, match=r"num_workers is 2, but .* 1 processes: .*--nproc-per-node 2.* to 1"):
        LocalEngine().check(config({"scaling.num_workers": 2}), trains=True)
