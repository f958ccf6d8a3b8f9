"""Runs under veRL from command to prompt, in every mode."""

import json
import signal

import pytest

pytest.importorskip("verl", reason="veRL is not installed")
pytest.importorskip("metaworld", reason="Meta-World is not installed")

from tests.runs_verl.conftest import ACTOR, GROUPS, VerlRunner, check_books

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


def test_none_and_all_of_the_levels_train_what_was_collected_once_also_pictures(runs: VerlRunner) -> None:
    off, resetting, pictures = runs.several(
        [
            ("verl_metaworld_ppo_mlp", ("async.mode=off",)),
            ("verl_metaworld_ppo_mlp", RESETTING),
            ("verl_metaworld_ppo_vla", PICTURES),
        ]
    )
    check_books(off, staleness=0)
    check_books(resetting, staleness=1)
    check_books(pictures, steps=2, trained=8)


@pytest.mark.nightly  # all of them together are run as well
def test_each_level_alone_trains_what_was_collected_once(runs: VerlRunner) -> None:
    made = runs.several([("verl_metaworld_ppo_mlp", overrides) for overrides in LEVELS.values()])
    for level, run in zip(LEVELS, made, strict=True):
        check_books(run, staleness=int(level == "train"))


def test_verls_own_command_trains_in_full(runs: VerlRunner) -> None:
    run = runs.by_verls_command("verl_metaworld_ppo_mlp")
    check_books(run)
    assert (run.directory / "tensorboard").is_dir()


def test_a_run_of_two_ranks_trains_adapters_and_goes_on_with_them(runs: VerlRunner) -> None:
    adapters = (
        "actor_rollout_ref.model.lora_rank=4",
        "trainer.n_gpus_per_node=2",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
        "async.rollout.shards=1",
        "trainer.save_freq=1",
    )
    first = runs.train("verl_metaworld_ppo_mlp", *adapters, "trainer.total_training_steps=2")
    check_books(first, steps=2)
    second = runs.train("verl_metaworld_ppo_mlp", *adapters)
    assert second.status == 0, second.output
    assert second.summary["trajectories"]["trained"] == 24
    assert second.metrics[-1]["step"] == 3


def test_several_ranks_of_everything_go_on_from_a_checkpoint(runs: VerlRunner) -> None:
    ranks = (
        "trainer.n_gpus_per_node=2",
        "vla.inference.ranks=2",
        "env.workers=2",
        f"{ACTOR}.ppo_micro_batch_size_per_gpu=4",
        "async.rollout.shards=1",
        "trainer.save_freq=2",
        "trainer.test_freq=2",
        "trainer.val_before_train=true",
    )
    first = runs.train("verl_metaworld_grpo_mlp", *GROUPS, *ranks, "trainer.total_training_steps=2")
    check_books(first, steps=2)
    assert "eval/success_once" in first.metrics[-1]
    saved = first.directory / "checkpoints" / "global_step_2"
    assert (first.directory / "checkpoints" / "latest_checkpointed_iteration.txt").read_text() == "2"
    assert len(list((saved / "actor").glob("model_world_size_2_rank_*.pt"))) == 2
    state = json.loads((saved / "async_state.json").read_text())
    assert (state["version"], state["trained"]) == (2, 16)

    second = runs.train("verl_metaworld_grpo_mlp", *GROUPS, *ranks, "trainer.total_training_steps=4")
    check_books(second, steps=4, trained=16 + 16)
    assert [line["step"] for line in second.metrics] == [1, 2, 3, 4]
    # Nothing older than the checkpoint exists.
    assert second.metrics[2]["async/staleness/max"] == 0


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
