"""The off-policy prototype: what it records, what it answers, and what the benchmark computes of it."""

import asyncio
import json
from collections import defaultdict
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("rlinf")

from omegaconf import OmegaConf
from rlinf.data.embodied_io_struct import RolloutResult
from rlinf.scheduler import AcceleratorType
from rlinf.workers.env.async_env_worker import AsyncEnvWorker

from benchmarks.off_policy import __main__ as benchmark
from benchmarks.off_policy import ideal, prototype, turns
from benchmarks.off_policy.events import counted, read_events, windows
from benchmarks.off_policy.size import code_lines
from rlinf_async.lab.emulated.service import EnvService

STEPS, CHUNK, ENVS = 3, 2, 2


class CountingEnv:
    """Its state counts the decisions, and its rewards are the actions."""

    num_envs = ENVS
    is_start = False

    def reset(self):
        self.count = 0
        return self._show(), {}

    def chunk_step(self, actions):
        self.count += 1
        none = torch.zeros(ENVS, CHUNK, dtype=torch.bool)
        ends = none.clone()
        ends[:, -1] = self.count == STEPS
        return [self._show()], torch.as_tensor(actions)[..., 0], none, ends, [{}]

    def update_reset_state_ids(self):
        pass

    def _show(self):
        return {"states": torch.full((ENVS, 1), float(self.count)), "task_descriptions": ["wait"] * ENVS}


def answer(observation):
    """The answer to an observation, which anybody can tell."""
    noise = observation["states"] * 10 + torch.arange(ENVS)[:, None]
    actions = noise[:, None].expand(ENVS, CHUNK, 1)
    return RolloutResult(actions=actions, forward_inputs={"action": noise}, versions=noise)


class Policy:
    """Both of a shard's channels: it answers what is asked."""

    def __init__(self):
        self.answers = asyncio.Queue()

    def put(self, request, key, async_op):
        assert key == prototype.REQUESTS
        assert request.observation["task_descriptions"] == ["wait"] * ENVS
        self.answers.put_nowait(answer(request.observation))

    def get(self, key, async_op):
        return SimpleNamespace(async_wait=self.answers.get)


def env_worker():
    """An env worker of RLinf that knows no Ray."""
    worker = object.__new__(AsyncEnvWorker)
    settings = {
        "env": {
            "train": {
                "env_type": "libero",
                "auto_reset": False,
                "ignore_terminations": False,
                "max_episode_steps": STEPS,
                "video_cfg": {"save_video": False},
            }
        },
        "rollout": {"group_name": "rollout"},
        "algorithm": {},
    }
    model = {"model_type": "mlp_policy", "num_action_chunks": CHUNK, "action_dim": 1}
    worker.__dict__ |= {
        "cfg": OmegaConf.create(settings),
        "model_cfg": OmegaConf.create(model),
        "env_list": [CountingEnv()],
        "stage_num": 1,
        "_rank": 0,
        "_timer_metrics": {},
        "_accelerator_type": AcceleratorType.NO_ACCEL,
        "n_train_chunk_steps": STEPS,
        "train_num_envs_per_stage": ENVS,
        "train_batch_size": ENVS,
        "rollout_epoch": 1,
        "collect_transitions": True,
        "collect_prev_infos": False,
        "use_external_reward_model": False,
        "use_training_pipeline": False,
        "env_decoupled_mode": False,
        "reward_mode": "per_step",
        "history_reward_assign": False,
        "_prefetched_train_bootstrap": None,
    }
    return worker


def rlinfs_rollout():
    """What RLinf's own loop records of the same environments and answers."""
    worker, asked, kept = env_worker(), [], []
    worker.send_to = lambda data, **_: asked.append(data["obs"])
    worker.recv_from = lambda **_: answer(asked.pop())

    async def keep(rollout, channel):
        kept.append(rollout)

    worker.send_rollout_trajectories = keep
    asyncio.run(worker._run_interact_once(None, None, None, object(), cooperative_yield=False))
    return kept[0].to_trajectory()


def test_a_shard_records_what_rlinfs_own_loop_records():
    policy_calls = []

    async def roll_out():
        policy = Policy()
        shard = prototype.Shard(env_worker(), 0, asks=policy, answers=policy)
        rollout, _ = await shard.roll_out()
        policy_calls.append(policy.answers.qsize())
        return rollout.to_trajectory()

    own = asyncio.run(roll_out())
    stock = rlinfs_rollout()
    assert policy_calls == [0]
    for name in ("actions", "rewards", "dones", "terminations", "truncations", "versions"):
        assert torch.equal(getattr(own, name), getattr(stock, name)), name
    for name in ("curr_obs", "next_obs"):
        assert torch.equal(getattr(own, name)["states"], getattr(stock, name)["states"]), name


