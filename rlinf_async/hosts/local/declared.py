"""Adapts environments and policies of other packages to the local host.

Environments have the interface of `rlinf_async.envs`, policies that of `rlinf_async.models`; see
docs/extending.md. A policy's `forward_inputs` take the place of states.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any

import torch
from omegaconf import DictConfig, OmegaConf
from torch.utils._python_dispatch import TorchDispatchMode

from rlinf_async.core.config_keys import completed
from rlinf_async.core.tensors import Tree
from rlinf_async.entry_points import ENVS_GROUP, MODELS_GROUP, load_class
from rlinf_async.hosts.async_block import plain
from rlinf_async.hosts.contract import check_environments, is_set
from rlinf_async.hosts.judge.reasons import refuse
from rlinf_async.hosts.kit.playing import draw_last_only
from rlinf_async.hosts.kit.ratios import at_ratio_level, scored_in
from rlinf_async.hosts.kit.rebuilds import Rebuilds
from rlinf_async.hosts.local.policy import ActorCritic, PolicyFactory
from rlinf_async.hosts.local.settings import LocalSettings
from rlinf_async.hosts.local.shard import EnvFactory
from rlinf_async.hosts.local.whole_process import WholeProcess
from rlinf_async.hosts.policy_contract import checked_decision, checked_policy, keeping_defaults, scores_by
from rlinf_async.hosts.tasks import task_reasons
from rlinf_async.loops.foreign import blaming_the_policy, contained

SEEDED_TAG = torch.Tag.nondeterministic_seeded
"""torch's tag for operations that draw random numbers."""
ATEN_OPERATIONS = torch.ops.aten
LIKE_OPERATIONS = {
    ATEN_OPERATIONS.rand_like: ATEN_OPERATIONS.uniform_,
    ATEN_OPERATIONS.randn_like: ATEN_OPERATIONS.normal_,
}
"""Random operations that take no generator in some versions of torch, and in-place operations that do."""


def environments_of(cfg: DictConfig, settings: LocalSettings) -> EnvFactory:
    """Return a factory for shards of the class that `env.env_class` names.

    Raises:
        ValueError: no package provides it, its import changes process-wide settings, or
            the config has the environments take on tasks and they cannot.
    """
    name, process = cfg.env.env_class, WholeProcess()
    make = load_class(ENVS_GROUP, name)
    process.check(f"the environments of env.env_class={name}, when they are imported,")
    section = completed(plain(cfg.env), settings.usual_env)
    refuse(list(task_reasons(section, settings.asynchrony, key="env")))
    rebuilds = Rebuilds()

    def build(first: int, size: int) -> Any:
        # All shards have the same size, and `first` is a multiple of it.
        shard = first // size
        shard_section = rebuilds.seeded("train", shard, OmegaConf.create(section))
        rebuilds.count("train", shard)  # for the next time
        env = make(shard_section, size, shard, settings.plan.shards, None)
        if is_set(env, "auto_reset", False):
            raise ValueError(
                f"{type(env).__name__}.auto_reset is true: a rollout of the local host begins with a reset; "
                "use another env_class"
            )
        check_environments(env, section, key="env")
        if settings.asynchrony.skip.frames:
            draw_last_only(env)
        return env

    return build


def policy_of(cfg: DictConfig) -> PolicyFactory:
    """Return a factory for the policy that `model.model_type` names.

    Raises:
        ValueError: no package provides it.
    """
    name = cfg.model.model_type
    builder = load_class(MODELS_GROUP, name)

    def build() -> torch.nn.Module:
        with keeping_defaults():
            policy = checked_policy(builder(cfg.model, torch.float32))
        if not any(parameter.requires_grad for parameter in policy.parameters()):
            raise ValueError(f"{type(policy).__name__} has no parameter that requires a gradient")
        return policy

    # A declared policy ignores the sizes that a factory gets, as it sees whole observations.
    return lambda **_: DeclaredPolicy(contained(build, blaming_the_policy("this process", built=name)))


