"""RLinf's own asynchronous keys and those that it moves: what they become, against RLinf's code."""

from pathlib import Path

import pytest
import torch
from omegaconf import OmegaConf
from rlinf.algorithms.losses import compute_decoupled_ppo_actor_loss

from rlinf_async.compose import compose_config
from rlinf_async.core.config_keys import lookup
from rlinf_async.core.objectives import importance_weight, ppo_loss
from rlinf_async.hosts.rlinf.config import read_fit, resolve
from rlinf_async.hosts.rlinf.translation import as_rlinf_counts, overruled, translated, translations
from tests.hosts.rlinf.given import ONE_EACH, config

ASYNC_PPO = {
    "algorithm.loss_type": "decoupled_actor_critic",
    "algorithm.staleness_threshold": 4,
    "algorithm.behave_weight_threshold": 3.0,
}


def asynchrony(changes=None, advanced=None, **train):
    block = {"mode": "full", "train": train, "advanced": advanced or {}}
    cfg = config({**ASYNC_PPO, "async": block, **(changes or {})})
    return read_fit(OmegaConf.create(cfg)).asynchrony


def test_thresholds_become_a_bound_of_staleness_and_a_mask_of_weights():
    asked = asynchrony()
    assert (asked.max_staleness, asked.correction, asked.weighting.max_weight) == (4, "tis", 3.0)


@pytest.mark.parametrize(
    ("block", "found"),
    [
        ({"max_staleness": 2}, (2, "tis", 3.0)),
        ({"advanced": {"max_weight": 5.0}}, (4, "tis", 5.0)),
        ({"correction": "tis"}, (4, "tis", 3.0)),
        ({"correction": "tis", "advanced": {"max_weight": 7.0}}, (4, "tis", 7.0)),
        ({"correction": "decoupled"}, (4, "decoupled", float("inf"))),
    ],
)
def test_an_explicit_key_beats_a_translation(block, found):
    asked = asynchrony(**block)
    assert (asked.max_staleness, asked.correction, asked.weighting.max_weight) == found


@pytest.mark.parametrize("loss", ["actor_critic", "actor"])
def test_only_configs_for_rlinfs_asynchronous_ppo_are_translated(loss):
    asked = asynchrony({"algorithm.loss_type": loss})
    assert (asked.max_staleness, asked.correction) == (1, "decoupled")


def test_a_threshold_that_is_null_bounds_nothing_as_in_rlinf():
    asked = asynchrony({"algorithm.behave_weight_threshold": None, "algorithm.staleness_threshold": None})
    assert (asked.max_staleness, asked.correction, asked.weighting.max_weight) == (
        1,
        "decoupled",
        float("inf"),
    )


def test_what_is_translated_is_said_and_what_is_beaten_too():
    cfg = config(ASYNC_PPO)
    assert list(translations(cfg, {"mode": "full"})) == [
        "algorithm.staleness_threshold=4 -> async.train.max_staleness=4",
        "algorithm.behave_weight_threshold=3.0 -> async.train.correction=tis, async.advanced.max_weight=3.0",
    ]
    beaten = {"train": {"max_staleness": 1, "correction": "none"}}
    assert list(translations(cfg, beaten)) == [
        "algorithm.staleness_threshold=4 has no effect: async.train.max_staleness=1 says otherwise",
        "algorithm.behave_weight_threshold=3.0 has no effect: async.train.correction=none says otherwise",
    ]


def test_a_block_is_not_changed_by_its_translation():
    block = {"mode": "full", "train": {"max_staleness": 2}}
    assert translated(config(ASYNC_PPO), block)["train"]["correction"] == "tis"
    assert block == {"mode": "full", "train": {"max_staleness": 2}}


