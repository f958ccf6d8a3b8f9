"""The samples of a config without a gradient in veRL's losses, and the reasons why some are still trained.

The losses of `ROW_LOSSES` are sums over decisions, as veRL divides them by numbers of the whole optimizer
step. The other losses select or average among the decisions of one micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.verl.algorithms import COMPARING_ESTIMATORS
from rlinf_async.hosts.verl.settings import section
from rlinf_async.hosts.verl.view import ACTOR_SECTION, VerlView

PROPORTIONAL_LOSSES = frozenset({"cispo", "dppo_kl", "dppo_tv", "gpg", "gspo", "sapo", "vanilla"})
"""Losses without a gradient for a decision with an advantage of 0."""

ROW_LOSSES = PROPORTIONAL_LOSSES | {"dro"}
"""Losses that are sums over decisions."""

LOSS_KEY = f"{ACTOR_SECTION}.policy_loss.loss_mode"
ENTROPY_KEY = f"{ACTOR_SECTION}.entropy_coeff"


def left_out(view: VerlView) -> LeftOut:
    """Return the samples that `async.skip.masked` leaves out of training."""
    able = not any(_against_all(view))
    return LeftOut(
        masked=able and _has_masks(view),
        silent=able and _compares(view) and not any(_against_silent(view)),
    )


def reasons_kept(view: VerlView) -> list[Reason]:
    """Return the reasons why samples without a gradient are still trained, each with the override that leaves
    them out; empty if all are left out.
    """
    if not (_has_masks(view) or _compares(view)):
        return []
    return [*_against_all(view), *_against_silent(view)]


def _has_masks(view: VerlView) -> bool:
    return not section(view, "train")["auto_reset"]


def _compares(view: VerlView) -> bool:
    return view.estimator in COMPARING_ESTIMATORS


def _against_all(view: VerlView) -> Iterator[Reason]:
    if (loss := view.loss) not in ROW_LOSSES:
        yield Reason(
            f"{LOSS_KEY}={loss} is not known to be a sum over decisions, so that all are trained; "
            f"{LOSS_KEY}=vanilla is one",
            f"{LOSS_KEY}=vanilla",
        )


def _against_silent(view: VerlView) -> Iterator[Reason]:
    if not _compares(view):
        return
    if view.entropy_coeff:
        yield Reason(
            f"{ENTROPY_KEY}={view.entropy_coeff} trains groups of equal rewards, too; set "
            f"{ENTROPY_KEY}=0 to leave them out",
            f"{ENTROPY_KEY}=0",
        )
    if (loss := view.loss) in ROW_LOSSES - PROPORTIONAL_LOSSES:
        yield Reason(
            f"{LOSS_KEY}={loss} trains groups of equal rewards, too; {LOSS_KEY}=vanilla leaves them out",
            f"{LOSS_KEY}=vanilla",
        )
