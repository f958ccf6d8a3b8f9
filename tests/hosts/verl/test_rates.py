"""The settings of a schedule against the rates that veRL's own engine gives."""

from itertools import combinations, product
from types import SimpleNamespace

import pytest
import torch

pytest.importorskip("verl", reason="veRL is not installed")

from verl.workers.config.optimizer import FSDPOptimizerConfig
from verl.workers.engine.fsdp.transformer_impl import FSDPEngine

from rlinf_async.hosts.verl.rates import rate_settings

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


def optims():
    """Sections `actor_rollout_ref.actor.optim`; None stands for a key that is left out."""
    for values in product(*KEYS.values()):
        yield {key: value for key, value in zip(KEYS, values, strict=True) if value is not None}


def rates(optim):
    optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=1.0)
    engine = SimpleNamespace(optimizer_config=FSDPOptimizerConfig(lr=1.0, **optim), rank=1)
    schedule = FSDPEngine._build_lr_scheduler(engine, optimizer)
    found = []
    for _ in range(12):
        optimizer.step()
        schedule.step()
        found.append(round(schedule.get_last_lr()[0], 9))
    return found


def test_two_runs_with_the_same_settings_have_the_same_rates():
    known = [(rate_settings(optim), rates(optim)) for optim in optims()]
    for (one, of_one), (other, of_other) in combinations(known, 2):
        assert one != other or of_one == of_other, (one, of_one, of_other)


@pytest.mark.parametrize("optim", [each for each in optims() if each["total_training_steps"] == 4], ids=str)
def test_a_longer_run_has_other_settings_just_where_its_rates_are_others(optim):
    longer = {**optim, "total_training_steps": 9}
    assert (rate_settings(optim) == rate_settings(longer)) == (rates(optim) == rates(longer))
