"""What is emulated: service times of simulators, inference, learner and weights."""

from __future__ import annotations

from dataclasses import dataclass, field, fields

from rlinf_async.simulators.emulated import EnvService

CHUNK = 10
"""Simulator steps in a decision."""


@dataclass(frozen=True, kw_only=True)
class PolicyService:
    """What the policy takes, in seconds; see `hosts.rlinf.emulated_policy`."""

    act_fixed_s: float
    act_sample_s: float
    train_sample_s: float
    score_share: float = 1 / 3
    weights_mb: float = 16.0


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A machine and a task, as service times. All scenarios collect `envs * decisions` samples a step."""

    name: str
    what: str
    env: EnvService
    policy: PolicyService
    envs: int = 64
    decisions: int = 8
    update_epoch: int = 1
    optimizer_steps: int = 2
    micro_batch_size: int = 128
    simulator: str = "metaworld"
    extra: tuple[str, ...] = field(default=())

    @property
    def samples(self) -> int:
        """Decisions trained per step."""
        return self.envs * self.decisions

    @property
    def training_calls(self) -> int:
        """Micro-batches per step."""
        return self.update_epoch * self.samples // self.micro_batch_size

    @property
    def train_s(self) -> float:
        """Seconds of training in a step."""
        return self.update_epoch * self.samples * self.policy.train_sample_s

    @property
    def anchor_s(self) -> float:
        """Seconds of one pass without gradients over what a step's environments showed: an exact anchor.

        It includes the observations at which rollouts are cut, whose values advantages are estimated with.
        """
        shown = self.envs * (self.decisions + 1)
        return shown * self.policy.train_sample_s * self.policy.score_share

    @property
    def act_alone_s(self) -> float:
        """The shortest time in which inference answers: one environment, or all that step at once."""
        together = self.envs if self.env.vectorised_s else 1
        return self.policy.act_fixed_s + together * self.policy.act_sample_s

    @property
    def inference_s(self) -> float:
        """Seconds of inference in a step, if every batch held all environments."""
        return self.decisions * (self.policy.act_fixed_s + self.envs * self.policy.act_sample_s)

    def overrides(self) -> list[str]:
        """For the config `bench/emulated`."""
        service = {item.name: getattr(self.env, item.name) for item in fields(self.env)}
        policy = {item.name: getattr(self.policy, item.name) for item in fields(self.policy)}
        return [
            *(f"env.train.service.{name}={value}" for name, value in service.items()),
            *(f"actor.model.service.{name}={value}" for name, value in policy.items()),
            f"env.train.env_type={self.simulator}",
            f"env.train.total_num_envs={self.envs}",
            f"env.train.max_episode_steps={self.decisions * CHUNK}",
            f"env.train.auto_reset={self.env.episode > 0}",
            f"algorithm.update_epoch={self.update_epoch}",
            f"actor.micro_batch_size={self.micro_batch_size}",
            f"actor.global_batch_size={self.samples // self.optimizer_steps}",
            *self.extra,
        ]


# Ten LIBERO steps, rendered for two cameras, take 0.6 to 1.3 s on a core, a reset 10 to 25 steps; a policy
# that answers in some 30 ms takes a thirtieth of that. Scaled down by three, so that a bench ends.
LIBERO_ENV = EnvService(decision_s=0.3, cv=0.3, fastest=0.7, slowest=1.4, reset_s=0.525)
SLOWEST_S = 8 * (1.4 * 0.3 + 0.0103) + 0.525
"""What a rollout of the slowest of those environments takes, alone with the policy."""


def _policy(train_s: float) -> PolicyService:
    """A policy whose training takes `train_s` for the 512 samples of a step."""
    return PolicyService(act_fixed_s=0.01, act_sample_s=0.0003, train_sample_s=train_s / 512)


SCENARIOS = {
    scenario.name: scenario
    for scenario in (
        Scenario(
            name="libero",
            what="CPU simulators, a core each; training takes half as long as a rollout",
            env=LIBERO_ENV,
            policy=_policy(SLOWEST_S / 2),
        ),
        Scenario(
            name="balanced",
            what="the same simulators; training takes as long as a rollout of the slowest",
            env=LIBERO_ENV,
            policy=_policy(SLOWEST_S),
        ),
        Scenario(
            name="train-bound",
            what="simulators twice as fast; training takes as long as in balanced",
            env=EnvService(decision_s=0.15, cv=0.3, fastest=0.7, slowest=1.4, reset_s=0.26),
            policy=_policy(SLOWEST_S),
        ),
        Scenario(
            name="maniskill",
            what="one simulator that steps all environments at once; training takes 0.6 of a rollout",
            env=EnvService(vectorised_s=0.3, reset_s=0.3),
            policy=_policy(1.8),
            simulator="maniskill",
        ),
        Scenario(
            name="long-tail",
            what="one simulator step in twenty takes 20 times as long; training takes 0.8 of a rollout",
            env=EnvService(decision_s=0.15, cv=0.3, spike_share=0.05, spike_factor=20.0, reset_s=0.26),
            policy=_policy(2.5),
        ),
        Scenario(
            name="resets",
            what="episodes end after 8 decisions on average, and a reset takes 17 simulator steps",
            env=EnvService(decision_s=0.2, cv=0.3, reset_s=0.34, episode=8.0),
            policy=_policy(2.0),
        ),
    )
}
