"""The levels on the RLinf host: all settings with PPO, and with GRPO those that concern its groups."""

import itertools

import pytest

from rlinf_async.observe.reading.spans import read_spans
from tests.runs.conftest import Run, small

pytestmark = pytest.mark.ray

SETTINGS = [setting for setting in itertools.product((False, True), repeat=3) if any(setting)]
GROUPED = [(True, False, False), (False, False, True), (True, False, True), (True, True, True)]
CORRECTIONS = {
    ("metaworld_ppo_mlp", False, True): ("train.correction=tis", "advanced.max_weight=1.5"),
    ("metaworld_ppo_mlp", True, False): ("advanced.proximal=loglinear",),
    ("metaworld_grpo_mlp", False, True): ("train.correction=tis", "advanced.proximal=loglinear"),
}
"""Config, level 2, level 3: what level 1 corrects with; elsewhere the default."""
GIVES_WAY = (
    "async.mode=full",
    *(f"{part}.enable_offload=true" for part in ("actor", "rollout", "env.train", "env.eval")),
    "rollout.enable_cuda_graph=true",
)
"""What RLinf's own configs switch on, and the levels have no use for."""
ONE_SHARD = ("async.mode=rollout", "async.rollout.shards=1")
"""Level 2 alone, with nothing left to chance: two such runs are equal."""
OFFLOADED = (*ONE_SHARD, "actor.enable_offload=true", "rollout.enable_offload=true", "runner.save_interval=2")
GRPO = ("algorithm.group_size=4", "env.eval.group_size=1", "env.train.reward_kind=dense")
"""Nobody succeeds in four decisions: a sparse reward would leave a group without advantages."""


def overrides(config: str, train: bool, rollout: bool, streamer: bool) -> list[str]:
    flags = {"train": train, "rollout": rollout, "streamer": streamer}
    levels = [f"async.{name}.enabled={str(on).lower()}" for name, on in flags.items()]
    corrections = CORRECTIONS.get((config, rollout, streamer), ()) if train else ()
    levels += [f"async.{change}" for change in corrections]
    levels += ["async.advanced.normalization=running"]  # or PPO, with two epochs, would not stream
    return [*levels, *(GRPO if "grpo" in config else ())]


CASES = [
    *(("metaworld_ppo_mlp", *setting) for setting in SETTINGS),
    *(("metaworld_grpo_mlp", *setting) for setting in GROUPED),
]


def is_long(case: tuple[str, bool, bool, bool]) -> bool:
    """Whether each level of it is in a shorter selection as well: level 3 alone, and all of them, with PPO.

    Level 1 alone: in tests/runs/test_deterministic.py; level 2 alone: ONE_SHARD; all of them with GRPO: in
    tests/runs/test_ranks.py.
    """
    config, *setting = case
    return "grpo" in config or tuple(setting) not in [(False, False, True), (True, True, True)]


def marks(case: tuple[str, bool, bool, bool]) -> list[pytest.MarkDecorator]:
    asked_for = pytest.mark.shared_run(small(case[0], *overrides(*case)))
    return [asked_for, pytest.mark.nightly] if is_long(case) else [asked_for]


@pytest.mark.parametrize(
    ("config", "train", "rollout"),
    [pytest.param(*case[:3], marks=marks(case), id="-".join(map(str, case))) for case in CASES],
)
def test_every_setting_trains_each_trajectory_once_and_within_the_bound(
    ended: list[Run], config: str, train: bool, rollout: bool
) -> None:
    (run,) = ended
    trajectories = run.summary["trajectories"]
    assert trajectories == {"produced": 24, "trained": 24, "in_flight": 0, "refused": {}}
    assert run.summary["env_steps"] == 24 * 4
    assert run.summary["staleness"]["max"] <= (1 if train else 0)
    # Level 2 has two shards of four; without it one shard of all eight environments asks for all.
    sizes = run.summary["batch_size"]
    assert sizes["min"] == (4 if rollout else 8)
    assert sizes["max"] <= 8
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    assert ("train/actor/behaviour_weight" in run.metrics[-1]) == train
    assert any(name.startswith("train/mismatch/lag_") for name in run.metrics[-1]) == train
    assert all(abs(line["train/actor/grad_norm"]) > 0 for line in run.metrics)


@pytest.mark.shared_run(small("metaworld_ppo_mlp", *ONE_SHARD), small("metaworld_ppo_mlp", *OFFLOADED))
def test_learner_and_inference_that_are_offloaded_in_turn_train_as_if_they_were_not(ended: list[Run]) -> None:
    losses = [
        [{k: v for k, v in line.items() if k.startswith(("train/", "rollout/"))} for line in run.metrics]
        for run in ended
    ]
    assert len(losses[0][0]) > 10
    assert losses[0] == losses[1]
    left = [
        {span["process"] for span in read_spans(run.directory / "trace") if span["kind"] == "offload"}
        for run in ended
    ]
    assert left == [set(), {"learner rank 0", "inference rank 0"}]


@pytest.mark.shared_run(small("metaworld_ppo_mlp", *GIVES_WAY))
def test_a_config_that_offloads_and_captures_graphs_runs_and_says_what_gives_way(ended: list[Run]) -> None:
    (run,) = ended
    assert run.summary["trajectories"] == {"produced": 24, "trained": 24, "in_flight": 0, "refused": {}}
    for part in ("actor", "rollout", "env.train", "env.eval"):
        assert run.output.count(f"{part}.enable_offload=false: ") == 1
    assert "enable_offload: true" not in (run.directory / "config.yaml").read_text()


@pytest.mark.shared_run(
    small("metaworld_ppo_mlp", *GIVES_WAY), small("metaworld_ppo_mlp", "async.mode=off"), last=True
)
def test_all_levels_off_runs_rlinfs_own_runner_also_after_others(ended: list[Run]) -> None:
    _, run = ended
    assert "Metric Table" in run.output
    # Nothing of ours, but for the last line, which names the next command.
    assert "rlinf-async" not in run.output.replace(f"look closer: rlinf-async report {run.directory}", "")
    assert [line["step"] for line in run.metrics] == [1, 2, 3]
    assert run.summary["trajectories"] == {"produced": 24, "trained": 24, "in_flight": 0, "refused": {}}
    # Nobody but the driver has recorded anything.
    assert {span["process"] for span in read_spans(run.directory / "trace")} == {"driver"}


SCORED = ("async.mode=full", "algorithm.update_epoch=1")


@pytest.mark.nightly  # two learner ranks are given scores as well
@pytest.mark.shared_run(small("metaworld_ppo_mlp", *SCORED))
def test_inference_scores_what_the_learner_has_not_come_to(ended: list[Run]) -> None:
    (run,) = ended
    assert run.summary["trajectories"] == {"produced": 24, "trained": 24, "in_flight": 0, "refused": {}}
    spans = read_spans(run.directory / "trace")
    scored = [span for span in spans if span["kind"] == "score"]
    assert {span["process"] for span in scored} <= {"inference rank 0"}
    # With each of eight trajectories goes its last observation; what was taken back may be scored, too.
    shares = [line["train/scored_by_inference"] for line in run.metrics]
    assert shares[0] == 0.0
    assert sum(span["size"] for span in scored) >= sum(shares) * 8 * (4 + 1)
    assert run.summary["staleness"]["max"] <= 1
