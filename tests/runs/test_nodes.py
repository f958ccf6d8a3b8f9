"""Two Ray nodes on one machine, with a rank of every worker on each."""

from collections import Counter

import pytest

from rlinf_async.observe.spans import read_spans
from tests.runs.conftest import COMMAND, SMALL, Run, Runner

pytestmark = pytest.mark.ray

SETTINGS = ("async.rollout.shards=1",)
STREAMING = ("actor.micro_batch_size=4", "async.advanced.normalization=running")
PLACED = tuple(f"cluster.component_placement.{name}.placement=0-1" for name in ("env", "rollout", "actor"))


def test_on_two_nodes_a_shard_is_answered_by_the_inference_rank_beside_it(runs: Runner) -> None:
    directory = runs.directory / "run"
    process = runs.start_module(
        *("tests.runs.two_nodes", *COMMAND, "train", "-n", "metaworld_ppo_mlp"),
        *(*SMALL, "cluster.num_nodes=2", *PLACED, *SETTINGS, *STREAMING),
        f"runner.logger.log_path={directory}",
    )
    output, _ = process.communicate(timeout=400)
    run = Run(process.returncode, output, directory)
    assert run.status == 0, run.output
    assert run.summary["trajectories"] == {"produced": 24, "trained": 24, "in_flight": 0, "refused": {}}
    answered = Counter(
        (span["process"], shard)
        for span in read_spans(directory / "trace")
        if span["kind"] == "forward"
        for shard in span["shards"]
    )
    # Three rollouts of four decisions and a last value. Until its own rank is up, a shard asks the other one.
    assert sum(answered.values()) == 2 * 3 * 5
    for shard in range(2):
        assert answered[f"inference rank {shard}", shard] > answered[f"inference rank {1 - shard}", shard]
