"""The settings of a schedule against the rates that RLinf's own schedule gives."""

import pytest
import torch

pytest.importorskip("rlinf", reason="RLinf is not installed")

from omegaconf import OmegaConf
from rlinf.hybrid_engines.fsdp.fsdp_model_manager import FSDPModelManager

from rlinf_async.hosts.rlinf.runner import rate_settings
from tests.hosts.rates import assert_same_settings_have_same_rates, optims, rates_of

KEYS = {
    "lr_scheduler": [None, "constant", "cosine", "torch_cosine"],
    "total_training_steps": [4, 9],
    "lr_warmup_steps": [None, 3],
    "lr_warmup_steps_ratio": [None, 0.5],
    "num_cycles": [None, 1.5],
    "min_lr_rate": [None, 0.3],
}


def rates(optim):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    schedule = FSDPModelManager.build_lr_scheduler(None, optimizer, OmegaConf.create(optim))
    return rates_of(optimizer, schedule)


def test_two_runs_with_the_same_settings_have_the_same_rates():
    assert_same_settings_have_same_rates([(rate_settings(optim), rates(optim)) for optim in optims(KEYS)])


@pytest.mark.parametrize(
    "optim", [each for each in optims(KEYS) if each["total_training_steps"] == 4], ids=str
)
def test_a_longer_run_has_other_settings_just_where_its_rates_are_others(optim):
    longer = {**optim, "total_training_steps": 9}
    assert (rate_settings(optim) == rate_settings(longer)) == (rates(optim) == rates(longer))
