"""A task and a machine that schedules are compared on."""

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

    A step collects `envs * decisions` samples, of `chunk` environment steps each. Where an environment's
    decision needs the policy's device (`EnvService.device_s`), one of them has the device at a time.
    """

    name: str
    what: str
    config: str = "bench/emulated"
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
            *(self._emulated(self.env, log) if self.env else self._logged(log)),
            *self.extra,
        ]

    def _emulated(self, env: EnvService, log: str) -> list[str]:
        device = f"{log}/device" if env.device_s else "null"
        return [
            *_settings("env.train.service", env),
            *_settings("actor.model.service", self.policy),
            f"env.train.env_type={self.simulator}",
            f"env.train.auto_reset={env.episode > 0}",
            f"env.train.service_log={log}",
            f"env.train.service_device={device}",
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
