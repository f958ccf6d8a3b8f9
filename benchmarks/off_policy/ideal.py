"""The speed that the service times allow: both loops on a clock without a machine.

    python -m benchmarks.off_policy.ideal

Transitions a second of the loops with one environment in each env worker, if nothing but simulators, resets
and passes of the policy takes time. Times are those of `config.yaml`.
"""

from __future__ import annotations

import argparse
import heapq
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from omegaconf import OmegaConf

from rlinf_async.lab.emulated.service import EnvService, decisions, resets

HORIZON_S = 2000.0
ENVIRONMENTS = (4, 8)
FRAMES = ("all", "last")
HEADER = "| environments | frames | `stock` | `sharded` | ratio | over `stock`, all |\n|" + 6 * "---|"


@dataclass(frozen=True, kw_only=True)
class Times:
    """The service times of a run, in seconds."""

    env: EnvService
    pass_s: float
    sample_s: float
    decisions: int
    share: float = 1.0

    def act(self, samples: int) -> float:
        return self.pass_s + self.sample_s * samples


@dataclass
class Player:
    """The times that one environment takes, in turn."""

    times: Times
    number: int
    made: int = 0
    steps: Iterator[float] = field(init=False)
    begins: Iterator[float] = field(init=False)

    def __post_init__(self) -> None:
        env, share = self.times.env, self.times.share
        self.steps = (one.seconds * share for one in decisions(env, self.number, seed=0))
        self.begins = resets(env, self.number, seed=0)


def coupled(times: Times, environments: int, until_s: float = HORIZON_S) -> float:
    """Return RLinf's transitions a second: every pass waits for all, and one more ends each rollout."""
    players = [Player(times, number) for number in range(environments)]
    now, made = 0.0, 0
    while now < until_s:
        now += max(next(player.begins) for player in players)
        for _ in range(times.decisions):
            now += times.act(environments) + max(next(player.steps) for player in players)
            made += environments
        now += times.act(environments)
    return made / now


def sharded(times: Times, environments: int, until_s: float = HORIZON_S) -> float:
    """Return the prototype's transitions a second: a pass takes all requests that wait when it begins."""
    players = [Player(times, number) for number in range(environments)]
    asks = [(next(player.begins), player.number) for player in players]
    heapq.heapify(asks)
    idle_s, made = 0.0, 0
    while idle_s < until_s:
        begin = max(idle_s, asks[0][0])
        batch = []
        while asks and asks[0][0] <= begin:
            batch.append(players[heapq.heappop(asks)[1]])
        idle_s = begin + times.act(len(batch))
        for player in batch:
            made += 1
            player.made += 1
            ready = idle_s + next(player.steps)
            if player.made % times.decisions == 0:
                ready += next(player.begins)
            heapq.heappush(asks, (ready, player.number))
    return made / idle_s


def times_of(frames: str) -> Times:
    """Return the times of `config.yaml`."""
    cfg = OmegaConf.load(Path(__file__).with_name("config.yaml"))
    model, env = cfg.actor.model, cfg.env.train
    return Times(
        env=EnvService(**env.service),
        pass_s=model.pass_s,
        sample_s=model.sample_s,
        decisions=env.max_episode_steps // model.num_action_chunks,
        share=env.last_share if frames == "last" else 1.0,
    )


def main() -> None:
    argparse.ArgumentParser(description=__doc__).parse_args()
    print(HEADER)
    for environments in ENVIRONMENTS:
        first = coupled(times_of("all"), environments)
        for frames in FRAMES:
            times = times_of(frames)
            stock, own = coupled(times, environments), sharded(times, environments)
            print(
                f"| {environments} | {frames} | {stock:.2f} | {own:.2f} | {own / stock:.2f} "
                f"| {stock / first:.2f}, {own / first:.2f} |"
            )


if __name__ == "__main__":
    main()
