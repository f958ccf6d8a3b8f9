"""Two Ray nodes on one machine, with a rank of every worker on each."""

from collections import Counter

import pytest

from rlinf_async.observe.spans import read_spans
from tests.runs.conftest import COMMAND, SMALL, Run, Runner

pytestmark = pytest.mark.ray

SCORED = ("actor.micro_batch_size=4", "algorithm.update_epoch=1", "async.train.scorer=inference")
PLACED = tuple(f"cluster.component_placement.{name}.placement=0-1" for name in ("env", "rollout", "actor"))


def test_on_two_nodes_a_shard_is_answered_by_the_inference_rank_beside_it_and_both_learners_get_scores(
    runs: Runner,
) -> None:
    directory = runs.directory / "run"
    process = runs.start_module(
        *("tests.runs.two_nodes", *COMMAND, "train", "-n", "metaworld_ppo_mlp"),
        *(*SMALL, "cluster.num_nodes=2", *PLACED, *SCORED),
        f"runner.logger.log_path={directory}",
    )
    output, _ = process.communicate(timeout=400)
    run = Run(process.returncode, output, directory)
    assert run.status == 0, run.output
    assert run.summary["trajectories"] == {"produced": 24, "trained": 24, "in_flight": 0, "refused": {}}
    spans = read_spans(directory / "trace")
    answered = Counter(
        (span["process"], shard) for span in spans if span["kind"] == "forward" for shard in span["shards"]
    )
    # Three rollouts of four decisions and a last value. Until its own rank is up, a shard asks the other one.
    assert sum(answered.values()) == 4 * 3 * 5
    for shard in range(4):
        node = shard // 2
        assert answered[f"inference rank {node}", shard] > answered[f"inference rank {1 - node}", shard]
    # Each learner rank begins a batch with the first of its two pieces of two trajectories.
    assert sum(span["size"] for span in spans if span["kind"] == "score") == 3 * 2 * 2 * (4 + 1)
    assert all(abs(line["train/actor/grad_norm"]) > 0 for line in run.metrics)
