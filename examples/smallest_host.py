"""Environments that count, a policy that counts on, and a learner that adds up."""

import asyncio
from collections.abc import Sequence
from typing import Any

from rlinf_async.core.sharding import ShardPlan
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.loops.env import run_shard
from rlinf_async.loops.inference import serve_policy
from rlinf_async.loops.learner import learn_batch
from rlinf_async.loops.ports import TakenPieces
from rlinf_async.loops.queues import SharedQueues
from rlinf_async.loops.request_broker import RankRequests, RequestBroker
from rlinf_async.loops.together import together
from rlinf_async.loops.trajectory_broker import TrajectoryBroker

PLAN = ShardPlan(total_envs=4, env_workers=1, inference_ranks=1, learner_ranks=1, shards_per_worker=2)
BATCHES, DECISIONS = 5, 3


class Shard:
    horizon = DECISIONS

    async def start(self) -> int:
        return 0

    async def step(self, answer: Any) -> Any:
        return answer["count"]

    def waiting(self, output: Any) -> int:
        return PLAN.envs_per_shard

    def observation(self, output: Any) -> Any:
        return output

    async def finish(self) -> None:
        pass

    async def restart(self) -> None:
        pass


class Recorder:
    def __init__(self, ticket: Ticket) -> None:
        self.ticket = ticket
        self.counts: list[int] = []
        self.versions: list[int] = []

    def append(self, output: Any, answer: Any) -> None:
        self.counts.append(output)
        self.versions.append(answer["version"])

    async def complete(self, output: Any) -> None:
        pass

    def build(self, output: Any, answer: Any) -> list[Piece]:
        return [self.piece(part) for part in range(PLAN.parts)]

    def piece(self, part: int) -> Piece:
        return Piece(
            ticket=self.ticket,
            part=part,
            rank=PLAN.learner_rank(self.ticket.place, part),
            size=PLAN.piece_size,
            oldest=min(self.versions),
            newest=max(self.versions),
            env_steps=PLAN.piece_size * DECISIONS,
            payload=self.counts,
        )


class Policy:
    version = 0

    async def act(self, batch: Sequence[Any]) -> list[dict[str, int]]:
        return [{"count": pending.request.payload + 1, "version": self.version} for pending in batch]


class Learner:
    def begin(self, batch: int) -> None:
        self.sum = 0

    def accept(self, pieces: Sequence[Piece]) -> bool:
        self.sum += sum(sum(piece.payload) * piece.size for piece in pieces)
        return False

    def finish(self) -> dict[str, float]:
        return {"sum": self.sum}


class Pieces:
    def __init__(self, trajectories: TrajectoryBroker) -> None:
        self.trajectories = trajectories

    async def take(self, batch: int, *, whole: bool) -> TakenPieces:
        return await self.trajectories.take(0, batch, whole=whole)


async def main() -> None:
    requests = RequestBroker(SharedQueues(max_size=4, max_wait=0.0, deadline_s=60))
    trajectories = TrajectoryBroker(PLAN, max_staleness=1, until=BATCHES, deadline_s=60)
    policy, learner, pieces = Policy(), Learner(), Pieces(trajectories)

    async def collect() -> None:
        ports: dict[str, Any] = {"policy": requests, "trajectories": trajectories, "recorder": Recorder}
        await together(run_shard(shard=shard, env=Shard(), **ports) for shard in range(PLAN.shards))
        requests.close()

    async def learn() -> None:
        for batch in range(BATCHES):
            print(batch, await learn_batch(batch=batch, pieces=pieces, learner=learner, streaming=True))
            policy.version = batch + 1  # the new weights
            trajectories.publish(batch + 1)

    await together([collect(), serve_policy(requests=RankRequests(requests, 0), policy=policy), learn()])
    print(trajectories.ledger)


asyncio.run(main())
