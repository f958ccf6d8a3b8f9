"""Losses of packed passes against RLinf's own of the micro-batches from which their rows come."""

from itertools import product

import pytest
import torch
from rlinf.algorithms.registry import get_policy_loss, policy_loss

from rlinf_async.core.left_out import LeftOut
from rlinf_async.core.packing import Packing
from rlinf_async.hosts.rlinf.corrected_loss import register
from rlinf_async.hosts.rlinf.packed_loss import PackedLoss
from tests.hosts.rlinf.test_losses import SHAPES, micro_batch

ROWS = ("logprobs", "old_logprobs", "advantages", "values", "prev_values", "returns")
MASKS = ("loss_mask", "loss_mask_sum")
SIZE = 6
"""Rows of a micro-batch, as `micro_batch` makes them, and of a pass."""
UNLIKE = {
    False: {"critic/value_clip_ratio"},
    True: {"actor/ratio", "actor/ratio_abs", "actor/clipped_ratio", "actor/approx_kl"},
}
"""Metrics to which rows without a gradient contribute in RLinf: masked, and without an advantage."""


def step(level, rewards, mask, *, live=0.4, count=5):
    """The micro-batches of an optimizer step, of which most rows are masked, and one has no other."""
    draw = torch.Generator().manual_seed(len(level) + len(rewards))
    found = []
    for seed in range(count):
        fields, _ = micro_batch(level, rewards, mask=mask, seed=seed)
        for name in ROWS:
            if fields.get(name) is not None:
                fields[name] = fields[name].detach()
        keeps = torch.rand(SIZE, 1, generator=draw) < live * (seed != 1)
        if mask == "none":
            fields["advantages"] = fields["advantages"] * keeps
        else:
            fields["loss_mask"] = fields["loss_mask"] & keeps
        found.append(fields)
    return found


def of_rlinf(fields, loss_type):
    """Gradients by `logprobs` and `values` of the micro-batch, and metrics."""
    names = [name for name in ("logprobs", "values") if fields.get(name) is not None]
    leaves = {name: fields[name].clone().requires_grad_() for name in names}
    loss, metrics = policy_loss(loss_type=loss_type, **{**fields, **leaves})
    return torch.autograd.grad(loss, list(leaves.values()), allow_unused=True), float(loss), metrics


def packed(micro_batches, loss_type, leaves, *, size=SIZE):
    """The same by packed passes: gradients are put back where the rows come from."""
    loss = PackedLoss(get_policy_loss(loss_type))
    packing, grads, complete = Packing(size=size), [], []
    for fields in micro_batches:
        live = leaves.live(fields.get("loss_mask"), fields["advantages"])
        loss.add(packing.add(live), fields, live)
        names = [name for name in ("logprobs", "values") if fields.get(name) is not None]
        grads.append({name: torch.zeros_like(fields[name]) for name in names})
    computed = 0
    for one in packing.take(packing.needed):
        taken = [(part.micro_batch, row) for part in one.parts for row in part.rows.tolist()] or [(0, 0)]
        computed += len(taken)
        shared = {n: v for n, v in micro_batches[0].items() if n not in (*ROWS, *MASKS)}
        rows = {
            name: torch.stack([micro_batches[number][name][row] for number, row in taken])
            for name in (*ROWS, *MASKS)
            if micro_batches[0].get(name) is not None
        }
        outputs = {name: rows[name].requires_grad_() for name in grads[0]}
        with loss.passing(one) as done:
            value, metrics = policy_loss(loss_type=register(loss), **{**shared, **rows, **outputs})
        assert metrics == {}
        complete += done
        found = torch.autograd.grad(value, list(outputs.values()), allow_unused=True)
        for name, grad in zip(outputs, found, strict=True):
            for (number, row), own in zip(taken, grad, strict=True):
                grads[number][name][row] += own
    packing.finish()
    return grads, complete, computed


CASES = [
    (loss, level, rewards, mask)
    for loss, (level, rewards), mask in product(
        ("actor", "actor_critic"), SHAPES, ("some", "weighted", "none")
    )
    # With a critic a row without an advantage has a gradient.
    if not (
        loss == "actor_critic" and (mask == "none" or (level, rewards) == ("token_level", "action_level"))
    )
]


@pytest.mark.parametrize(("loss", "level", "rewards", "mask"), CASES)
def test_the_gradient_of_every_row_and_every_metric_is_rlinfs(loss, level, rewards, mask):
    leaves = LeftOut(masked=True, silent=mask == "none")
    micro_batches = step(level, rewards, mask)
    if loss == "actor":
        no_critic = dict.fromkeys(("values", "prev_values", "returns"))
        micro_batches = [{**fields, **no_critic} for fields in micro_batches]
    grads, complete, computed = packed(micro_batches, loss, leaves)
    assert computed < SIZE * len(micro_batches) / 2
    expected = [of_rlinf(fields, loss) for fields in micro_batches]
    for whole, (_, value, metrics) in zip(complete, expected, strict=True):
        assert whole.loss == pytest.approx(value, rel=1e-5, abs=1e-7)
        told = {name: metrics[name] for name in metrics if name not in UNLIKE[mask == "none"]}
        assert told.keys() >= {"actor/policy_loss", "actor/clip_fraction"}
        assert {name: whole.metrics[name] for name in told} == pytest.approx(told, 1e-5, 1e-6, nan_ok=True)
    assert any(grad.abs().max() > 0.01 for own, _, _ in expected for grad in own if grad is not None)
    for found, (own, _, _) in zip(grads, expected, strict=True):
        for name, grad in zip(found, own, strict=True):
            torch.testing.assert_close(found[name], grad, rtol=1e-6, atol=1e-8)
