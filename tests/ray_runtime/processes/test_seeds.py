"""What processes of one run draw from."""

from types import SimpleNamespace

from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.kit.inference import PolicyWorker
from rlinf_async.ray_runtime.processes.seeds import learner_seed


def test_no_learner_rank_draws_from_the_seed_of_an_inference_rank():
    deterministic = AsyncConfig.from_mapping({"mode": "train", "deterministic": True})
    seeds = []
    for rank in range(64):
        for generation in range(4):
            worker = SimpleNamespace(_inference_rank=rank, generation=generation)
            PolicyWorker.sample_apart(worker, 7, deterministic)
            seeds.append(worker.sampling_seed)
    PolicyWorker.sample_apart(worker, 2**32 - 1, deterministic)  # the largest seed of a config
    seeds += [learner_seed(7, rank) for rank in range(64)]
    assert len(set(seeds)) == len(seeds)
