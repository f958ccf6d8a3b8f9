"""What a lag does to RLinf's NFT: its own loss, against the closed form that docs/rlinf-autumn.md states."""

from contextlib import nullcontext
from types import SimpleNamespace

import pytest
import torch
from omegaconf import OmegaConf
from rlinf.workers.actor.fsdp_nft_policy_worker import EmbodiedNFTFSDPPolicy

STEPS, BATCH, CHUNK, DIM = 4, 6, 3, 2
SUCCESSES = torch.tensor([1.0, 1.0, 0.0, 1.0, 0.0, 0.0], dtype=torch.float64)


def gradient(v_theta, v_old, x_t, x_0, step, beta):
    """The gradient of RLinf's own loss, of form `mse` in the space of actions, to the velocities."""
    velocity = v_theta.clone().requires_grad_()
    algorithm = {"nft_loss_form": "mse", "nft_target_space": "x0", "nft_weight_mode": "constant"}
    actor = SimpleNamespace(
        cfg=OmegaConf.create({"algorithm": {**algorithm, "nft_beta": beta, "max_drift": 1e9}}),
        model=lambda **_: {"v_theta": velocity},
        amp_context=nullcontext(),
    )
    actor.model.config = SimpleNamespace(num_steps=STEPS)
    for name, method in vars(EmbodiedNFTFSDPPolicy).items():
        if name.startswith("_") and not name.startswith("__") and not hasattr(actor, name):
            setattr(actor, name, bound(method, actor))
    inputs = {
        "nft_xcur": x_t,
        "nft_step_index": torch.full((BATCH,), step),
        "nft_v": v_old,
        "nft_noise_level": torch.zeros(BATCH, dtype=torch.float64),
        "nft_x0": x_0,
    }
    masks = {"loss_mask": torch.ones(BATCH, 1, dtype=torch.bool), "advantages": SUCCESSES[:, None]}
    loss, _ = EmbodiedNFTFSDPPolicy.nft_forward_and_loss(actor, {"forward_inputs": inputs, **masks})
    loss.backward()
    return velocity.grad


def bound(method, actor):
    function = getattr(method, "__func__", method)
    if isinstance(method, staticmethod):
        return function
    return lambda *given, **named: function(actor, *given, **named)


@pytest.mark.parametrize("beta", [0.5, 1.0])
@pytest.mark.parametrize("step", [0, 1, 3])
def test_old_velocities_of_another_version_change_the_gradient_by_the_closed_form(beta, step):
    draw = torch.Generator().manual_seed(step)
    shape = (BATCH, CHUNK, DIM)
    v_theta, v_acting, v_other, x_t, x_0 = (
        torch.randn(shape, generator=draw, dtype=torch.float64) for _ in range(5)
    )
    time = 1 - step / STEPS
    scale = 2 * beta * time**2 / (BATCH * CHUNK)
    reward = SUCCESSES[:, None, None]
    # Toward the velocity of the sample where it succeeded, away from it where not, and back to the old one.
    guided = (2 * reward - 1) * (v_acting - (x_t - x_0) / time) + beta * (v_theta - v_acting)
    exact = gradient(v_theta, v_acting, x_t, x_0, step, beta)
    torch.testing.assert_close(exact, scale * guided)
    shifted = gradient(v_theta, v_other, x_t, x_0, step, beta) - exact
    torch.testing.assert_close(shifted, scale * (2 * reward - 1 - beta) * (v_other - v_acting))
    if beta == 1.0:
        # Successes are imitated whatever the old policy was; failures are not.
        assert shifted[SUCCESSES == 1].abs().max() < 1e-12
        assert shifted[SUCCESSES == 0].abs().max() > 1e-3
