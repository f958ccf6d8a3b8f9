"""The samples of a config without a gradient in RLinf's loss, and the reasons why some are still trained."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.rlinf.losses import GRPO_TYPE
from rlinf_async.hosts.rlinf.masks import MEAN_OVERRIDE, is_masked, is_summed
from rlinf_async.hosts.rlinf.nft import has_ratio

MEAN_TYPE = "action_level"
"""The `algorithm.entropy_type` with a bonus that is a mean over valid entries, computed row by row."""


def left_out(cfg: Mapping[str, Any]) -> LeftOut:
    """Return the samples that `async.skip.masked` leaves out of training, for a config (plain data)."""
    return LeftOut(
        masked=_has_masks(cfg) and not any(_against_all(cfg)),
        silent=_compares(cfg) and not any(_against_all(cfg)) and not any(_against_silent(cfg)),
        # The bonus is divided by the valid entries of the whole pass.
        mixes=not _has_bonus(cfg),
    )


def reasons_kept(cfg: Mapping[str, Any]) -> list[Reason]:
    """Return the reasons why samples without a gradient are still trained, each with the override that leaves
    them out; empty if all are left out.
    """
    if not (_has_masks(cfg) or _compares(cfg)):
        return []
    return [*_against_all(cfg), *_against_silent(cfg)]


def remarks(cfg: Mapping[str, Any]) -> list[str]:
    """Return remarks on a run that leaves samples out."""
    found = left_out(cfg)
    if not found:
        return []
    said = []
    if found.silent:
        said.append(
            "samples without an advantage count as unmoved in approx_kl and ratio, and in the measures of "
            "mismatch not at all"
        )
    if not found.mixes:
        said.append(
            f"algorithm.entropy_bonus={lookup(cfg, 'algorithm.entropy_bonus')} is a mean over a micro-batch: "
            "a pass has live samples of one micro-batch only, so that passes are smaller and not fewer"
        )
    return said


def _has_masks(cfg: Mapping[str, Any]) -> bool:
    return is_masked(cfg) or bool(lookup(cfg, "algorithm.filter_rewards"))


def _compares(cfg: Mapping[str, Any]) -> bool:
    return lookup(cfg, "algorithm.adv_type") == GRPO_TYPE


def _has_bonus(cfg: Mapping[str, Any]) -> bool:
    return bool(lookup(cfg, "algorithm.entropy_bonus"))


def _against_all(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    if lookup(cfg, "actor.enable_sft_co_train"):
        yield Reason(
            "actor.enable_sft_co_train=True adds a loss to every pass, so that there must be as many; set "
            "actor.enable_sft_co_train=false to leave samples without a gradient out",
            "actor.enable_sft_co_train=false",
        )
    if not has_ratio(cfg):
        yield Reason(
            f"algorithm.loss_type={lookup(cfg, 'algorithm.loss_type')}: its loss is a mean over the valid "
            "samples of each micro-batch, which RLinf's actor cuts by itself"
        )
    kind = lookup(cfg, "algorithm.entropy_type")
    if _has_bonus(cfg) and (kind != MEAN_TYPE or is_summed(cfg)):
        yield Reason(
            f"algorithm.entropy_type={kind}: masked samples may count in RLinf's entropy bonus; set "
            f"{MEAN_OVERRIDE} to leave them out",
            MEAN_OVERRIDE,
        )


def _against_silent(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    if _compares(cfg) and _has_bonus(cfg):
        yield Reason(
            f"algorithm.entropy_bonus={lookup(cfg, 'algorithm.entropy_bonus')} trains groups of equal "
            "rewards, too; set algorithm.entropy_bonus=0 to leave them out",
            "algorithm.entropy_bonus=0",
        )
