"""veRL's FSDP engine around a policy of the entry point group `rlinf_async.models`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from functools import partial
from typing import Any

import torch
from tensordict import TensorDict
from torch import nn
from torch.distributed.fsdp import FSDPModule
from torch.distributed.tensor import DTensor
from verl.utils import tensordict_utils as tu
from verl.utils.device import get_device_id
from verl.utils.torch_dtypes import PrecisionType
from verl.workers.config.optimizer import build_optimizer
from verl.workers.engine import EngineRegistry
from verl.workers.engine.fsdp import FSDPEngine

from rlinf_async.hosts.verl.model_config import MODEL_TYPE, dress
from rlinf_async.hosts.workers.adapters import VALUE_HEAD
from rlinf_async.hosts.workers.policy import make_policy
from rlinf_async.loops.foreign import blaming_the_policy, contained
from rlinf_async.loops.skipped_steps import SkippedSteps


@EngineRegistry.register(model_type=MODEL_TYPE, backend=["fsdp2"], device=["cpu", "cuda", "npu"])
class PolicyEngine(FSDPEngine):
    """Trains a policy that acts in an environment.

    `model_config` is a `PolicyModelConfig`. A batch holds `forward_inputs`, and what the loss function reads.
    """

    module: nn.Module

    def _build_module(self) -> nn.Module:
        """The policy, of one seed on every rank; what is drawn later is a rank's own."""
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
        # Every rank has built the same weights; from here on their draws (dropout) differ.
        torch.manual_seed(self.model_config.seed + 1 + self.rank)
        self._check_units(policy)
        return dress(policy, section)

    def _check_units(self, policy: nn.Module) -> None:
        wrapped = (self.engine_config.wrap_policy or {}).get("transformer_layer_cls_to_wrap")
        if not wrapped and not getattr(policy, "_no_split_modules", None):
            classes = sorted({type(module).__name__ for module in policy.modules() if module is not policy})
            raise ValueError(
                "actor_rollout_ref.actor.fsdp_config.wrap_policy.transformer_layer_cls_to_wrap must name the "
                f"layers of {type(policy).__name__} that FSDP2 wraps; it consists of {', '.join(classes)}"
            )

    def _build_optimizer(self, module: nn.Module) -> torch.optim.Optimizer:
        """One group for the policy, and one for its value head, if it has one."""
        policy, value_head = _split(module)
        groups: list[dict[str, Any]] = [{"params": policy}]
        if value_head:
            own = self.model_config.value_lr
            lr = self.optimizer_config.lr if own is None else own
            groups.append({"params": value_head, "lr": lr})
        return build_optimizer(groups, self.optimizer_config)

    def forward_step(
        self, micro_batch: TensorDict, loss_function: Callable[..., Any] | None, forward_only: bool
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Score the actions of `micro_batch`, and take the loss of the scores; without one it is 0."""
        micro_batch = micro_batch.to(get_device_id())
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

    def scores(
        self, forward_inputs: Mapping[str, Any], *, entropy: bool = False, values: bool
    ) -> Mapping[str, torch.Tensor]:
        """Return the scores of actions by the present policy, by a call to the wrapped module."""
        output: Mapping[str, torch.Tensor] = self.module(
            forward_inputs=forward_inputs,
            compute_logprobs=True,
            compute_entropy=entropy,
            compute_values=values,
        )
        return output

    def get_per_tensor_param(
        self, *, names: Collection[str] | None = None, **_: object
    ) -> tuple[Iterator[tuple[str, torch.Tensor]], None]:
        """The tensors of the policy by name, or those of `names`, gathered one by one from their shards.

        Every rank has to exhaust the iterator, as gathering is collective.
        """
        state = self.module.state_dict()
        selection = state if names is None else {name: state[name] for name in state if name in names}
        return ((name, gathered(tensor)) for name, tensor in selection.items()), None

    def reshard(self) -> None:
        """Forget what forward passes have gathered, which would hide what is written to the shards next."""
        for module in self.module.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    @torch.no_grad()
    def trained_shards(self) -> list[torch.Tensor]:
        """This rank's parts of the parameters that are trained, always in one order, to read or write."""
        self.reshard()
        trained = [parameter for parameter in self.module.parameters() if parameter.requires_grad]
        # Views: a write to them changes the policy.
        return [p.to_local() if isinstance(p, DTensor) else p.detach() for p in trained]

    skipped: SkippedSteps | None = None
    """Counts the optimizer steps that veRL leaves out, as their gradients are not finite."""

    def optimizer_step(self) -> float:
        norm = float(super().optimizer_step())
        if self.skipped is not None:
            self.skipped.step(norm, scaled=getattr(self, "scaler", None) is not None)
        return norm

    @torch.no_grad()
    def divide_gradients(self, count: float) -> None:
        """Make sums of gradients means over `count`."""
        for parameter in self.module.parameters():
            if parameter.grad is not None:
                # A step without a valid sample has gradients of 0: divided by 0 they would be NaN.
                parameter.grad.div_(max(1.0, count))


def gathered(tensor: torch.Tensor) -> torch.Tensor:
    """The whole of `tensor`, of which every rank may hold a part."""
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def _split(module: nn.Module) -> tuple[Sequence[nn.Parameter], Sequence[nn.Parameter]]:
    parameters = list(module.named_parameters())
    value_head = [parameter for name, parameter in parameters if VALUE_HEAD in name.split(".")]
    return [parameter for name, parameter in parameters if VALUE_HEAD not in name.split(".")], value_head
