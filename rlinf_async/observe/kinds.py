"""The kinds of spans that a run records: one table for all who show them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto


class Role(Enum):
    """The role of a process in the time of a span, in order of weight.

    Where spans overlap, the seconds belong to the weightier role: a fetch during training is no wait.
    """

    WORK = auto()
    PREPARATION = auto()
    RESTARTING = auto()
    CARRYING = auto()
    WAITING = auto()
    HELD_BACK = auto()
    EVALUATION = auto()
    SAVING = auto()


@dataclass(frozen=True)
class Kind:
    """One kind of span, and the way it is shown.

    `parts` are the parts of a run that record it. A kind without a role consists of others, or overlaps with
    them. `track` is its row in a trace, where it has no shard whose row it belongs to.
    """

    name: str
    words: str
    parts: tuple[str, ...]
    role: Role | None = None
    track: str = ""


ENV, INFERENCE, LEARNER, DRIVER = ("env",), ("inference",), ("learner",), ("driver",)
SPAN_KINDS = {
    kind.name: kind
    for kind in (
        Kind("gate", "at the gate", ENV, Role.HELD_BACK),
        Kind("reset", "resetting", ENV, Role.PREPARATION),
        Kind("ask", "waiting for actions", ENV, Role.WAITING),
        Kind("step", "stepping", ENV, Role.WORK),
        Kind("restart", "being built anew", ENV, Role.RESTARTING),
        Kind("put", "handing over a rollout", ENV, Role.CARRYING),
        Kind("rollout", "in a rollout", ENV),
        Kind("queued", "in the queue", ("requests",), track="queue"),
        Kind("idle", "waiting for requests", INFERENCE, Role.WAITING, "policy"),
        Kind("forward", "in a forward pass", INFERENCE, Role.WORK, "policy"),
        Kind("score", "scoring for the learner", INFERENCE, Role.WORK, "policy"),
        Kind("load", "loading weights", INFERENCE, Role.CARRYING, "weights"),
        Kind("fetch", "waiting for trajectories", LEARNER, Role.WAITING, "trajectories"),
        Kind("accept", "training", LEARNER, Role.WORK, "training"),
        Kind("finish", "training", LEARNER, Role.WORK, "training"),
        Kind("micro-batch", "in a micro-batch", LEARNER, track="training"),
        Kind("optimizer step", "in an optimizer step", LEARNER, track="training"),
        Kind("copy", "copying weights", LEARNER, Role.CARRYING, "publication"),
        Kind("send", "sending weights", LEARNER, track="publication"),
        Kind("offload", "moving on or off the accelerator", INFERENCE + LEARNER, Role.CARRYING, "weights"),
        Kind("learn", "waiting for the learner", DRIVER, track="steps"),
        Kind("evaluate", "evaluating", DRIVER, Role.EVALUATION, "steps"),
        Kind("save", "saving a checkpoint", DRIVER, Role.SAVING, "steps"),
    )
}
"""All kinds by name. Those of one part and one role are counted together, under the words of the first."""


def words(kind: str) -> str:
    """Return the words for a span of this kind; its name where the table does not have it."""
    return SPAN_KINDS[kind].words if kind in SPAN_KINDS else kind
