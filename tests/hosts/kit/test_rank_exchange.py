"""What learner ranks send each other arrives as it was, between processes of their own."""

import socket

import torch
import torch.distributed as dist

from rlinf_async.hosts.kit.rank_exchange import RankExchange, bytes_of, tree_of

RANKS = 3


def tree(rank):
    return {
        "pictures": torch.arange(24, dtype=torch.uint8).reshape(2, 3, 4) + rank,
        "mask": torch.tensor([[True], [False]]),
        "none": None,
        "inputs": {"half": torch.full((2, 2), rank + 0.5, dtype=torch.bfloat16), "empty": torch.empty(0, 3)},
    }


def same(one, other):
    assert one.keys() == other.keys()
    for name, value in one.items():
        if isinstance(value, dict):
            same(value, other[name])
        elif value is None:
            assert other[name] is None
        else:
            assert value.dtype == other[name].dtype
            assert torch.equal(value, other[name])


def exchange(rank, port):
    dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=RANKS)
    ranks = RankExchange("cpu")
    assert ranks.rank == rank
    assert ranks.counts(10 * rank) == [0, 10, 20]
    # Rank 0 sends to both others, which send nothing, and then the way back, where rank 2 has nothing to say.
    found = ranks.swap({1: tree(1), 2: tree(2)} if rank == 0 else {}, [] if rank == 0 else [0])
    assert list(found) == ([] if rank == 0 else [0])
    for received in found.values():
        same(tree(rank), received)
    found = ranks.swap({0: tree(7)} if rank == 1 else {}, [1] if rank == 0 else [])
    assert list(found) == ([1] if rank == 0 else [])
    for received in found.values():
        same(tree(7), received)
    dist.destroy_process_group()


def test_trees_of_any_shape_reach_the_rank_that_they_are_for():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    # An assertion that fails in a rank is raised here.
    torch.multiprocessing.start_processes(exchange, args=(port,), nprocs=RANKS, start_method="fork")


def test_a_tree_stays_what_it_is_as_bytes_of_its_own_rows_alone():
    many = torch.zeros(1_000_000)
    same(tree(3), tree_of(bytes_of(tree(3))))
    assert len(bytes_of({"rows": many[:2]})) < 10_000
