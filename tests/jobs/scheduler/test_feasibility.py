"""Gangs that can never fit: the amounts and the fix in the message."""

from jobs.model import Gang
from jobs.scheduler.feasibility import Capacity, never_fits
from jobs.scheduler.limits import Limits, QueuePart
from tests.jobs.scheduler.decisions import HERE, cluster, decided, queues, reason, run


class TestNeverFits:
    """What is rejected at submission, and why."""

    @staticmethod
    def reason_for(
        workers: int,
        each: dict[str, float],
        on: Capacity | None = None,
        *,
        extra: dict[str, float] | None = None,
        fewest: int | None = None,
        part: QueuePart | None = None,
    ) -> str | None:
        """Why a gang never fits; None if it does."""
        gang = Gang(num_workers=workers, resources_per_worker=each, extra=extra or {}, min_workers=fewest)
        return never_fits(gang, "research", queues(research=part or QueuePart()), on, HERE)

    def test_what_fits_is_not_refused(self) -> None:
        assert self.reason_for(4, {"GPU": 4}, cluster(16)) is None

    def test_more_than_the_cluster_can_grow_to(self) -> None:
        assert self.reason_for(4, {"GPU": 2}, cluster(2, grows_to=4)) == (
            f"scaling.num_workers 4 × 2 GPU = 8 GPU, but the cluster at {HERE} can grow to 4 GPU; set "
            "scaling.num_workers to at most 2, or use a larger cluster (job.address)"
        )

    def test_what_is_extra_is_in_the_sum(self) -> None:
        assert self.reason_for(3, {"CPU": 3}, cluster(cpus=9), extra={"CPU": 1}) == (
            f"scaling.num_workers 3 × 3 CPU + 1 CPU for Ray Data = 10 CPU, but the cluster at {HERE} has 9 CPU; set "
            "scaling.num_workers to at most 2, or use a larger cluster (job.address)"
        )

    def test_an_elastic_run_is_charged_its_most_workers_and_told_how_many_fit(self) -> None:
        assert self.reason_for(8, {"GPU": 2}, cluster(10), fewest=2) == (
            f"scaling.num_workers.max 8 × 2 GPU = 16 GPU, but the cluster at {HERE} has 10 GPU; set "
            "scaling.num_workers.max to at most 5 (min 2 fits), or use a larger cluster (job.address)"
        )
        on = cluster(15, nodes=[{"GPU": 3}] * 5)
        assert self.reason_for(7, {"GPU": 2}, on, fewest=2) == (
            f"scaling.num_workers.max 7 × (2 GPU): the nodes of the cluster at {HERE} have room for at most 5 such "
            "workers; set scaling.num_workers.max to at most 5 (min 2 fits), or smaller scaling.resources_per_worker"
        )

    def test_an_elastic_run_whose_fewest_workers_do_not_fit(self) -> None:
        text = self.reason_for(8, {"GPU": 2}, cluster(10), fewest=6)
        assert text is not None
        assert "set scaling.num_workers.min and max to at most 5, or use" in text

    def test_a_cluster_without_gpus(self) -> None:
        assert self.reason_for(1, {"GPU": 1, "CPU": 1}, cluster()) == (
            f"scaling.num_workers 1 × 1 GPU = 1 GPU, but the cluster at {HERE} has 0 GPU; set scaling.use_gpu: false "
            "and scaling.resources_per_worker.GPU: 0, or use a larger cluster (job.address)"
        )

    def test_a_type_of_accelerators_that_is_not_there(self) -> None:
        text = self.reason_for(1, {"GPU": 1, "accelerator_type:A100": 0.001}, cluster(4))
        assert text is not None
        assert text.endswith(
            "0 accelerator_type:A100; set scaling.accelerator_type to an available type, or use a "
            "larger cluster (job.address)"
        )

    def test_workers_fit_on_nodes_of_their_type_alone(self) -> None:
        nodes = [{"GPU": 2.0, "accelerator_type:A100": 1.0}, {"GPU": 8.0, "accelerator_type:T4": 1.0}]
        on = Capacity(total={"GPU": 10.0, "accelerator_type:A100": 1.0}, can_grow_to={}, nodes=tuple(nodes))
        text = self.reason_for(3, {"GPU": 1, "accelerator_type:A100": 0.001}, on)
        assert text is not None
        assert "have room for at most 2 such workers; set scaling.num_workers to at most 2" in text
        assert self.reason_for(2, {"GPU": 1, "accelerator_type:A100": 0.001}, on) is None

    def test_one_worker_that_is_more_than_there_is(self) -> None:
        text = self.reason_for(1, {"CPU": 8}, cluster(cpus=5), extra={"CPU": 1})
        assert text is not None
        assert "set scaling.resources_per_worker.CPU to at most 4" in text

    def test_more_than_a_queue_allows(self) -> None:
        text = self.reason_for(4, {"GPU": 2}, cluster(16), part=QueuePart(max_gpus=4))
        assert text == (
            "scaling.num_workers 4 × 2 GPU = 8 GPU, but queue research allows 4 GPU; set scaling.num_workers to at "
            "most 2, or use another queue (job.queue)"
        )

    def test_more_than_each_user_may(self) -> None:
        text = self.reason_for(4, {"GPU": 2}, cluster(16), part=QueuePart(per_user=Limits(max_gpus=4)))
        assert text is not None
        assert "but queue research allows each user 4 GPU; set scaling.num_workers to at most 2" in text

    def test_a_queue_without_gpus(self) -> None:
        text = self.reason_for(1, {"GPU": 1}, cluster(16), part=QueuePart(max_gpus=0))
        assert text is not None
        assert "queue research allows 0 GPU; set scaling.use_gpu: false and scaling.resources_per_worker.GPU: 0" in text

    def test_a_paused_queue_is_no_reason_to_refuse(self) -> None:
        assert self.reason_for(1, {"GPU": 1}, cluster(16), part=QueuePart(max_running=0)) is None

    def test_a_queue_that_is_not_there(self) -> None:
        gang = Gang(num_workers=1, resources_per_worker={"CPU": 1})
        assert never_fits(gang, "nihgt", queues(night=QueuePart()), None, HERE) == (
            "job.queue nihgt is not one of the queues default, night: name one of these"
        )

    def test_a_cluster_that_does_not_respond_rejects_nothing(self) -> None:
        assert self.reason_for(100, {"GPU": 8}) is None

    def test_a_worker_larger_than_every_node(self) -> None:
        on = cluster(16, nodes=[{"GPU": 4, "CPU": 32}] * 4)
        assert self.reason_for(2, {"GPU": 8}, on) == (
            f"one worker needs 8 GPU, but the largest node of the cluster at {HERE} has 4 GPU; set "
            "scaling.resources_per_worker.GPU to at most 4, and more scaling.num_workers instead"
        )

    def test_a_worker_that_no_single_node_has_all_of(self) -> None:
        on = cluster(8, nodes=[{"GPU": 8, "CPU": 4}, {"CPU": 64}])
        assert self.reason_for(1, {"GPU": 1, "CPU": 16}, on) == (
            f"one worker needs 1 GPU, 16 CPU together, but no single node of the cluster at {HERE} has all of it; set "
            "scaling.resources_per_worker to what one node has"
        )

    def test_more_whole_workers_than_the_nodes_have_places(self) -> None:
        on = cluster(9, nodes=[{"GPU": 3}] * 3)
        assert self.reason_for(4, {"GPU": 2}, on) == (
            f"scaling.num_workers 4 × (2 GPU): the nodes of the cluster at {HERE} have room for at most 3 such "
            "workers; set scaling.num_workers to at most 3, or smaller scaling.resources_per_worker"
        )

    def test_a_node_that_may_be_added_may_hold_all_that_is_added(self) -> None:
        on = cluster(4, grows_to=12, nodes=[{"GPU": 4, "CPU": 500}, {"CPU": 500}])
        assert self.reason_for(1, {"GPU": 8}, on) is None
        assert self.reason_for(2, {"GPU": 6}, on) is not None

    def test_what_no_node_holds_does_not_start_because_totals_fit(self) -> None:
        on = cluster(16, nodes=[{"GPU": 4}] * 4)
        decision = decided(run("one", 8, priority=1), run("two", 8, workers=2), on=on)
        assert decision.start == ("two",)
        assert "one worker needs 8 GPU, but the largest node" in reason(decision, "one")
