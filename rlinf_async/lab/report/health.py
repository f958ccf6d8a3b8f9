"""The health of learning: losses, distances between policies, and weights, as the learner measures them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from rlinf_async.lab.report.charts import over_steps
from rlinf_async.lab.report.content import Figure
from rlinf_async.lab.report.formatting import number, share
from rlinf_async.lab.report.lines import Form, points
from rlinf_async.lab.report.run_view import Subject


@dataclass(frozen=True, kw_only=True)
class Sign:
    """One measure of learning; `names` are those that frameworks have for it, at the end of a metric's."""

    title: str
    names: tuple[str, ...]
    note: str
    form: Form = number
    low: float | None = None
    high: float | None = None
    zero_is_none: bool = False
    """True if a run that reports nothing but 0 has not measured it."""


HEALTH_SIGNS = (
    Sign(
        title="Policy loss",
        names=("actor/policy_loss", "actor/pg_loss", "train/loss"),
        note="It moves around a level: its gradient counts, not its value.",
    ),
    Sign(
        title="Value loss",
        names=("critic/value_loss", "critic/vf_loss"),
        note="It falls while the critic learns, and rises where returns grow faster than it follows.",
        low=0.0,
    ),
    Sign(
        title="Explained variance of the critic",
        names=("critic/explained_variance", "critic/vf_explained_var"),
        note="1 is a perfect critic, 0 one that knows no more than the mean; below -1 is drawn at -1.",
        low=-1.0,
        high=1.0,
    ),
    Sign(
        title="Entropy",
        names=("actor/entropy_loss", "actor/entropy"),
        note="How random actions are. Near its least, nothing new is tried.",
        zero_is_none=True,
    ),
    Sign(
        title="Approximate KL",
        names=("actor/approx_kl", "actor/ppo_kl", "train/approx_kl"),
        note="How far a batch moves the policy from where its training began.",
    ),
    Sign(
        title="Clip fraction",
        names=("actor/clip_fraction", "actor/pg_clipfrac"),
        note="The share of samples whose ratio the clip has cut.",
        form=share,
        low=0.0,
    ),
    Sign(
        title="Importance weight",
        names=("actor/behaviour_weight", "train/behaviour_weight"),
        note="Of the policy that training begins with, over the one that acted, on average; 1 where both "
        "are the same.",
    ),
    Sign(
        title="KL from the acting policy",
        names=("actor/behaviour_kl",),
        note="How far staleness, and differences of numerics, have taken the learner from what acted.",
    ),
    Sign(
        title="Mismatch at the same version",
        names=("mismatch/lag_0/abs_log",),
        note="The mean distance of log-probabilities between learner and inference with the same weights: "
        "rounding, unless kernels or preprocessing differ.",
        low=0.0,
    ),
    Sign(
        title="Gradient norm",
        names=("actor/grad_norm", "train/grad_norm"),
        note="Before it is clipped.",
        low=0.0,
    ),
)


def health(subjects: Sequence[Subject]) -> list[Figure]:
    """A figure for each sign that a run has measured in two steps or more."""
    return [figure for sign in HEALTH_SIGNS if (figure := _figure(subjects, sign)) is not None]


def _figure(subjects: Sequence[Subject], sign: Sign) -> Figure | None:
    series = [(subject, _measured(subject, sign)) for subject in subjects]
    return over_steps(sign.title, series, note=sign.note, form=sign.form, low=sign.low, high=sign.high)


def _measured(subject: Subject, sign: Sign) -> list[tuple[float, float]]:
    present = dict.fromkeys(name for reported in subject.run.metrics for name in reported)
    metric = next((name for end in sign.names for name in present if f"/{name}".endswith(f"/{end}")), None)
    values = points(subject, metric, "step") if metric is not None else []
    return [] if sign.zero_is_none and not any(value for _, value in values) else values
