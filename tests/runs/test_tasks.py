"""`balance: tasks` on RLinf's workers: whoever collects them, batches hold the tasks that RLinf's would."""

from collections import Counter, defaultdict
from dataclasses import replace

import pytest

from rlinf_async.lab.bench import cell
from rlinf_async.lab.bench.cell import BenchCell
from rlinf_async.observe.reading.spans import read_spans
from tests.runs.conftest import Run, small
from tests.runs.quick_bench import QUICK

pytestmark = pytest.mark.ray

TAKEN = ("runner.max_epochs=4",)
GROUPS = (
    "algorithm.group_size=4",
    "env.eval.group_size=1",
    # In four decisions nobody succeeds: groups with sparse rewards have no gradient.
    "env.train.reward_kind=dense",
)


@pytest.mark.nightly  # such a run is below; what is measured of it: tests/lab/bench
def test_a_run_whose_simulators_take_on_tasks_is_measured(monkeypatch):
    unequal = replace(QUICK, env=replace(QUICK.env, fastest=0.2, slowest=2.0))
    monkeypatch.setitem(cell.SCENARIOS_BY_NAME, "unequal", unequal)
    result = BenchCell(scenario="unequal", mode="full", repetition=0, warm_up=3, steps=4).run()
    assert "error" not in result, result["error"]
    assert result["retrained"] == 0
    assert result["staleness_max"] <= 1
    assert result["overlap_efficiency"] is None
    assert result["own_efficiency"] > 0
    assert result["own_bounds_s"]["env"] < result["bounds_s"]["env"]


PPO, GRPO = small("metaworld_ppo_mlp", *TAKEN), small("metaworld_grpo_mlp", *TAKEN, *GROUPS)


@pytest.mark.parametrize(
    "config",
    [
        pytest.param("PPO", marks=pytest.mark.shared_run(PPO)),
        pytest.param("GRPO", marks=[pytest.mark.shared_run(GRPO), pytest.mark.nightly]),
    ],
)
def test_every_place_of_every_batch_is_collected_once_on_real_simulators(ended: list[Run], config: str):
    (run,) = ended
    rollouts = [span for span in read_spans(run.directory / "trace") if span["kind"] == "rollout"]
    places = defaultdict(Counter)
    for span in rollouts:
        places[span["batch"]][span["epoch"], span["place"]] += 1
        assert span["batch"] - span["oldest"] <= 1
    shards = len(places[0])
    assert shards > 1
    assert set(places) == {0, 1, 2, 3}
    assert all(found == Counter(dict.fromkeys(places[0], 1)) for found in places.values())
    assert "+ in flight 0 + 0 refused" in run.output
