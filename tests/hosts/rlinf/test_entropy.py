"""The weight of the bonus for entropy, which goes by micro-batches in RLinf, and what is said of it."""

import pytest
import torch

from rlinf_async.compose import compose_config
from rlinf_async.config import AsyncConfig
from rlinf_async.hosts.judge.reasons import refuse
from rlinf_async.hosts.rlinf.explain import explain
from rlinf_async.hosts.rlinf.reasons import bonus_reasons, fit
from rlinf_async.hosts.rlinf.view import RLinfView
from tests.hosts.rlinf.alone import Run, one_rank
from tests.hosts.rlinf.given import config

BONUS, ACTION_DIM = 0.01, 4
SUMMED = {
    "algorithm.entropy_bonus": BONUS,
    "algorithm.entropy_type": "chunk_level",
    "actor.micro_batch_size": 8,
}


@pytest.fixture(scope="module", autouse=True)
def alone():
    with one_rank():
        yield


@pytest.mark.parametrize("mode", ["rollout", "streamer"])
@pytest.mark.parametrize(("kind", "size"), [("chunk_level", 48), ("chunk_level", 16), ("action_level", 48)])
def test_streaming_leaves_the_weight_of_the_entropy_bonus_as_it_is_in_rlinfs_whole_batches(kind, size, mode):
    run = Run.of(
        f"async.mode={mode}",
        "algorithm.group_size=4",
        "algorithm.update_epoch=1",
        f"algorithm.entropy_bonus={BONUS}",
        f"algorithm.entropy_type={kind}",
        f"actor.micro_batch_size={size}",
        algorithm="grpo",
    )
    batch = run.batch(0)
    batch["rewards"].zero_()  # nobody is better than the others: the bonus alone has a gradient
    run.train(0, batch, together=3)
    # A normal distribution's entropy grows by 1 with each of its log deviations.
    of_one = BONUS * ACTION_DIM**0.5
    expected = size * of_one if kind == "chunk_level" else of_one
    assert float(torch.linalg.vector_norm(run.training.gradients[0])) == pytest.approx(expected, rel=1e-5)


PPO = ("algorithm.adv_type=gae", "algorithm.loss_type=actor_critic", "actor.model.add_value_head=true")


def facts(*overrides):
    given = [f"{key}={value}" for key, value in SUMMED.items() if "micro" not in key]
    return explain(compose_config("metaworld_grpo_mlp", ["async.mode=streamer", *given, *overrides]))


def test_explain_says_that_the_bonus_is_a_sum_where_it_is_one():
    found = facts()
    assert "the entropy bonus is a sum over all samples" in found["exactness"]["streamer"]
    assert any("weight grows with actor.micro_batch_size=" in remark for remark in found["remarks"])


@pytest.mark.parametrize(
    "overrides",
    [
        ["algorithm.entropy_type=action_level"],
        ["env.train.auto_reset=true", *PPO],  # without a mask, which GRPO needs
    ],
)
def test_explain_says_nothing_of_a_sum_where_the_bonus_is_a_mean(overrides):
    found = facts(*overrides)
    assert "sum over" not in found["exactness"]["streamer"]
    assert not any("entropy bonus is a sum" in remark for remark in found["remarks"])


def test_micro_batches_of_level_3_that_would_change_the_weight_of_the_bonus_are_refused():
    block = {"mode": "full", "streamer": {"micro_batch_size": 2}}
    with pytest.raises(ValueError, match=r"async\.streamer\.micro_batch_size=2 would change the weight"):
        refuse(fit(config({**SUMMED, "async": block})).reasons)


@pytest.mark.parametrize(
    ("changes", "size"),
    [
        ({}, "auto"),
        ({}, 8),
        ({"algorithm.entropy_type": "action_level"}, 2),
        ({"algorithm.entropy_bonus": 0}, 2),
        ({"env.train.auto_reset": True}, 2),
        ({"env.train.ignore_terminations": True}, 2),
        ({"actor.model.model_type": "gaussian_mlp"}, 2),
    ],
)
def test_micro_batches_of_any_size_are_served_where_the_weight_of_the_bonus_stays(changes, size):
    asked = AsyncConfig.from_mapping({"mode": "full", "streamer": {"micro_batch_size": size}})
    assert not list(bonus_reasons(RLinfView.of(config({**SUMMED, **changes})), asked))
