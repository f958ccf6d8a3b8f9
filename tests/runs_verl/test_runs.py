"""Runs under veRL from command to prompt, in every mode."""

import json
import signal
from collections.abc import Iterator

import pytest

pytest.importorskip("verl", reason="veRL is not installed")
pytest.importorskip("metaworld", reason="Meta-World is not installed")

from tests.runs.conftest import Run, deadline_s
from tests.runs_verl.conftest import ACTOR, GROUPS, Case, VerlRunner, check_books, small

pytestmark = pytest.mark.ray

LEVELS = {
    "train": ("async.mode=train",),
    "rollout": ("async.mode=rollout",),
    "streamer": ("async.mode=streamer", f"{ACTOR}.ppo_epochs=1"),
}
RESETTING = ("async.mode=full", "env.train.auto_reset=true")
PICTURES = (
    "env.train.total_num_envs=4",
    "env.eval.total_num_envs=4",
    "env.train.max_episode_steps=10",
    "vla.model.image_size=16",
    "data.train_batch_size=4",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    "trainer.total_training_steps=2",
)
ADAPTERS = (
    "actor_rollout_ref.model.lora_rank=4",
    "trainer.n_gpus_per_node=2",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    "async.rollout.shards=1",
    "trainer.save_freq=1",
)
RANKS = (
    *GROUPS,
    "trainer.n_gpus_per_node=2",
    "vla.inference.ranks=2",
    "env.workers=2",
    f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
    "async.rollout.shards=1",
    "trainer.save_freq=2",
    "trainer.test_freq=2",
    "trainer.val_before_train=true",
)
QUICK = (
    *("async.mode=full", "env.train.total_num_envs=16", "env.train.max_episode_steps=160"),
    *("env.train.service.decision_s=0.001", "env.train.service.cv=0.0", "env.train.service.reset_s=0.001"),
    *("vla.model.service.act_fixed_s=0.0005", "vla.model.service.act_sample_s=0.0"),
    *("vla.model.service.train_sample_s=0.0001", "vla.model.service.weights_mb=1"),
    *(
        "data.train_batch_size=16",
        f"{ACTOR}.ppo_mini_batch_size=8",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=16",
    ),
    *(f"{ACTOR}.ppo_epochs=1", "trainer.save_freq=4"),
)
GOES_ON = "trainer.resume_mode=auto"
CASES = {
    "off": small("verl_metaworld_ppo_mlp", "async.mode=off"),
    "resetting": small("verl_metaworld_ppo_mlp", *RESETTING),
    "pictures": small("verl_metaworld_ppo_vla", *PICTURES),
    "adapters": small("verl_metaworld_ppo_mlp", *ADAPTERS, "trainer.total_training_steps=2"),
    "adapters, going on": small("verl_metaworld_ppo_mlp", *ADAPTERS, goes_on=3),
    "ranks": small("verl_metaworld_grpo_mlp", *RANKS, "trainer.total_training_steps=2"),
    "ranks, going on": small("verl_metaworld_grpo_mlp", *RANKS, "trainer.total_training_steps=4", goes_on=5),
    "quick": Case("bench/verl_emulated", (*QUICK, "trainer.total_training_steps=8")),
    "quick, going on": Case("bench/verl_emulated", (*QUICK, GOES_ON, "trainer.total_training_steps=12"), 7),
}
"""Runs that share a process, by name; the first of their tests waits for all of them."""
LONGEST_S = deadline_s(len(CASES)) + 60


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Run]]:
    runner = VerlRunner(tmp_path_factory.mktemp("shared"))
    try:
        yield dict(zip(CASES, runner.several([*CASES.values()]), strict=True))
    finally:
        runner.close()


@pytest.mark.timeout(LONGEST_S)
def test_none_and_all_of_the_levels_train_what_was_collected_once_also_pictures(made: dict[str, Run]) -> None:
    check_books(made["off"], staleness=0)
    check_books(made["resetting"], staleness=1)
    check_books(made["pictures"], steps=2, trained=8)


@pytest.mark.timeout(LONGEST_S)
def test_a_run_of_two_ranks_trains_adapters_and_goes_on_with_them(made: dict[str, Run]) -> None:
    check_books(made["adapters"], steps=2)
    second = made["adapters, going on"]
    assert second.status == 0, second.output
    assert second.summary["trajectories"]["trained"] == 24
    assert second.metrics[-1]["step"] == 3


