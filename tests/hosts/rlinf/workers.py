"""RLinf's env and rollout workers and ours, without Ray: real classes, small environments, a small policy.

Environments and policy calculate with fractions that float32 holds exactly, sample by sample: what comes
out does not depend on who shares a forward pass, and may be compared bit by bit.
"""

import asyncio
import copy
from contextlib import contextmanager
from dataclasses import replace
from unittest import mock

import numpy as np
import torch
from rlinf.data.embodied_io_struct import RolloutResult
from rlinf.workers.env import env_worker as stock_env
from rlinf.workers.rollout.hf import huggingface_worker as stock_rollout

from rlinf_async.compose import compose_config
from rlinf_async.hosts.rlinf.config import resolve
from rlinf_async.hosts.rlinf.env_worker import ShardedEnvWorker
from rlinf_async.hosts.rlinf.rollout_worker import BatchingRolloutWorker
from rlinf_async.loops.barrier import BarrierQueues
from rlinf_async.loops.env import run_shard
from rlinf_async.loops.inference import serve_policy
from rlinf_async.loops.queues import SharedQueues
from rlinf_async.loops.request_broker import RequestBroker
from rlinf_async.loops.requests import Pending
from rlinf_async.loops.trajectory_broker import TrajectoryBroker
from rlinf_async.wire.payloads import seal
from tests.hosts.rlinf.learners import without_ray
from tests.making import request

CHUNK, ACTION, HORIZON, SHARDS, RANKS = 2, 3, 5, 2, 4
SIZES = (
    "~warm_start",
    "async.mode=full",
    "env.train.total_num_envs=12",
    f"env.train.max_episode_steps={CHUNK * HORIZON}",
    f"async.rollout.shards={SHARDS}",
    "actor.micro_batch_size=5",
    "actor.global_batch_size=60",
    "actor.model.obs_dim=4",
    f"actor.model.action_dim={ACTION}",
    f"actor.model.num_action_chunks={CHUNK}",
)
"""Two shards of six environments, cut into two pieces each; five decisions of two steps."""


class Walks:
    """Environments behind RLinf's interface. Rewards, ends and what is seen next depend on the actions."""

    def __init__(self, cfg, num_envs, seed_offset, total_num_processes, worker_info):
        del total_num_processes, worker_info  # part of RLinf's signature
        self.cfg, self.is_start, self.rollouts = cfg, False, 0
        self.name = torch.arange(num_envs) + seed_offset * num_envs
        self.episode, self.age, self.place, self.gain = (torch.zeros(num_envs) for _ in range(4))

    def reset(self):
        self._begin(torch.ones_like(self.name, dtype=torch.bool))
        return self._seen(), {}

    def take_on(self, seed_offset, rollout):
        """Become the walkers of another place, as they stand when `rollout` begins."""
        self.name = torch.arange(len(self.name)) + seed_offset * len(self.name)
        self.episode[:] = rollout

    def update_reset_state_ids(self):
        self.rollouts += 1

    def chunk_step(self, actions):
        actions = torch.as_tensor(np.asarray(actions))
        self.age += 1
        rewards = self.place[:, None] + actions.cumsum(dim=1).sum(dim=2) + self.name[:, None] / 4
        self.place = (self.place + actions.sum(dim=(1, 2))) % 16
        self.gain = self.gain + rewards.sum(dim=1)
        terminations, truncations = (torch.zeros(len(actions), CHUNK, dtype=torch.bool) for _ in range(2))
        over = self.age >= (2 + self.name % 3 if self.cfg.auto_reset else HORIZON)
        terminations[:, -1] = ((self.place * 8 + self.name) % 5 < 1) & ~self._ignores
        truncations[:, -1] = over & ~terminations[:, -1]
        info = {"episode": {"return": self.gain.clone(), "episode_len": self.age * CHUNK}, **self._hand()}
        done = terminations[:, -1] | truncations[:, -1]
        if self.cfg.auto_reset and done.any():
            info |= {"final_observation": self._seen(), "final_info": dict(info)}
            self._begin(done)
        return [self._seen()], rewards, terminations, truncations, [info]

    @property
    def _ignores(self):
        return torch.tensor(bool(self.cfg.ignore_terminations))

    def _begin(self, which):
        self.episode[which] += 1
        for value in (self.age, self.place, self.gain):
            value[which] = 0

    def _seen(self):
        states = torch.stack([self.name, self.episode, self.age, self.place], dim=1)
        picture = (states.sum(dim=1).long() % 256).to(torch.uint8)[:, None, None].expand(-1, 2, 2)
        return {"states": states, "main_images": picture.clone(), "task_descriptions": ["walk"] * len(states)}

    def _hand(self):
        """Somebody takes over every other decision, in the first step of the chunk."""
        if not self.cfg.get("taken_over", False):
            return {}
        flags = torch.zeros(len(self.name), CHUNK, dtype=torch.bool)
        flags[:, 0] = self.age % 2 == 0
        return {
            "intervene_action": torch.full((len(self.name), CHUNK * ACTION), 0.5),
            "intervene_flag": flags,
        }


