from trainers.scripts.backend import RankContext, WorkerPlace, contexts_of

A, B = ("a", "10.0.0.1"), ("b", "10.0.0.2")


def place(node: tuple[str, str], *devices: str) -> WorkerPlace:
    return WorkerPlace(*node, {"GPU": list(devices)})


def test_ranks_of_a_node_follow_each_other_whatever_the_order_of_workers() -> None:
    contexts = contexts_of([place(A), place(B), place(A), place(B)], 29500, None)
    assert [context.rank for context in contexts] == [0, 2, 1, 3]
    assert [context.local_rank for context in contexts] == [0, 0, 1, 1]
    assert [context.node_number for context in contexts] == [0, 1, 0, 1]
    assert {(context.world_size, context.local_world_size, context.node_count) for context in contexts} == {(4, 2, 2)}
    assert all(context.rank == 2 * context.node_number + context.local_rank for context in contexts)


def test_processes_meet_at_rank_0() -> None:
    contexts = contexts_of([place(B), place(A)], 29511, None)
    assert {(context.master_address, context.master_port) for context in contexts} == {("10.0.0.2", 29511)}
    assert contexts[0].rank == 0 and contexts[0].is_keeper and contexts[1].is_keeper


def test_every_process_knows_the_devices_of_its_node_by_local_rank() -> None:
    contexts = contexts_of([place(A, "3"), place(B, "0"), place(A, "1")], 1, "GPU")
    assert [context.devices for context in contexts] == [(("3",), ("1",)), (("0",),), (("3",), ("1",))]
    assert contexts_of([place(A, "3")], 1, None)[0].devices == ((),)


def test_the_environment_is_torchruns() -> None:
    context = RankContext(5, 8, 1, 4, 1, 2, "10.0.0.1", 29500)
    assert context.environment("run", 2, 3) == {
        "RANK": "5",
        "LOCAL_RANK": "1",
        "GROUP_RANK": "1",
        "ROLE_RANK": "5",
        "ROLE_NAME": "default",
        "WORLD_SIZE": "8",
        "LOCAL_WORLD_SIZE": "4",
        "GROUP_WORLD_SIZE": "2",
        "ROLE_WORLD_SIZE": "8",
        "MASTER_ADDR": "10.0.0.1",
        "MASTER_PORT": "29500",
        "TORCHELASTIC_RESTART_COUNT": "2",
        "TORCHELASTIC_MAX_RESTARTS": "3",
        "TORCHELASTIC_RUN_ID": "run",
        "TORCH_NCCL_ASYNC_ERROR_HANDLING": "1",
    }