def test_a_batch_holds_all_that_wait_and_each_shard_gets_its_own_answer():
    put = defaultdict(list)

    class Worker(prototype.DynamicRolloutWorker):
        def predict(self, observation, mode="train"):
            sizes.append(len(observation["states"]))
            return observation["states"], {
                "forward_inputs": {"action": observation["states"]},
                "prev_logprobs": observation["states"],
            }

    class Requests:
        def get(self, key, async_op):
            async def wait():
                if not waiting:
                    await asyncio.Event().wait()
                return waiting.pop(0)

            return SimpleNamespace(async_wait=wait)

    class Answers:
        def put(self, item, key, async_op):
            put[key].append(item.actions)
            if len(put) == 3:
                answered.set()

    async def serve():
        worker = object.__new__(Worker)
        worker.__dict__ |= {"total_num_train_envs": 6, "version": 4}
        task = asyncio.create_task(worker._generate(Requests(), Answers(), None))
        await answered.wait()
        task.cancel()

    answered, sizes = asyncio.Event(), []
    waiting = [
        prototype.Request(shard, 2, {"states": torch.full((2, 1), float(shard))}) for shard in range(3)
    ]
    asyncio.run(serve())
    assert sizes == [6]
    for shard in range(3):
        (found,) = put[prototype.answers_of(shard)]
        assert torch.equal(found, torch.full((2, 1), float(shard)))


def test_a_turn_that_is_over_ends_its_readers_and_no_later_turn():
    queues = defaultdict(list)

    class Channel:
        def put(self, item, weight=0, key=None, async_op=False):
            queues[key].append(item)

        def get(self, key=None, async_op=False):
            return SimpleNamespace(wait=lambda: queues[key].pop(0))

    first, second = turns.TurnChannel(Channel(), 0), turns.TurnChannel(Channel(), 1)
    read = first.get("a", async_op=True)
    first.close()
    with pytest.raises(turns.TurnOver):
        read.wait()
    with pytest.raises(turns.TurnOver):
        first.get("a")
    second.put("item", key="a")
    assert second.get("a") == "item"


def test_a_row_counts_what_lies_within_its_window(tmp_path):
    (tmp_path / "1.jsonl").write_text(
        "\n".join(
            json.dumps(event)
            for event in (
                [9.0, "decisions", 4, 1.0],
                [10.0, "begin", 0, 0.0],
                [12.0, "decisions", 4, 0.5],
                [14.0, "decisions", 2, 1.5],
                [20.0, "end", 0, 0.0],
                [21.0, "updates", 1, 0.0],
            )
        )
    )
    (tmp_path / "2.jsonl").write_text(json.dumps([15.0, "updates", 12, 0.0]))
    events = read_events(tmp_path)
    assert windows(events) == [(10.0, 20.0)]
    counts, seconds = counted(events, (10.0, 20.0))
    assert counts["decisions"] == 6
    assert seconds == {"decisions": 1.0}
    row = benchmark.row(events, (10.0, 20.0))
    assert (row["transitions_a_second"], row["updates_a_second"], row["updates_a_transition"]) == (
        0.6,
        1.2,
        2.0,
    )


def test_ratios_are_taken_within_a_turn():
    rows = [
        {
            "loop": loop,
            "frames": "all",
            "turn": turn,
            "transitions_a_second": rate,
            "updates_a_second": 1.0,
            "updates_a_transition": 1.0,
            "cpu_s": 1.0,
            "transitions": 1,
        }
        for loop, rates in (("stock", (1.0, 2.0, 4.0)), ("sharded", (2.0, 3.0, 4.0)))
        for turn, rate in enumerate(rates)
    ]
    shown = benchmark.table("emulated", rows)
    assert "| `sharded`, all over `stock`, all | 1.50 (1.00 to 2.00) |" in shown


def test_the_prototype_is_small_and_lines_are_counted_without_comments(tmp_path):
    file = tmp_path / "file.py"
    file.write_text(
        '"""About."""\n\n# Why.\ndef f():\n    """What."""\n    return g(\n        1\n    )  # so\n'
    )
    assert code_lines(file) == 4
    assert code_lines(Path(prototype.__file__)) <= benchmark.MAX_PROTOTYPE_LINES


def test_loops_without_a_machine_take_the_sums_of_their_times():
    times = ideal.Times(env=EnvService(decision_s=0.3), pass_s=0.1, sample_s=0.01, decisions=4)
    # RLinf's loop makes one more pass at the end of a rollout, with everybody in each pass.
    assert ideal.coupled(times, 2, 100.0) == pytest.approx(2 * 4 / (4 * (0.3 + 0.12) + 0.12))
    assert ideal.sharded(times, 1, 100.0) == pytest.approx(1 / (0.3 + 0.11), rel=0.01)
    # Even environments: all wait at once, and share a pass.
    assert ideal.sharded(times, 2, 100.0) == pytest.approx(2 / (0.3 + 0.12), rel=0.01)