class Reckoner(torch.nn.Module):
    """A policy whose action, log-probability and value are plain functions of the state.

    Its one weight is the number of its version, which it writes beside every action: the truth that
    labels are compared with.
    """

    value_head = True

    def __init__(self):
        super().__init__()
        self.version = torch.nn.Parameter(torch.zeros(1))
        self.asked = []
        """Samples in each forward pass."""

    def predict_action_batch(self, env_obs, mode, **_):
        name, episode, age, place = env_obs["states"].unbind(dim=1)
        self.asked.append(len(name))
        aim = (name * 3 + episode * 5 + age * 7 + place * 8) % 16 / 8 - 1
        if mode == "eval":
            aim = torch.full_like(aim, 9.0)
        steps = torch.arange(CHUNK * ACTION) / 8
        inputs = {
            "states": env_obs["states"],
            "action": aim[:, None] + steps,
            "made_by": self.version.detach().expand(len(name), 1).clone(),
        }
        if "main_images" in env_obs:
            inputs["image"] = env_obs["main_images"].clone()
        result = {
            "prev_logprobs": aim[:, None] * (steps + 1),
            "prev_values": (name + episode * 8 + age / 4 + place / 16)[:, None],
            "forward_inputs": inputs,
        }
        return inputs["action"].reshape(-1, CHUNK, ACTION), result


def config(*overrides):
    return compose_config("metaworld_ppo_mlp", [*SIZES, *overrides])


def settings_of(cfg, *, ranks=RANKS):
    return resolve(cfg, sizes={"env": 1, "rollout": 1, "actor": ranks})


@contextmanager
def in_one_process():
    """Real workers may be built, and pieces are handed over as they are."""
    names = {"Cluster": mock.DEFAULT, "HybridComponentPlacement": mock.DEFAULT}
    with (
        without_ray(0, 1),
        mock.patch.multiple(stock_env, **names) as env,
        mock.patch.multiple(stock_rollout, get_model=lambda _: Reckoner(), **names) as rollout,
    ):
        for made in (env, rollout):
            made["HybridComponentPlacement"].return_value.get_world_size.return_value = 1
        yield


def with_walks(worker, env_cls=Walks):
    """An env worker with its environments, as its `init_worker` leaves it."""
    worker._worker_info = None
    worker.env_list = worker._setup_env_and_wrappers(
        env_cls=env_cls, env_cfg=worker.cfg.env.train, num_envs_per_stage=worker.train_num_envs_per_stage
    )
    worker._init_env()
    return worker


def rollout_worker(cfg):
    worker = BatchingRolloutWorker(cfg)
    worker.init_worker()
    return worker


def pending(shard, size, seen, *, mode="train", final=None):
    """A request with an observation, as a rank gets it; `final` are last observations of episodes."""
    payload = seal({"obs": seen, "final_obs": final})
    return Pending(request=request(shard, size, payload=payload, mode=mode))


class Scorer:
    """A reward worker, and Ray's handle of it: its rewards are functions of all that it is shown."""

    def __init__(self):
        self.asked = []
        self.compute_image_rewards = self

    def score(self, shown):
        """As RLinf's worker: [B, 1]."""
        self.asked.append(shown)
        rewards = shown["states"].sum(dim=1) + shown["main_images"].float().mean(dim=(1, 2))
        rewards = rewards + shown["dones"] * 32
        infos = shown.get("env_infos", {})
        for told in (infos, infos.get("final_info", {})):
            if "episode" in told:
                rewards = rewards + told["episode"]["return"] / 4
        for fields in shown.get("history_input", {}).values():
            rewards = rewards + torch.tensor([sum(float(f.sum()) for f in seen) for seen in fields["states"]])
        return rewards[:, None]

    async def remote(self, shown):
        return self.score(shown)


