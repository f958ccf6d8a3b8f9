"""What is emulated: service times of simulators, inference, learner and weights."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

from rlinf_async.simulators.emulated import EnvService


@dataclass(frozen=True, kw_only=True)
class PolicyService:
    """What the policy takes, in seconds; see `hosts.rlinf.emulated_policy`."""

    act_fixed_s: float
    act_sample_s: float
    train_sample_s: float
    score_share: float = 1 / 3
    weights_mb: float = 16.0

    def act_s(self, envs: int) -> float:
        """What a forward pass for `envs` environments takes."""
        return self.act_fixed_s + envs * self.act_sample_s


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A task and a machine: service times, or a config whose simulators and policy are real.

    A step collects `envs * decisions` samples, of `chunk` environment steps each.
    """

    name: str
    what: str
    config: str = "bench/emulated"
    env: EnvService | None = None
    policy: PolicyService | None = None
    envs: int = 64
    decisions: int = 8
    chunk: int = 10
    update_epoch: int = 1
    optimizer_steps: int = 2
    micro_batch_size: int = 128
    simulator: str = "metaworld"
    model: str = "smol_vla"
    """The policy of a config whose simulators and policy are real."""
    extra: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Modes that cannot run it."""

    @property
    def samples(self) -> int:
        """Decisions trained per step."""
        return self.envs * self.decisions

    @property
    def training_calls(self) -> int:
        """Micro-batches per step."""
        return self.update_epoch * self.samples // self.micro_batch_size

    def overrides(self, *, log: str) -> list[str]:
        """What makes the config this scenario, whose processes write down into `log` what they served."""
        return [
            f"env.train.total_num_envs={self.envs}",
            f"env.train.max_episode_steps={self.decisions * self.chunk}",
            f"algorithm.update_epoch={self.update_epoch}",
            f"actor.micro_batch_size={self.micro_batch_size}",
            f"actor.global_batch_size={self.samples // self.optimizer_steps}",
            *(self._emulated(log) if self.env else self._logged(log)),
            *self.extra,
        ]

    def _emulated(self, log: str) -> list[str]:
        return [
            *_settings("env.train.service", self.env),
            *_settings("actor.model.service", self.policy),
            f"env.train.env_type={self.simulator}",
            f"env.train.auto_reset={self.env is not None and self.env.episode > 0}",
            f"env.train.service_log={log}",
        ]

    def _logged(self, log: str) -> list[str]:
        """The policy of the config, with a record of what it serves."""
        return [
            "actor.model.model_type=logged",
            f"+actor.model.logged={self.model}",
            f"+actor.model.service_log={log}",
        ]


def _settings(path: str, service: Any) -> list[str]:
    return [f"{path}.{item.name}={getattr(service, item.name)}" for item in fields(service)]


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
        Scenario(
            name="metaworld",
            what="real: rendered Meta-World and a small vision-language-action policy, on these cores",
            config="metaworld_ppo_vla",
            envs=16,
            decisions=8,
            chunk=5,
            micro_batch_size=16,
            extra=("env.train.processes=2",),  # RLinf's modes step on both cores too
        ),
        Scenario(
            name="libero-real",
            what="real: LIBERO's object suite through RLinf's environment, the same policy",
            config="libero_object_ppo_vla",
            envs=4,
            decisions=4,
            chunk=5,
            micro_batch_size=4,
        ),
        Scenario(
            name="maniskill-real",
            what="real: ManiSkill's PickCube on the CPU through RLinf's environment, RLinf's MLP policy",
            config="maniskill_ppo_mlp",
            envs=4,
            decisions=50,
            chunk=1,
            update_epoch=8,
            optimizer_steps=4,
            micro_batch_size=50,
            model="mlp_policy",
            # A process for each simulator, which holds one environment: nothing divides into two stages.
            extra=("cluster.component_placement.env.placement='0:0-3'", "rollout.pipeline_stage_num=1"),
            without=("stock-sync-2",),
        ),
    )
}
