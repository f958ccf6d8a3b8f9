"""Passes of an RLinf actor over what was taken, as its learner makes them."""

from functools import partial

from rlinf_async.core import premise
from rlinf_async.hosts.kit import scoring
from rlinf_async.hosts.rlinf.learner import forward, is_half


def name_of(cfg):
    """The key of a config that names the policy, and its value, as the learner's errors have it."""
    return f"actor.model.model_type={cfg.actor.model.model_type!r}"


def recompute(actor, rollout, last, *, micro_batch_size, values):
    """`rollout` is anchored at the policy of `actor`; `last` are the inputs of the last observation."""
    by = partial(forward, actor, values=values)
    model = name_of(actor.cfg)
    scoring.recompute(rollout, last, by, micro_batch_size=micro_batch_size, values=values, model=model)


def compare(actor, rollout, batch, *, most, values):
    """The sums from which the premise of a run is judged."""
    by = partial(forward, actor, values=values)
    return scoring.compare(rollout, batch, by, most=most, values=values)


def judge(sums, cfg, warn):
    """The premise of a run of RLinf's config."""
    return premise.judge(sums, model=name_of(cfg), half=is_half(cfg.actor), warn=warn)