class Directly(stock_env.EnvWorker):
    """RLinf's env worker, answered by RLinf's rollout worker within a call, and by a reward worker."""

    def __init__(self, cfg, policy, scorer):
        super().__init__(cfg)
        self.policy, self.scorer, self.sent = policy, scorer, {}
        if self.reward_mode == "history_buffer":  # as in `init_worker`
            sizes = [self.train_num_envs_per_stage] * self.stage_num
            self.train_history_managers = [stock_env.HistoryManager(cfg.reward, size) for size in sizes]
            self.history_lengths = [{} for _ in sizes]

    def send_to(self, *, data, tag, route_key=None, **_):
        self.sent[tag.removeprefix("train_"), route_key] = copy.deepcopy(data)  # as between processes

    def recv_from(self, *, tag, route_key=None, **_):
        asked = self.sent.pop((tag.removeprefix("train_"), route_key))
        if tag == "train_reward_obs":
            return self.scorer.score(asked)
        return self._answered(asked)

    def _answered(self, asked):
        actions, result = self.policy.predict(asked["obs"])
        return RolloutResult(
            actions=actions,
            prev_logprobs=result["prev_logprobs"],
            prev_values=result["prev_values"],
            bootstrap_values=self.policy.get_bootstrap_values(asked["final_obs"]),
            forward_inputs=result["forward_inputs"],
            versions=torch.zeros_like(result["prev_logprobs"]),
        )


def collected_by_rlinf(cfg, rollouts, env_cls=Walks, scorer=None):
    """([rollout][stage]: RLinf's Trajectory, [rollout]: its episode statistics)."""
    cfg = cfg.copy()
    cfg.rollout.pipeline_stage_num = SHARDS
    policy = stock_rollout.MultiStepRolloutWorker(cfg)
    policy.init_worker()
    worker, trajectories, episodes = with_walks(Directly(cfg, policy, scorer), env_cls), [], []
    for _ in range(rollouts):
        found = asyncio.run(worker._run_interact_once(None, None, scorer, None, cooperative_yield=False))
        trajectories.append([result.to_trajectory() for result in worker.rollout_results])
        episodes.append(dict(found))
    return trajectories, episodes


def collected_by_us(cfg, rollouts, *, together, env_cls=Walks, scorer=None):
    """([rollout][stage]: pieces as the learner gets them, [rollout]: episode statistics).

    `together` makes all shards share every forward pass; else each has its own.
    """
    settings, cfg = settings_of(cfg), cfg.copy()
    cfg.rollout.pipeline_stage_num = SHARDS
    worker, policy = with_walks(ShardedEnvWorker(cfg), env_cls), rollout_worker(cfg)
    worker.reward_workers = () if scorer is None else (scorer,)
    plan = settings.plan
    size = plan.envs_per_shard

    async def main():
        requests = (
            RequestBroker(BarrierQueues(plan, deadline_s=60, in_step=True))
            if together
            else RequestBroker(SharedQueues(max_size=size, max_wait=0, deadline_s=60))
        )
        broker = TrajectoryBroker(plan, max_staleness=rollouts, until=rollouts)
        served = asyncio.create_task(serve_policy(requests=_Rank(requests), policy=policy))
        await asyncio.gather(
            *(
                worker._collecting(
                    settings,
                    stage,
                    shard=stage,
                    policy=_Sealing(requests),
                    trajectories=broker,
                )
                for stage in range(SHARDS)
            )
        )
        requests.close()
        await served
        found = []
        for batch in range(rollouts):
            taken = [await broker.take(rank, batch, whole=True) for rank in range(plan.learner_ranks)]
            found.append(_by_stage([piece for pieces, _ in taken for piece in pieces]))
        return found, [(await worker.pop_metrics(batch))[0] for batch in range(rollouts)]

    def in_step(**parts):
        """Shards that share every forward pass begin no rollout beside the one before."""
        return run_shard(**{**parts, "overlaps": not together})

    with mock.patch("rlinf_async.loops.env.run_shard", in_step):
        return asyncio.run(main())


def _by_stage(pieces):
    found = [[] for _ in range(SHARDS)]
    for piece in sorted(pieces, key=lambda piece: piece.key):
        found[piece.ticket.shard].append(piece)
    return found


class _Rank:
    """The side of a `RequestBroker` that its only inference rank sees."""

    def __init__(self, requests):
        self._requests = requests
        self.answering = requests.answering

    async def take(self):
        return await self._requests.take(0)


class _Sealing:
    """The side that shards see: observations travel as they do between processes."""

    def __init__(self, requests):
        self._requests = requests
        self.rollout = requests.rollout

    async def act(self, request):
        return await self._requests.act(replace(request, payload=seal(request.payload)))
