"""Cuts rollouts into pieces that end with the last decision of their episodes."""

from __future__ import annotations

from collections.abc import Sequence

import torch

from rlinf_async.core.sharding import pieces
from rlinf_async.core.tensors import BEYOND_FIELD, Tree, map_tensors, slice_samples
from rlinf_async.core.types import Piece, Ticket
from rlinf_async.hosts.kit.playing import Playing
from rlinf_async.loops.run_settings import RunSettings


def cut_into_pieces(
    ticket: Ticket,
    rollout: Tree,
    beyond: Tree | None,
    *,
    settings: RunSettings,
    versions: Sequence[int],
    played: Sequence[Playing | None],
    steps_per_decision: int,
) -> list[Piece]:
    """Return the pieces of a rollout of T decisions.

    Args:
        rollout: [T, B, ...] or [T + 1, B, ...].
        beyond: the inputs of the last observation, [1, B, ...], if values are recomputed.
        versions: the policy version of each decision.
        played: the environments of each decision; None for all B.
        steps_per_decision: steps of one environment in a decision.
    """
    plan, horizon = settings.plan, settings.horizon
    mask = _mask(played, plan.envs_per_shard)
    stepped = _mask([one if one is not None and one.others_stand else None for one in played], len(mask[0]))
    payloads, skipped = [], []
    for start, stop in plan.piece_ends:
        decisions = int(mask[:, start:stop].any(dim=1).sum())
        payload = _rows_but(len(played) - decisions, slice_samples(rollout, start, stop, dim=1))
        if beyond is not None:
            payload[BEYOND_FIELD] = map_tensors(
                torch.Tensor.contiguous, slice_samples(beyond, start, stop, dim=1)
            )
        payloads.append(payload)
        whole = (stop - start) * horizon
        of_piece = [int(flags[:, start:stop].sum()) for flags in (stepped, mask)]
        skipped.append(((whole - of_piece[0]) * steps_per_decision, whole - of_piece[1]))
    return pieces(
        ticket,
        payloads,
        plan=plan,
        versions=versions,
        horizon=horizon,
        steps_per_decision=steps_per_decision,
        skipped=skipped,
    )


def _rows_but(surplus: int, tree: Tree) -> Tree:
    """Return all rows but the last `surplus`, as views; a field always keeps its first row."""
    return map_tensors(lambda tensor: tensor[: max(1, len(tensor) - surplus)], tree)


def _mask(played: Sequence[Playing | None], size: int) -> torch.Tensor:
    """Return the environments of each decision as a mask, [T, size] bool."""
    mask = torch.ones(len(played), size, dtype=torch.bool)
    for decision, playing in enumerate(played):
        if playing is not None:
            mask[decision] = False
            mask[decision, list(playing.numbers)] = True
    return mask
