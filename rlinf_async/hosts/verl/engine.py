"""veRL's FSDP2 engine around a policy of the entry point group `rlinf_async.models`.

veRL's engine expects a Hugging Face model: `PolicyModelConfig` replaces veRL's model config, and
`PolicyConfig` the `config` attribute of the module.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id, get_device_name
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config.optimizer import build_optimizer
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import FSDPEngine

from rlinf_async.core.held_inputs import HeldInputs
from rlinf_async.core.precision import any_in_half
from rlinf_async.core.scores import INPUTS_FIELD
from rlinf_async.core.tensors import Tree, map_tensors, size_of
from rlinf_async.hosts.kit.sharded import reshard
from rlinf_async.hosts.policy_contract import scores_by
from rlinf_async.hosts.verl.units import why_no_units
from rlinf_async.hosts.workers.policy import VALUE_HEAD, make_policy
from rlinf_async.hosts.workers.settings import Adapters
from rlinf_async.loops.finite import SkippedSteps
from rlinf_async.loops.foreign import blaming_the_policy, contained
from rlinf_async.observe.files import write_whole
from rlinf_async.ray_runtime.processes.seeds import learner_seed

MODEL_TYPE = "vla_policy"
"""The name of `PolicyEngine` in veRL's registry of engines."""


@dataclass(kw_only=True)
class PolicyModelConfig:
    """The config of a learner rank's policy, with the field names that veRL's engine reads.

    Not frozen: veRL's training worker writes `model_type`.
    """

    section: dict[str, Any]
    """`vla.model` as plain data, for a builder of the group `rlinf_async.models`."""
    ckpt_path: str | None = None
    """`vla.ckpt_path`: a state dict with initial weights."""
    value_lr: float | None = None
    """veRL's `critic.optim.lr`: the learning rate of `value_head`. None: that of the policy."""
    adapters: Adapters | None = None
    """The policy's adapters, which this package adds; veRL's own `lora` fields stay empty."""
    seed: int = 0
    """The seed of new weights, the same on every rank."""

    model_type: str = MODEL_TYPE
    use_remove_padding: bool = False
    use_fused_kernels: bool = False
    lora: dict[str, Any] = field(default_factory=dict)
    lora_rank: int = 0
    enable_gradient_checkpointing: bool = False
    enable_activation_offload: bool = False
    trust_remote_code: bool = False

    def get(self, name: str, default: object = None) -> Any:
        return getattr(self, name, default)

    def get_processor(self) -> None:
        """Return None: a policy has no tokenizer to save."""
        return


class PolicyConfig:
    """The fields that veRL's wrapping and checkpoints read as `module.config`."""

    # True: veRL then does not wrap embeddings separately, which a policy may share or read directly.
    tie_word_embeddings = True
    name_or_path = ""

    def __init__(self, section: dict[str, Any]) -> None:
        self._section = section

    def save_pretrained(self, directory: str) -> None:
        """Write the policy's section into the file for a model's configuration."""
        content = json.dumps(self._section, indent=2, default=str) + "\n"
        write_whole(Path(directory, "config.json"), content.encode(), private=False)


