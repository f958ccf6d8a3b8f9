"""A host for a toy framework, of the kit that the other hosts are made of: a number is moved to zero."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch

from rlinf_async.config.checked import checked_config
from rlinf_async.core.objectives import ppo_loss
from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.tensors import Tensors, Tree, concatenate, leaf
from rlinf_async.core.types import Piece
from rlinf_async.hosts.kit.inference import PolicyWorker
from rlinf_async.hosts.kit.playing import Playing
from rlinf_async.hosts.kit.ratios import at_ratio_level, weighed
from rlinf_async.hosts.kit.recorder import SampleRecorder
from rlinf_async.hosts.kit.samples import flat, samples_of
from rlinf_async.hosts.kit.scoring import recompute
from rlinf_async.hosts.kit.shard import Shown, TrainShard
from rlinf_async.loops.env import run_shard
from rlinf_async.loops.inference import serve_policy
from rlinf_async.loops.learner import learn_batch
from rlinf_async.loops.ports import TakenPieces
from rlinf_async.loops.request_broker import RankRequests, request_broker
from rlinf_async.loops.run_settings import RunSettings
from rlinf_async.loops.simulator_thread import SimulatorThread
from rlinf_async.loops.together import together
from rlinf_async.loops.trajectory_broker import TrajectoryBroker, trajectory_broker
from rlinf_async.observe.meters import BusyMeter

DECISIONS = 4
SETTINGS = RunSettings(
    asynchrony=checked_config({"mode": "full"}),
    plan=ShardPlan(total_envs=32, env_workers=1, inference_ranks=1, learner_ranks=1, shards_per_worker=2),
    horizon=DECISIONS,
    batches=20,
    global_batch_size=32 * DECISIONS,
    micro_batch_size=32 * DECISIONS,
    update_epoch=1,
    max_batch_size=32,
    normalizes=False,
    seed=1,
)


@dataclass
class Seen:
    """Where the numbers are, [B, 1], and the rewards of how far they are from zero, [B]; none ever ends."""

    where: torch.Tensor
    rewards: torch.Tensor
    ended: torch.Tensor
    playing: Playing | None = None

    @property
    def observation(self) -> dict[str, Any]:
        return {"states": self.where}

    @property
    def episodes(self) -> dict[str, torch.Tensor]:
        return {"return": self.rewards}


class Numbers(TrainShard[Seen]):
    """The framework's environments, which begin at one."""

    def begin(self) -> Shown[Seen]:
        return self._shown(torch.ones(self.size, 1))

    def act(self, actions: torch.Tensor) -> Shown[Seen]:
        assert self._last is not None
        return self._shown(self._last.where + actions[:, 0])

    def end(self) -> None:
        """Every reset begins at one."""

    def rebuild(self) -> None:
        """There is nothing to close."""

    def shown(self, output: Seen) -> dict[str, Any]:
        return {"obs": output.observation}

    def _shown(self, where: torch.Tensor) -> Shown[Seen]:
        never = torch.zeros(self.size, dtype=torch.bool)
        self._last = Seen(where, -where[:, 0].abs(), never)
        return self._last, {"states": where}


def scored(model: torch.nn.Linear, inputs: Any) -> torch.Tensor:
    """The framework's log-probabilities of moves, [N, 1]."""
    return torch.distributions.Normal(model(inputs["states"]), 0.3).log_prob(inputs["moves"])


class Inference(PolicyWorker):
    def __init__(self, model: torch.nn.Linear) -> None:
        self.model = model
        self.start_inference(rank=0)

    async def act(self, batch: Sequence[Any]) -> list[Any]:
        requests = [pending.request for pending in batch]
        return self.answer([each.payload for each in requests], [each.size for each in requests], "train")

    @torch.no_grad()
    def decide(
        self, observations: list[Mapping[str, Any]], size: int, mode: str
    ) -> tuple[torch.Tensor, Mapping[str, Any]]:
        states = torch.cat([each["states"] for each in observations])
        inputs = {"states": states, "moves": torch.normal(self.model(states), 0.3)}
        said = {"prev_logprobs": scored(self.model, inputs), "forward_inputs": inputs}
        return inputs["moves"][:, None], said

    def load_state(self, version: int, state: Tensors) -> None:
        self.model.load_state_dict(state)
        self._version_held = version


