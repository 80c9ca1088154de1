"""What a process without Ray refuses."""

import pytest

from tests.trainers.synthetic import config
from trainers.errors import ConfigError
from trainers.pipeline.engine import LocalEngine


def test_an_elastic_number_of_workers_takes_processes_within_its_bounds() -> None:
    fits = {"scaling.num_workers": {"min": 1, "max": 3}, "training.global_batch_size": 8}
    LocalEngine().check(config(fits), trains=True)
    with pytest.raises(ConfigError, match=r"num_workers is 2 to 3, but .* 1 processes: .*--nproc-per-node 3"):
        LocalEngine().check(config({**fits, "scaling.num_workers": {"min": 2, "max": 3}}), trains=True)


def test_as_many_processes_as_workers() -> None:
    LocalEngine().check(config(), trains=True)
    LocalEngine().check(config({"scaling.num_workers": 2}), trains=False)
    with pytest.raises(ConfigError, match=r"num_workers is 2, but .* 1 processes: .*--nproc-per-node 2.* to 1"):
        LocalEngine().check(config({"scaling.num_workers": 2}), trains=True)