@pytest.mark.timeout(LONGEST_S)
def test_several_ranks_of_everything_go_on_from_a_checkpoint(made: dict[str, Run]) -> None:
    first, second = made["ranks"], made["ranks, going on"]
    check_books(first, steps=2)
    assert "eval/success_once" in first.metrics[-1]
    saved = first.directory / "checkpoints" / "global_step_2"
    assert (first.directory / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "2"
    assert len(list((saved / "actor").glob("model_world_size_2_rank_*.pt"))) == 2
    state = json.loads((saved / "async_state.json").read_text())
    assert (state["version"], state["trained"]) == (2, 16)

    check_books(second, steps=4, trained=16 + 16)
    assert [line["step"] for line in second.metrics] == [1, 2, 3, 4]
    # Nothing older than the checkpoint exists.
    assert second.metrics[2]["async/staleness/max"] == 0


@pytest.mark.timeout(LONGEST_S)
def test_a_run_with_fast_decisions_joins_its_shards_and_keeps_them_when_it_is_resumed(
    made: dict[str, Run],
) -> None:
    first, resumed = made["quick"], made["quick, going on"]
    assert first.status == 0, first.output
    facts = json.loads((first.directory / "run.json").read_text())
    shards = facts["plan"]["shards_per_worker"]
    fits = facts["shard_fits"]
    assert fits[0]["before"] == 16
    assert shards == fits[-1]["shards"] < 16
    assert first.summary["trajectories"] == {"produced": 128, "trained": 128, "in_flight": 0, "refused": {}}
    assert resumed.status == 0, resumed.output
    facts = json.loads((resumed.directory / "run.json").read_text())
    assert facts["plan"]["shards_per_worker"] == shards
    assert "shard_fits" not in facts
    assert "are lost" not in resumed.output


@pytest.mark.nightly  # all of them together are run as well
def test_each_level_alone_trains_what_was_collected_once(runs: VerlRunner) -> None:
    ended = runs.several([small("verl_metaworld_ppo_mlp", *overrides) for overrides in LEVELS.values()])
    for level, run in zip(LEVELS, ended, strict=True):
        check_books(run, staleness=int(level == "train"))


def test_verls_own_command_trains_in_full(runs: VerlRunner) -> None:
    run = runs.by_verls_command("verl_metaworld_ppo_mlp")
    check_books(run)
    assert (run.directory / "tensorboard").is_dir()


@pytest.mark.nightly  # of RLinf's run the first error is looked at as well: tests/runs/test_failures.py
def test_the_first_error_ends_the_run_with_status_one(runs: VerlRunner) -> None:
    runs.declare("rlinf_async.envs", "broken", "tests.runs_verl.broken:BrokenEnv")
    process = runs.begin(
        "verl_metaworld_ppo_mlp",
        "env.train.env_class=broken",
        "async.survive.env_restarts=0",
        "trainer.total_training_steps=50",
    )
    output, _ = process.communicate(timeout=300)
    assert process.returncode == 1, output
    assert "FloatingPointError" in output
    assert "the simulator has exploded" in output
    assert "FloatingPointError" in output.splitlines()[-1]
    assert "Traceback" not in output
    assert runs.survivors(process) == []


@pytest.mark.nightly  # RLinf's run is interrupted as well: tests/runs/test_failures.py
def test_an_interrupt_ends_in_order_and_leaves_no_process(runs: VerlRunner) -> None:
    process = runs.begin("verl_metaworld_ppo_mlp", "trainer.total_training_steps=100000")
    assert process.stdout is not None
    while "2/100000" not in (line := process.stdout.readline()):
        assert line, "the run ended before it was interrupted"
    process.send_signal(signal.SIGINT)
    output, _ = process.communicate(timeout=60)
    assert process.returncode == 130, output
    assert "closing the gate" in output
    assert runs.survivors(process) == []


def test_bad_input_is_one_clear_error_before_ray_starts(runs: VerlRunner) -> None:
    process = runs.begin("verl_metaworld_ppo_mlp", f"{ACTOR}.strategy=fsdp", "trainer.critic_warmup=2")
    output, _ = process.communicate(timeout=200)
    assert process.returncode == 2
    assert "cannot run for 2 reasons" in output
    assert f"{ACTOR}.strategy=fsdp2 trainer.critic_warmup=0" in output
    assert "Traceback" not in output