@EngineRegistry.register(model_type=MODEL_TYPE, backend=["fsdp2"], device=["cpu", "cuda", "npu"])
class PolicyEngine(FSDPEngine):
    """Trains a policy that acts in an environment.

    `model_config` is a `PolicyModelConfig`. A batch has `forward_inputs`, or their numbers in `held_inputs`,
    and the fields that the loss function reads.
    """

    module: nn.Module

    def _build_module(self) -> nn.Module:
        """Return the policy, initialised with the same seed on every rank; later draws differ between
        ranks.
        """
        section = self.model_config.section
        build = partial(
            make_policy,
            section,
            PrecisionType.to_dtype(self.engine_config.model_dtype),
            ckpt_path=self.model_config.ckpt_path,
            seed=self.model_config.seed,
            adapters=self.model_config.adapters,
        )
        blame = blaming_the_policy(f"learner rank {self.rank}", built=str(section["model_type"]))
        policy = contained(build, blame)
        # All ranks have the same weights; from here on their random numbers (dropout) differ.
        torch.manual_seed(learner_seed(self.model_config.seed, self.rank))
        self._check_units(policy)
        return dress(policy, section)

    @cached_property
    def held_inputs(self) -> HeldInputs:
        """The policy's inputs for the samples of a batch."""
        return HeldInputs(pinned=get_device_name() == "cuda")

    def _check_units(self, policy: nn.Module) -> None:
        # veRL only asserts that there are classes to wrap, fails at null, and ignores a class that is not
        # there.
        wrap_policy = self.engine_config.wrap_policy or {}
        units = wrap_policy.get("transformer_layer_cls_to_wrap")
        if why := why_no_units(policy, units):
            raise ValueError(why)
        if units is None:
            wrap_policy.pop("transformer_layer_cls_to_wrap", None)

    def _build_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """Build the optimizer, with one parameter group for the policy and one for its value head, if it has
        one.
        """
        policy, value_head = _split(module)
        groups: list[dict[str, Any]] = [{"params": policy}]
        if value_head:
            own = self.model_config.value_lr
            lr = self.optimizer_config.lr if own is None else own
            groups.append({"params": value_head, "lr": lr})
        return build_optimizer(groups, self.optimizer_config)

    chosen: Callable[[TensorDict], TensorDict] | None = None
    """Selects the samples of an optimizer step that are trained; None: all."""

    def forward_backward_batch(
        self, data: TensorDict, loss_function: Callable[..., Any], forward_only: bool = False
    ) -> Any:
        """Make veRL's passes over micro-batches of the samples that `chosen` selects from `data`."""
        if self.chosen is not None and not forward_only:
            data = self.chosen(data)
        return super().forward_backward_batch(data, loss_function, forward_only)

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Score the actions of `micro_batch`, and return the loss of the scores; 0 without a loss
        function.
        """
        micro_batch = self._with_inputs(micro_batch).to(get_device_id())
        output = self.scores(
            micro_batch["forward_inputs"].to_dict(),
            entropy=tu.get_non_tensor_data(micro_batch, "calculate_entropy", default=False),
            values="returns" in micro_batch,
        )
        if loss_function is None:
            return torch.zeros((), device=get_device_id()), {"model_output": {}, "loss": 0.0, "metrics": {}}
        loss, metrics = loss_function(
            model_output=output, data=micro_batch, dp_group=self.get_data_parallel_group()
        )
        return loss, {"model_output": {}, "loss": loss.detach().item(), "metrics": metrics}

    def _with_inputs(self, micro_batch: TensorDict) -> TensorDict:
        numbers = micro_batch[INPUTS_FIELD]
        if not isinstance(numbers, torch.Tensor):
            return micro_batch
        # A copy, so that the inputs are gone with this pass: veRL keeps the micro-batches of a step.
        whole: TensorDict = micro_batch.copy()
        whole[INPUTS_FIELD] = tensor_dict(self.held_inputs.copied(numbers))
        return whole

    def scores(
        self, forward_inputs: Mapping[str, Any], *, entropy: bool = False, values: bool
    ) -> Mapping[str, torch.Tensor]:
        """Return the scores of actions by the present policy, from a call of the wrapped module."""
        # A call, not a method of the policy: FSDP2 gathers the root's parameters in a hook of the call.
        call = partial(
            self.module,
            forward_inputs=forward_inputs,
            compute_logprobs=True,
            compute_entropy=entropy,
            compute_values=values,
        )
        return scores_by(call, forward_inputs)

    @torch.no_grad()
    def passes(self, parts: Iterable[Tree], *, values: bool) -> Iterator[Mapping[str, torch.Tensor]]:
        """Yield the scores of each of `parts`, [N, ...]; sharded models need equally many parts on every
        rank.
        """
        # Without dropout, as in inference.
        self.module.eval()
        for part in parts:
            inputs: Any = part["forward_inputs"]
            on_device = map_tensors(lambda tensor: tensor.to(get_device_id()), inputs)
            yield self.scores(on_device, values=values)
        self.module.train()
        # A pass without gradients leaves the root unit gathered, even if its shards are written to
        # afterwards.
        reshard(self.module)

    @property
    def model_name(self) -> str:
        """The key that names the policy, with its value, for messages."""
        return f"vla.model.model_type={self.model_config.section['model_type']!r}"

    @property
    def is_half(self) -> bool:
        """True if a part of the forward pass is in 16 bits, as with veRL's FSDP2 by default."""
        config = self.engine_config
        cast = "bf16" if config.mixed_precision is None else config.mixed_precision.get("param_dtype", "bf16")
        return any_in_half((cast, config.model_dtype, self.model_config.section.get("precision")))

    skipped_steps: SkippedSteps | None = None
    """Counts the optimizer steps that veRL skips because gradients are not finite."""

    def optimizer_step(self) -> float:
        # The norm before clipping; if it is not finite, veRL has skipped the step.
        norm = float(super().optimizer_step())
        if self.skipped_steps is not None:
            self.skipped_steps.step(norm, scaled=getattr(self, "scaler", None) is not None)
        return norm

    @torch.no_grad()
    def divide_gradients(self, count: float) -> None:
        """Divide summed gradients by `count`."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                # By 1 at least: gradients of a step without a valid sample are 0, and 0 / 0 is NaN.
                parameter.grad.div_(max(1.0, count))


def _split(module: nn.Module) -> tuple[Sequence[nn.Parameter], Sequence[nn.Parameter]]:
    parameters = list(module.named_parameters())
    value_head = [parameter for name, parameter in parameters if VALUE_HEAD in name.split(".")]
    return [parameter for name, parameter in parameters if VALUE_HEAD not in name.split(".")], value_head


def dress(policy: Any, section: dict[str, Any]) -> Any:
    """Give `policy` the attributes `config` and `can_generate`, which veRL's engine reads, unless it has
    them.

    Raises:
        ValueError: veRL cannot read the policy's own `config`.
    """
    if not hasattr(policy, "config"):
        policy.config = PolicyConfig(section)
    elif not (hasattr(policy.config, "save_pretrained") and hasattr(policy.config, "tie_word_embeddings")):
        raise ValueError(
            f"vla.model.model_type={section.get('model_type')!r}: {type(policy).__name__}.config is a "
            f"{type(policy.config).__name__}, but veRL reads an attribute of that name as the configuration "
            "of a Hugging Face model; give it another name, or `save_pretrained` and `tie_word_embeddings`"
        )
    if not hasattr(policy, "can_generate"):
        # veRL's checkpoints call it before they write a generation config.
        policy.can_generate = lambda: False
    return policy


def tensor_dict(tree: Tree) -> TensorDict:
    """Return samples, [N, ...], in veRL's form."""
    tensors = {
        name: tensor_dict(value) if isinstance(value, dict) else value
        for name, value in tree.items()
        if value is not None
    }
    return TensorDict(tensors, batch_size=[size_of(tree)])
