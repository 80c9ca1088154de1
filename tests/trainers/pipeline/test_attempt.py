"""What stops an attempt before anything is prepared."""

from pathlib import Path

import pytest

from tests.trainers.synthetic import config
from trainers.config.schema import TrainConfig
from trainers.errors import LostNodeError, ResourceError
from trainers.pipeline.attempt import AttemptRequest, begin
from trainers.pipeline.engine import LocalEngine
from trainers.run_folder.attempt_status import StatusWriter
from trainers.run_folder.layout import RunFolder


class TooSmall(LocalEngine):
    """A cluster that does not hold the workers."""

    def check(self, config: TrainConfig, *, trains: bool) -> None:
        """Refuses."""
        raise ResourceError("2 × 2 CPU = 4 CPU, but the cluster has 3")


@pytest.mark.parametrize(
    ("number", "error"),
    [pytest.param(None, ResourceError, id="started by hand"), pytest.param(2, LostNodeError, id="started by a queue")],
)
def test_a_cluster_that_is_too_small_has_lost_a_node_where_a_queue_found_it_large_enough(
    tmp_path: Path, number: int | None, error: type[Exception]
) -> None:
    wanted = config({"run.name": "mine", "run.storage_path": str(tmp_path)})
    folder = RunFolder.of(wanted)
    with pytest.raises(error, match="4 CPU, but the cluster has 3") as caught:
        begin(AttemptRequest(wanted, TooSmall(), folder, [], number), StatusWriter(folder, None))
    assert type(caught.value) is error
