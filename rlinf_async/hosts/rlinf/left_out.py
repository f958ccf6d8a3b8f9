"""The samples of a config without a gradient in RLinf's loss, and the reasons why some are still trained.

Masked samples may count in the entropy bonus: it is a sum in some configs of RLinf and a mean in others. With
`entropy_type: chunk_level`, RLinf multiplies one entropy per sample, [N], by a mask [N, 1]. The product is
[N, N], so that the bonus is a sum over the micro-batch, including masked samples. Its weight in an optimizer
step then grows with the size of a micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator

from rlinf_async.core.left_out import LeftOut
from rlinf_async.entry_points import OWN_MODELS
from rlinf_async.hosts.judge.reasons import Reason
from rlinf_async.hosts.rlinf import tree
from rlinf_async.hosts.rlinf.losses import GRPO_TYPE
from rlinf_async.hosts.rlinf.view import RLinfView

MEAN_OVERRIDE = "algorithm.entropy_type=action_level"
"""The override that makes the bonus a mean over valid samples, of sums over each action."""


def is_summed(view: RLinfView) -> bool:
    """Return True if the bonus is a sum over the micro-batch. Models of this package have a row for each
    action.
    """
    return (
        bool(view.entropy_bonus)
        and view.entropy_type == "chunk_level"
        and view.model_type not in OWN_MODELS
        and not view.unmasking_keys
        and _has_one_dimension()
    )


def _has_one_dimension() -> bool:
    """Return True if the installed RLinf, which a patch may have mended, gives an entropy of [N]."""
    if not tree.is_defined("reshape_entropy"):
        return False  # newer versions of RLinf compute it in another way
    import torch  # only configs with a bonus need it

    from rlinf_async.hosts.rlinf.borrowed import reshape_entropy

    return bool(reshape_entropy(torch.zeros(2, 2), "chunk_level").dim() == 1)


MEAN_TYPE = "action_level"
"""The `algorithm.entropy_type` with a bonus that is a mean over valid entries, computed row by row."""


def left_out(view: RLinfView) -> LeftOut:
    """Return the samples that `async.skip.masked` leaves out of training."""
    return LeftOut(
        masked=_has_masks(view) and not any(_against_all(view)),
        silent=_compares(view) and not any(_against_all(view)) and not any(_against_silent(view)),
        # The bonus is divided by the valid entries of the whole pass.
        mixes=not view.entropy_bonus,
    )


def reasons_kept(view: RLinfView) -> list[Reason]:
    """Return the reasons why samples without a gradient are still trained, each with the override that leaves
    them out; empty if all are left out.
    """
    if not (_has_masks(view) or _compares(view)):
        return []
    return [*_against_all(view), *_against_silent(view)]


def remarks(view: RLinfView) -> list[str]:
    """Return remarks on a run that leaves samples out."""
    found = left_out(view)
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
            f"algorithm.entropy_bonus={view.entropy_bonus} is a mean over a micro-batch: "
            "a pass has live samples of one micro-batch only, so that passes are smaller and not fewer"
        )
    return said


def _has_masks(view: RLinfView) -> bool:
    return not view.unmasking_keys or view.filters_rewards


def _compares(view: RLinfView) -> bool:
    return view.advantage == GRPO_TYPE


def _against_all(view: RLinfView) -> Iterator[Reason]:
    if view.trains_beside:
        yield Reason(
            "actor.enable_sft_co_train=True adds a loss to every pass, so that there must be as many; set "
            "actor.enable_sft_co_train=false to leave samples without a gradient out",
            "actor.enable_sft_co_train=false",
        )
    if not view.has_ratio:
        yield Reason(
            f"algorithm.loss_type={view.loss}: its loss is a mean over the valid "
            "samples of each micro-batch, which RLinf's actor cuts by itself"
        )
    if view.entropy_bonus and (view.entropy_type != MEAN_TYPE or is_summed(view)):
        yield Reason(
            f"algorithm.entropy_type={view.entropy_type}: masked samples may count in RLinf's entropy bonus; "
            f"set {MEAN_OVERRIDE} to leave them out",
            MEAN_OVERRIDE,
        )


def _against_silent(view: RLinfView) -> Iterator[Reason]:
    if _compares(view) and view.entropy_bonus:
        yield Reason(
            f"algorithm.entropy_bonus={view.entropy_bonus} trains groups of equal "
            "rewards, too; set algorithm.entropy_bonus=0 to leave them out",
            "algorithm.entropy_bonus=0",
        )
