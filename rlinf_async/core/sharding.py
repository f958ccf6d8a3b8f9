"""The assignment of environments to shards, of shards to inference ranks, and of pieces to learner ranks."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

from rlinf_async.core.types import Piece, Ticket

SEPARATE_SIMULATORS = frozenset(
    {"libero", "metaworld", "robocasa", "robocasa365", "calvin", "robotwin", "habitat", "d4rl"}
)
"""Simulators that run in a process each, on a CPU core each, so that none must wait for another."""

SHARED_SIMULATORS = frozenset({"frankasim"})
"""Simulators on the CPU that share the process of their env worker."""

VECTORISED_SIMULATORS = frozenset(
    {
        "maniskill",
        "maniskill_rlt",
        "isaaclab",
        "genesis",
        "behavior",
        "opensora_wm",
        "wan_wm",
        "world_model",
        "embodichain",
        "roboverse",
        "polaris",
    }
)
"""Simulators that batch environments on an accelerator: splitting ManiSkill cost 45 % (RL-VLA3, table 4)."""

Splitting = Literal["apart", "together", "vectorised", "unknown"]
"""The simulators of an env worker have a process each (`apart`), share the process of the worker
(`together`), are one batch on an accelerator (`vectorised`), or were never examined (`unknown`)."""


@dataclass(frozen=True, kw_only=True)
class ShardPlan:
    """The division of `total_envs` environments into shards; every process computes the same plan.

    A shard is a batch of environments that step together. Its rollout is cut into pieces of
    `piece_size` trajectories: the largest size that gives every learner rank equal pieces.
    Groups (GRPO) never cross a shard or a piece.
    """

    total_envs: int
    env_workers: int
    inference_ranks: int
    learner_ranks: int
    shards_per_worker: int
    rollout_epochs: int = 1
    group_size: int = 1
    kept_piece: int | None = None
    """Trajectories of a piece, if shards were joined during the run: pieces keep the size that they had."""

    def __post_init__(self) -> None:
        for name in (
            "total_envs",
            "env_workers",
            "inference_ranks",
            "learner_ranks",
            "shards_per_worker",
            "rollout_epochs",
            "group_size",
        ):
            if getattr(self, name) < 1:
                raise ValueError(f"{name}={getattr(self, name)} must be at least 1")
        if self.fits(self.shards_per_worker):
            return self._check_piece()
        unit = self._unit(self.shards_per_worker)
        fits = [n for n in range(1, self.total_envs + 1) if self.fits(n)]
        if fits:
            nearest = min(fits, key=lambda n: abs(n - self.shards_per_worker))
            advice = f"nearest number of shards per worker that does: {nearest}"
        else:
            advice = f"nearest total that does: {nearest_multiple(self.total_envs, unit)}"
        raise ValueError(f"{self._misfit()}; {advice}")

    def _check_piece(self) -> None:
        if self.kept_piece is not None and (self.kept_piece < 1 or self._largest_piece % self.kept_piece):
            raise ValueError(f"kept_piece={self.kept_piece} must divide pieces of {self._largest_piece}")

    def joined(self, shards_per_worker: int) -> ShardPlan:
        """Return the plan with fewer shards, each of several of these; the pieces are the same.

        Raises:
            ValueError: `shards_per_worker` does not divide the present number.
        """
        if self.shards_per_worker % shards_per_worker:
            raise ValueError(
                f"{self.shards_per_worker} shards per env worker cannot be joined to {shards_per_worker}"
            )
        return replace(self, shards_per_worker=shards_per_worker, kept_piece=self.piece_size)

    def fits(self, shards_per_worker: int) -> bool:
        """Return True if the environments divide into `shards_per_worker` equal shards per worker."""
        return self.total_envs % self._unit(shards_per_worker) == 0

    def _unit(self, shards_per_worker: int) -> int:
        """The number that must divide `total_envs`, so that every shard and learner rank has whole groups."""
        return self.group_size * math.lcm(self.env_workers * shards_per_worker, self.learner_ranks)

    def _misfit(self) -> str:
        groups = f" in groups of {self.group_size}" if self.group_size > 1 else ""
        if self.total_envs % (self.shards * self.group_size):
            among = f"into {self.env_workers} env workers x {self.shards_per_worker} shards"
        else:
            among = f"among {self.learner_ranks} learner ranks"
        return f"{self.total_envs} environments{groups} do not divide {among}"

    @property
    def shards(self) -> int:
        return self.env_workers * self.shards_per_worker

    @property
    def envs_per_shard(self) -> int:
        return self.total_envs // self.shards

    @property
    def piece_size(self) -> int:
        return self.kept_piece or self._largest_piece

    @property
    def _largest_piece(self) -> int:
        # A piece crosses neither the end of a shard nor the end of a learner rank's environments.
        return math.gcd(self.envs_per_shard, self.total_envs // self.learner_ranks)

    @property
    def parts(self) -> int:
        """Pieces of one rollout of one shard."""
        return self.envs_per_shard // self.piece_size

    @property
    def piece_ends(self) -> list[tuple[int, int]]:
        """(start, stop) of every piece of a rollout, in the environments of its shard."""
        size = self.piece_size
        return [(part * size, (part + 1) * size) for part in range(self.parts)]

    @property
    def pieces_per_rank(self) -> int:
        """Pieces that one learner rank trains in one global batch."""
        return self.shards * self.parts * self.rollout_epochs // self.learner_ranks

    @property
    def trajectories_per_batch(self) -> int:
        return self.total_envs * self.rollout_epochs

    def rollout_number(self, batch: int, epoch: int) -> int:
        """The number, from 0, of the rollout for `batch` and `epoch` among all rollouts of one shard."""
        return batch * self.rollout_epochs + epoch

    def shards_of_worker(self, worker: int) -> range:
        return range(worker * self.shards_per_worker, (worker + 1) * self.shards_per_worker)

    def learner_rank(self, place: int, part: int) -> int:
        """The learner rank that trains this part of this place, in every epoch and every batch."""
        first_env = place * self.envs_per_shard + part * self.piece_size
        # The rank of the first environment is that of the whole piece: `piece_size` divides a rank's share.
        return first_env // (self.total_envs // self.learner_ranks)

    def queue(self, shard: int) -> tuple[int, int]:
        """The queue of a shard's requests when level 2 is off: (inference rank, pipeline stage), fixed for
        the run.
        """
        # A rank serves neighbouring shards; the ranks' numbers of shards differ by at most one.
        return (shard * self.inference_ranks // self.shards, shard % self.shards_per_worker)


def nearest_multiple(number: float, unit: int) -> int:
    """The positive multiple of `unit` that is nearest to `number`."""
    return max(1, round(number / unit)) * unit


def nearest_divisor(number: int, target: float) -> int:
    """The divisor of `number` that is nearest to `target`."""
    return min((n for n in range(1, number + 1) if number % n == 0), key=lambda n: abs(n - target))


def pieces(
    ticket: Ticket,
    payloads: Sequence[Any],
    *,
    plan: ShardPlan,
    versions: Sequence[int],
    horizon: int | None = None,
    steps_per_decision: int = 1,
    skipped: Sequence[tuple[int, int]] | None = None,
) -> list[Piece]:
    """The pieces of the rollout that `ticket` has admitted, one for each of `payloads`, in their order.

    Args:
        versions: the policy version of each decision.
        horizon: decisions of a rollout without an early end; None: the number of `versions`.
        steps_per_decision: steps of one environment per decision.
        skipped: (environment steps, decisions) that each piece left out; None: no piece left out any.
    """
    size = plan.piece_size
    horizon = len(versions) if horizon is None else horizon
    return [
        Piece(
            ticket=ticket,
            part=part,
            rank=plan.learner_rank(ticket.place, part),
            size=size,
            oldest=min(versions),
            newest=max(versions),
            env_steps=size * horizon * steps_per_decision,
            payload=payload,
            skipped_env_steps=env_steps,
            skipped_decisions=decisions,
        )
        for part, (payload, (env_steps, decisions)) in enumerate(
            zip(payloads, skipped or [(0, 0)] * len(payloads), strict=True)
        )
    ]


def splitting(train: Mapping[str, Any]) -> Splitting:
    """Return how the simulators of an `env` section can be split; `unknown` for a simulator in no table.

    This package's Meta-World, recognised by its key `processes`, counts as `together`; so do environments
    that a package declares, which are built in the process of their env worker.
    """
    simulator = str(train["env_type"])
    if simulator in VECTORISED_SIMULATORS:
        return "vectorised"
    if simulator in SEPARATE_SIMULATORS and "processes" not in train:
        return "apart"
    if simulator in SEPARATE_SIMULATORS | SHARED_SIMULATORS or train.get("env_class"):
        return "together"
    return "unknown"


def one_batch(train: Mapping[str, Any]) -> bool:
    """Return True if the simulators of an `env` section are, or may be, one batch that a split slows down."""
    return splitting(train) in ("vectorised", "unknown")


def simulators_apart(train: Mapping[str, Any]) -> bool:
    """Return True if the simulators of an `env` section have a process each."""
    return splitting(train) == "apart"
