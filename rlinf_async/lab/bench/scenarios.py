"""The tasks and machines of the bench."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from functools import partial
from typing import Any

from rlinf_async.lab.emulated.service import EnvService


@dataclass(frozen=True, kw_only=True)
class PolicyService:
    """Seconds of the work of an emulated policy; see `emulated.policy`."""

    act_fixed_s: float
    act_sample_s: float
    train_sample_s: float
    score_share: float = 1 / 3
    weights_mb: float = 16.0

    def act_s(self, envs: int) -> float:
        """Return the seconds of a forward pass for `envs` environments."""
        return self.act_fixed_s + envs * self.act_sample_s


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """A task and a machine: service times, or a config with real simulators and a real policy.

    A step collects `envs * decisions` samples, of `chunk` environment steps each. If decisions of
    environments need the policy's device (`EnvService.device_s`), one environment has the device at a time.
    """

    name: str
    what: str
    config: str = "bench/emulated"
    """The name of a config of RLinf."""
    env: EnvService | None = None
    policy: PolicyService | None = None
    envs: int = 64
    env_workers: int = 1
    decisions: int = 8
    chunk: int = 10
    update_epoch: int = 1
    optimizer_steps: int = 2
    micro_batch_size: int = 128
    simulator: str = "metaworld"
    model: str = "smol_vla"
    """The policy of a config with real simulators and a real policy."""
    extra: tuple[str, ...] = ()
    without: tuple[str, ...] = ()
    """Modes that cannot run this scenario."""

    @property
    def ends_early(self) -> bool:
        """True if episodes end within a rollout, and no episode follows within it."""
        return self.env is not None and self.env.lengths is not None

    @property
    def takes_tasks(self) -> bool:
        """True if a free environment may take on the next task; False if episodes outlast a rollout."""
        return self.env is None or not self.env.episode

    @property
    def samples(self) -> int:
        """Decisions trained per step."""
        return self.envs * self.decisions

    @property
    def micro_batches(self) -> int:
        """Forward and backward passes per step."""
        return self.update_epoch * self.samples // self.micro_batch_size

    def overrides(self, *, log: str) -> list[str]:
        """Return the overrides that make the config this scenario; processes log their spans into `log`."""
        return [
            f"env.train.total_num_envs={self.envs}",
            f"env.train.max_episode_steps={self.decisions * self.chunk}",
            f"algorithm.update_epoch={self.update_epoch}",
            f"actor.micro_batch_size={self.micro_batch_size}",
            f"actor.global_batch_size={self.samples // self.optimizer_steps}",
            *(self.emulated(log=log, model="actor.model") if self.env else self._logged(log)),
            *self.extra,
        ]

    def emulated(self, *, log: str, model: str) -> list[str]:
        """Return the overrides with this scenario's emulated times; `model` is the policy's section."""
        env = self.env
        assert env is not None, f"{self.name} is not emulated"
        device = f"{log}/device" if env.device_s else "null"
        return [
            *_settings("env.train.service", env),
            *_settings(f"{model}.service", self.policy),
            f"env.train.env_type={self.simulator}",
            f"env.train.auto_reset={env.episode > 0}",
            f"env.train.service_log={log}",
            f"env.train.service_device={device}",
        ]

    def _logged(self, log: str) -> list[str]:
        """Return the overrides that wrap the config's policy into one that logs its work into `log`."""
        return [
            "actor.model.model_type=logged",
            f"+actor.model.logged={self.model}",
            f"+actor.model.service_log={log}",
        ]


def _settings(path: str, service: Any) -> list[str]:
    return [f"{path}.{item.name}={getattr(service, item.name)}" for item in fields(service)]


# Ten LIBERO steps, rendered for two cameras, take 0.6 to 1.3 s on a core, and a reset takes 10 to 25 steps; a
# policy answers in some 30 ms, a thirtieth of that. All times are a third of these, to keep a bench short.
LIBERO_ENV = EnvService(decision_s=0.3, cv=0.3, fastest=0.7, slowest=1.4, reset_s=0.525)
SLOWEST_S = 8 * (1.4 * 0.3 + 0.0103) + 0.525
"""Seconds of a rollout of the slowest of those environments, alone with the policy."""

# A simulator that steps all environments at once is not divided among eight env workers, nor are four
# environments, nor two cores.
UNDIVIDED_MODES = ("stock-decoupled",)


def _policy(train_s: float, *, samples: int = 512, weights_mb: float = 16.0) -> PolicyService:
    """Return a policy that is trained in `train_s` on `samples`, the samples of all epochs of a step."""
    return PolicyService(
        act_fixed_s=0.01, act_sample_s=0.0003, train_sample_s=train_s / samples, weights_mb=weights_mb
    )


EMULATED_SCENARIOS = (
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
        without=UNDIVIDED_MODES,
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
        name="ends-early",
        what="as libero, but a success ends after 60/512 to 193/512 of the horizon, and 60 to 96 % succeed",
        env=EnvService(
            decision_s=0.12,
            cv=0.3,
            fastest=0.7,
            slowest=1.4,
            reset_s=0.525,
            shortest=32 * 60 / 512,
            longest=32 * 193 / 512,
            success=0.6,
            success_gain=0.045,
        ),
        policy=_policy(3.0, samples=64 * 32),
        decisions=32,
    ),
    Scenario(
        name="wide-spread",
        what="the slowest of ten tasks takes eight times as long as the fastest; training as in libero",
        env=replace(LIBERO_ENV, fastest=0.175),
        policy=_policy(SLOWEST_S / 2),
    ),
    Scenario(
        name="fast",
        what="simulators that take 20 to 50 ms for a decision, 32 of them a rollout; training takes 1 s",
        env=EnvService(decision_s=0.035, cv=0.3, fastest=0.6, slowest=1.4, reset_s=0.06),
        policy=_policy(1.0, samples=2048),
        decisions=32,
    ),
    Scenario(
        name="four-epochs",
        what="as balanced, but every sample is trained on four times in that time",
        env=LIBERO_ENV,
        policy=_policy(SLOWEST_S, samples=4 * 512),
        update_epoch=4,
    ),
    Scenario(
        name="large-weights",
        what="as libero, with 1 GB of weights to publish",
        env=LIBERO_ENV,
        policy=_policy(SLOWEST_S / 2, weights_mb=1000.0),
    ),
    Scenario(
        name="collocated",
        what="as libero, but simulators draw for 3 ms a decision on the device that the policy runs on",
        env=replace(LIBERO_ENV, device_s=0.003),
        policy=_policy(SLOWEST_S / 2),
    ),
)

_vla = partial(Scenario, chunk=5, without=UNDIVIDED_MODES)

REAL_SCENARIOS = (
    _vla(
        name="metaworld",
        what="real: rendered Meta-World and a small vision-language-action policy, on these cores",
        config="metaworld_ppo_vla",
        envs=16,
        micro_batch_size=16,
        extra=("env.train.processes=2",),  # RLinf's modes step on both cores too
    ),
    _vla(
        name="libero-real",
        what="real: LIBERO's object suite through RLinf's environment, the same policy",
        config="libero_object_ppo_vla",
        envs=4,
        decisions=4,
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
        # Every simulator has a process and one environment, so that workers cannot divide into two stages.
        env_workers=4,
        extra=("rollout.pipeline_stage_num=1",),
        without=("stock-sync-2", *UNDIVIDED_MODES),
    ),
)

SCENARIOS_BY_NAME = {scenario.name: scenario for scenario in (*EMULATED_SCENARIOS, *REAL_SCENARIOS)}
