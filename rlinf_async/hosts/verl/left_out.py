"""The samples of a config without a gradient in veRL's losses, and the reasons why some are still trained.

The losses of `ROW_LOSSES` are sums over decisions, as veRL divides them by numbers of the whole optimizer
step. The other losses select or average among the decisions of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.verl.algorithms import COMPARING_ESTIMATORS
from rlinf_async.hosts.verl.settings import ACTOR_SECTION, section

PROPORTIONAL_LOSSES = frozenset({"cispo", "dppo_kl", "dppo_tv", "gpg", "gspo", "sapo", "vanilla"})
"""Losses without a gradient for a decision with an advantage of 0."""

ROW_LOSSES = PROPORTIONAL_LOSSES | {"dro"}
"""Losses that are sums over decisions."""

LOSS_KEY = f"{ACTOR_SECTION}.policy_loss.loss_mode"
ENTROPY_KEY = f"{ACTOR_SECTION}.entropy_coeff"


def left_out(cfg: Mapping[str, Any]) -> LeftOut:
    """Return the samples that `async.skip.masked` leaves out of training, for a config (plain data)."""
    able = not any(_against_all(cfg))
    return LeftOut(
        masked=able and _has_masks(cfg),
        silent=able and _compares(cfg) and not any(_against_silent(cfg)),
    )


def reasons_kept(cfg: Mapping[str, Any]) -> list[Reason]:
    """Return the reasons why samples without a gradient are still trained, each with the override that leaves
    them out; empty if all are left out.
    """
    if not (_has_masks(cfg) or _compares(cfg)):
        return []
    return [*_against_all(cfg), *_against_silent(cfg)]


def _has_masks(cfg: Mapping[str, Any]) -> bool:
    return not section(cfg, "train")["auto_reset"]


def _compares(cfg: Mapping[str, Any]) -> bool:
    return lookup(cfg, "algorithm.adv_estimator") in COMPARING_ESTIMATORS


def _loss(cfg: Mapping[str, Any]) -> str:
    return str(lookup(cfg, LOSS_KEY) or "vanilla")


def _against_all(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    if (loss := _loss(cfg)) not in ROW_LOSSES:
        yield Reason(
            f"{LOSS_KEY}={loss} is not known to be a sum over decisions, so that all are trained; "
            f"{LOSS_KEY}=vanilla is one",
            f"{LOSS_KEY}=vanilla",
        )


def _against_silent(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    if not _compares(cfg):
        return
    if lookup(cfg, ENTROPY_KEY):
        yield Reason(
            f"{ENTROPY_KEY}={lookup(cfg, ENTROPY_KEY)} trains groups of equal rewards, too; set "
            f"{ENTROPY_KEY}=0 to leave them out",
            f"{ENTROPY_KEY}=0",
        )
    if (loss := _loss(cfg)) in ROW_LOSSES - PROPORTIONAL_LOSSES:
        yield Reason(
            f"{LOSS_KEY}={loss} trains groups of equal rewards, too; {LOSS_KEY}=vanilla leaves them out",
            f"{LOSS_KEY}=vanilla",
        )