def test_up_to_the_threshold_weights_are_those_of_rlinfs_decoupled_loss():
    """RLinf leaves out what is beyond, and divides by what it keeps; here that stays, with the threshold."""
    torch.manual_seed(0)
    current, proximal, behaviour, advantages = (torch.randn(64) for _ in range(4))
    threshold = 1.5
    theirs, metrics = compute_decoupled_ppo_actor_loss(
        logprobs=current,
        old_logprobs=behaviour,
        proximal_logprobs=proximal,
        advantages=advantages,
        clip_ratio_low=0.2,
        clip_ratio_high=0.2,
        behave_weight_threshold=threshold,
    )
    weights = importance_weight(proximal, behaviour, correction="tis", max_weight=threshold)
    within = torch.exp(proximal - behaviour) <= threshold
    ours = ppo_loss(current, proximal, weights * advantages, clip_low=0.2, clip_high=0.2)[within].sum()
    kept = int(within.sum())
    assert 0 < kept < 64
    assert (weights[~within] == threshold).all()
    torch.testing.assert_close(ours, theirs * kept)
    assert float(metrics["actor/behav_clip_fraction"]) == pytest.approx(1 - kept / 64)


def old_style(**changes):
    """RLinf 0.2 has the epochs in `algorithm`."""
    cfg = config({"algorithm.rollout_epoch": 6, **changes})
    del cfg["env"]["train"]["rollout_epoch"]
    return cfg


def test_epochs_in_the_style_of_rlinf_0_2_are_counted():
    plan = resolve(OmegaConf.create(old_style()), sizes=ONE_EACH).plan
    assert plan.trajectories_per_batch == 8 * 6
    both = config({"algorithm.rollout_epoch": 6, "env.train.rollout_epoch": 3})
    assert resolve(OmegaConf.create(both), sizes=ONE_EACH).plan.trajectories_per_batch == 8 * 3


def test_moving_a_key_leaves_the_config_as_it_was():
    cfg = old_style(**{"algorithm.eval_rollout_epoch": 5})
    moved = as_rlinf_counts(cfg)
    assert (moved["env"]["train"]["rollout_epoch"], moved["env"]["eval"]["rollout_epoch"]) == (6, 5)
    assert "rollout_epoch" not in cfg["env"]["train"]
    del cfg["env"]["eval"]
    assert "eval" not in as_rlinf_counts(cfg)["env"]


DOCS = Path(__file__).parents[3] / "docs"


@pytest.mark.parametrize("kept", [False, True], ids=["moved", "the new key is there"])
def test_keys_are_moved_as_rlinfs_own_validation_moves_them(monkeypatch, kept):
    monkeypatch.syspath_prepend(DOCS)
    from stock_rlinf import validate

    cfg = compose_config(
        "metaworld_ppo_mlp", ["+algorithm.rollout_epoch=6", "+algorithm.eval_rollout_epoch=5"]
    )
    OmegaConf.set_struct(cfg, False)
    for part in ("train", "eval"):
        cfg.env[part].pop("rollout_epoch", None)
        if kept:
            cfg.env[part].rollout_epoch = 3
    ours = as_rlinf_counts(OmegaConf.to_container(cfg, resolve=True))
    theirs = validate(cfg, gpus=0)
    for key in ("env.train.rollout_epoch", "env.eval.rollout_epoch"):
        assert lookup(ours, key) == OmegaConf.select(theirs, key)
    assert lookup(ours, "env.train.rollout_epoch") == (3 if kept else 6)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        (
            {"algorithm.rollout_epoch": 3},
            ["algorithm.rollout_epoch=3 has no effect: env.train.rollout_epoch=1 takes its place"],
        ),
        ({"algorithm.rollout_epoch": 1}, []),
        ({"algorithm.eval_rollout_epoch": 3}, []),
        (
            {"algorithm.staleness_threshold": 3},
            [
                "algorithm.staleness_threshold=3 has no effect with algorithm.loss_type=actor_critic; the "
                "key here is async.train.max_staleness"
            ],
        ),
        (ASYNC_PPO, []),
    ],
)
def test_of_an_old_and_a_new_key_it_says_which_acts(changes, said):
    cfg = config(changes)
    assert list(overruled(cfg)) == said
    if "algorithm.eval_rollout_epoch" in changes:
        assert as_rlinf_counts(cfg)["env"]["eval"]["rollout_epoch"] == 3