class DeclaredPolicy(ActorCritic):
    """A package's policy, which samples its own actions; log-probabilities are summed over the decision."""

    def __init__(self, policy: torch.nn.Module) -> None:
        super().__init__()
        self.policy = policy

    @property
    def critic(self) -> torch.nn.Module:
        """The policy's `value_head`, as in RLinf's models; a policy without one has one learning rate."""
        head: torch.nn.Module = getattr(self.policy, "value_head", torch.nn.Module())
        return head

    def states_of(self, observation: dict[str, Any]) -> Any:
        return observation

    def act(self, states: Any, noise: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, Tree]:
        """Return actions [B, chunk, action_dim], log-probabilities [B], values [B], and forward inputs."""
        # The seed follows from the whole batch's noise: scaled, so that fractions count, and not negative, as
        # generators require.
        with OwnChance(int(noise.double().sum().mul(2**20)) % 2**63):
            decision = self.policy.predict_action_batch(env_obs=states, mode="train")  # type: ignore[operator]
        actions, result = checked_decision(decision, len(noise), scored=True)
        logprobs = at_ratio_level(result["prev_logprobs"].float(), "chunk", 1)
        values = _values(result.get("prev_values"), logprobs)
        return actions.float(), logprobs, values, result["forward_inputs"]

    def score(self, inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        self.scored = scored_in(inputs)
        needed = {"compute_logprobs": True, "compute_entropy": False, "compute_values": True}
        forward = partial(self.policy, forward_inputs=inputs, **needed)
        scores = scores_by(partial(contained, forward, blaming_the_policy("a scoring pass")), inputs)
        if scores.get("values") is None and hasattr(self.policy, "value_head"):
            raise ValueError(
                f"{type(self.policy).__name__} has a value_head, and its forward has given no values"
            )
        logprobs = at_ratio_level(scores["logprobs"].float(), "chunk", 1)
        return logprobs, _values(scores.get("values"), logprobs)


def _values(values: torch.Tensor | None, logprobs: torch.Tensor) -> torch.Tensor:
    """Return values [B]; zeros for a policy without a critic.

    Raises:
        ValueError: a decision has several values.
    """
    if values is None:
        return torch.zeros_like(logprobs)
    if values.numel() != (size := len(values)):
        raise ValueError(
            f"the policy has given values {list(values.shape)} for {size} decisions; expected was "
            f"[{size}] or [{size}, 1]"
        )
    return values.float().flatten()


class OwnChance(TorchDispatchMode):
    """A context: inside it, all random operations of this thread draw from generators with its own seed.

    torch's default generators belong to the whole process: seeding them here would make environments, which
    run in other threads meanwhile, draw the same numbers again and again. In this block each random operation
    gets a generator for its device instead, which gives the same numbers as the default one would after
    `torch.manual_seed(seed)`. A few fused CUDA operations take no generator, and draw from the default one.
    """

    def __init__(self, seed: int) -> None:
        super().__init__()
        self._seed = seed
        self._generators: dict[torch.device, torch.Generator] = {}

    def __torch_dispatch__(
        self,
        func: Any,
        types: Iterable[type],
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        options = kwargs or {}
        if SEEDED_TAG not in func.tags or options.get("generator") is not None:
            return func(*args, **options)
        return self._draw(func, args, options)

    def _draw(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        device = _device(args, kwargs)
        if device.type not in ("cpu", "cuda"):
            return func(*args, **kwargs)
        own, packet = {**kwargs, "generator": self._generator(device)}, func.overloadpacket
        if any(argument.name == "generator" for argument in func._schema.arguments):
            return func(*args, **own)
        if packet in LIKE_OPERATIONS:
            return LIKE_OPERATIONS[packet](torch.empty_like(*args, **kwargs), generator=own["generator"])
        if packet is ATEN_OPERATIONS.native_dropout:
            return _dropout(*args, generator=own["generator"])
        if "generator" in packet.overloads():
            return packet(*args, **own)
        return func(*args, **kwargs)

    def _generator(self, device: torch.device) -> torch.Generator:
        if device not in self._generators:
            self._generators[device] = torch.Generator(device).manual_seed(self._seed)
        return self._generators[device]


def _device(args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> torch.device:
    """Return the device on which an operation draws: its argument `device`, or that of its first tensor."""
    if kwargs.get("device") is not None:
        return torch.device(kwargs["device"])
    tensors = (value for value in (*args, *kwargs.values()) if isinstance(value, torch.Tensor))
    first = next(tensors, None)
    return torch.device("cpu") if first is None else first.device


def _dropout(
    values: torch.Tensor, probability: float, train: bool | None, *, generator: torch.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """`native_dropout` with a generator: returns the scaled values and the mask of those kept."""
    if train is False:
        return values, torch.ones_like(values, dtype=torch.bool)
    mask = torch.empty_like(values, dtype=torch.bool).bernoulli_(1 - probability, generator=generator)
    scale = 0.0 if probability == 1 else 1 / (1 - probability)
    return values * mask * scale, mask
