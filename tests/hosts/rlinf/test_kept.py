"""Which samples of a config are left out of training, and the reasons for which others stay."""

import pytest

from rlinf_async.core.left_out import LeftOut
from rlinf_async.hosts.rlinf.left_out import left_out, reasons_kept, remarks
from rlinf_async.hosts.rlinf.view import RLinfView
from tests.hosts.rlinf.given import config

GRPO = {"algorithm.adv_type": "grpo", "algorithm.loss_type": "actor", "algorithm.group_size": 4}
BONUS = {"algorithm.entropy_bonus": 0.01}
MEAN = {**BONUS, "algorithm.entropy_type": "action_level"}
OPEN = {"env.train.auto_reset": True}
SFT = {"actor.enable_sft_co_train": True}


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({}, LeftOut(masked=True)),
        (GRPO, LeftOut(masked=True, silent=True)),
        (OPEN, LeftOut()),
        ({**OPEN, "algorithm.filter_rewards": True}, LeftOut(masked=True)),
        (SFT, LeftOut()),
        ({**BONUS, "algorithm.entropy_type": "token_level"}, LeftOut(mixes=False)),
        (MEAN, LeftOut(masked=True, mixes=False)),
        ({**GRPO, **MEAN}, LeftOut(masked=True, mixes=False)),
    ],
)
def test_samples_are_left_out_where_nothing_else_has_a_gradient(changes, expected):
    view = RLinfView.of(config(changes))
    assert left_out(view) == expected
    assert bool(remarks(view)) == bool(expected and (expected.silent or not expected.mixes))


@pytest.mark.parametrize(
    ("changes", "overrides"),
    [
        ({}, []),
        (OPEN, []),
        (SFT, ["actor.enable_sft_co_train=false"]),
        ({**BONUS, "algorithm.entropy_type": "chunk_level"}, ["algorithm.entropy_type=action_level"]),
        ({**GRPO, **MEAN}, ["algorithm.entropy_bonus=0"]),
    ],
)
def test_each_reason_names_the_override_that_allows_to_leave_them_out(changes, overrides):
    reasons = reasons_kept(RLinfView.of(config(changes)))
    assert [reason.override for reason in reasons] == overrides
    mended = dict(changes)
    for reason in reasons:
        key, value = reason.override.split("=")
        assert reason.override in reason.text
        mended[key] = {"false": False, "0": 0}.get(value, value)
    assert reasons_kept(RLinfView.of(config(mended))) == []
