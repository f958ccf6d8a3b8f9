"""The settings of a schedule against the rates that veRL's own engine gives."""

from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl", reason="veRL is not installed")

from verl.workers.config.optimizer import FSDPOptimizerConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from rlinf_async.hosts.verl.trainer import rate_settings
from tests.hosts.rates import assert_same_settings_have_same_rates, optims, rates_of

KEYS = {
    "lr_scheduler_type": [None, "constant", "cosine"],
    "warmup_style": [None, "cosine"],
    "total_training_steps": [4, 9],
    "lr_warmup_steps": [None, 3],
    "lr_warmup_steps_ratio": [None, 0.5],
    "num_cycles": [None, 1.5],
    "min_lr_ratio": [None, 0.3],
    "zero_indexed_step": [None, False],
}


def rates(optim):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    engine = SimpleNamespace(optimizer_config=FSDPOptimizerConfig(lr=1.0, **optim), rank=1)
    schedule = FSDPEngine._build_lr_scheduler(engine, optimizer)
    return rates_of(optimizer, schedule)


def test_two_runs_with_the_same_settings_have_the_same_rates():
    assert_same_settings_have_same_rates([(rate_settings(optim), rates(optim)) for optim in optims(KEYS)])


@pytest.mark.parametrize(
    "optim", [each for each in optims(KEYS) if each["total_training_steps"] == 4], ids=str
)
def test_a_longer_run_has_other_settings_just_where_its_rates_are_others(optim):
    longer = {**optim, "total_training_steps": 9}
    assert (rate_settings(optim) == rate_settings(longer)) == (rates(optim) == rates(longer))