class Learner:
    def __init__(self, model: torch.nn.Linear) -> None:
        self.model = model
        self.optimizer = torch.optim.Adam(model.parameters(), lr=0.05)

    def begin(self, batch: int) -> None:
        self.pieces: list[Piece] = []

    def accept(self, pieces: Sequence[Piece]) -> bool:
        self.pieces += pieces
        return False

    @torch.no_grad()
    def passes(self, parts: Iterable[Tree]) -> Iterator[Tensors]:
        for part in parts:
            yield {"logprobs": scored(self.model, part["forward_inputs"])}

    def finish(self) -> dict[str, float]:
        weighting = SETTINGS.asynchrony.weighting
        assert weighting is not None, "a batch may be of an older policy"
        rollout = concatenate([piece.payload for piece in self.pieces], dim=1)
        beyond = flat(rollout.pop("bootstrap_inputs"))
        size = SETTINGS.micro_batch_size
        recompute(rollout, beyond, self.passes, micro_batch_size=size, values=False, model="the toy")
        rewards = leaf(rollout, "rewards")
        advantages = rewards.flip(0).cumsum(0).flip(0)
        advantages = (advantages - advantages.mean(1, keepdim=True)).flatten()
        samples = samples_of(rollout, "proximal_logprobs")
        at_level = partial(at_ratio_level, level="action", action_dim=1)
        anchor, behaviour = (at_level(leaf(samples, name)) for name in ("proximal_logprobs", "prev_logprobs"))
        weights, _ = weighed(weighting, samples["forward_inputs"], anchor, behaviour)
        logprobs = at_level(scored(self.model, samples["forward_inputs"]))
        gains = advantages[:, None] * weights
        loss = ppo_loss(logprobs, anchor, gains, clip_low=0.2, clip_high=0.2).mean()
        self.optimizer.zero_grad()
        torch.autograd.backward(loss)
        self.optimizer.step()
        return {"return": float(rewards.sum(0).mean())}


class Pieces:
    def __init__(self, trajectories: TrajectoryBroker) -> None:
        self.trajectories = trajectories

    async def take(self, batch: int, *, whole: bool) -> TakenPieces:
        return await self.trajectories.take(0, batch, whole=whole)


def shard_in(thread: ThreadPoolExecutor, number: int) -> Numbers:
    simulators = SimulatorThread(number, thread, SETTINGS.asynchrony.advanced)
    size = SETTINGS.plan.envs_per_shard
    return Numbers(simulators, busy=BusyMeter(), number=0, size=size, horizon=DECISIONS)


async def main() -> None:
    torch.manual_seed(SETTINGS.seed)
    learner, acting = Learner(torch.nn.Linear(1, 1)), Inference(torch.nn.Linear(1, 1))
    requests, trajectories = request_broker(SETTINGS), trajectory_broker(SETTINGS)
    pieces = Pieces(trajectories)
    recorder = partial(SampleRecorder[Seen], settings=SETTINGS, every_end=False, episodes=[])

    def publish(version: int) -> None:
        acting.load_state(version, learner.model.state_dict())
        trajectories.publish(version)

    async def collect() -> None:
        ports: dict[str, Any] = {"policy": requests, "trajectories": trajectories, "recorder": recorder}
        with ThreadPoolExecutor() as threads:
            shards = [shard_in(threads, number) for number in range(SETTINGS.plan.shards)]
            await together(run_shard(shard=at, env=shard, **ports) for at, shard in enumerate(shards))
        requests.close()

    async def learn() -> None:
        for batch in range(SETTINGS.batches):
            print(batch, await learn_batch(batch=batch, pieces=pieces, learner=learner, streaming=True))
            publish(batch + 1)

    acting.load_state(0, learner.model.state_dict())
    await together([collect(), serve_policy(requests=RankRequests(requests, 0), policy=acting), learn()])
    print(trajectories.ledger)


asyncio.run(main())
