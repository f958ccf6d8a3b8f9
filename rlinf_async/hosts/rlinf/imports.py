"""Imports of RLinf that leave for later what takes longer than RLinf itself.

These take up to seconds of CPU time in every process that imports them, and most processes use none:

* `rlinf.config` decorates one function with `torch.compile`, which imports torch's compiler.
* Modules of env and rollout workers import `DTensor`, for annotations and `isinstance`. That imports the
  package of sharded tensors, and with it SymPy.
* RLinf's FSDP actor, which the driver imports, too, imports classes that load language models. They import
  models, accelerate and torch's compiler; and FSDP itself, which a driver never uses.
* RLinf's scheduler imports Ray's queries of its state, for an actor's death.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from rlinf_async.hosts.rlinf.late_imports import LateName, parts_when_used, standing_in

SHARDED_TENSORS = "torch.distributed.tensor"
LATE_NAMES = {
    "accelerate": {"init_empty_weights"},
    "ray.util.state": {"list_actors"},
    "transformers": {"AutoConfig", "AutoModelForCausalLM", "AutoModelForVision2Seq"},
    "transformers.trainer_pt_utils": {"get_module_class_from_name"},
}
"""By module: the names that RLinf's modules import for a few of their functions."""
FSDP_NAMES = {
    "torch.distributed.fsdp": {
        "BackwardPrefetch",
        "CPUOffload",
        "CPUOffloadPolicy",
        "FSDPModule",
        "FullyShardedDataParallel",
        "MixedPrecisionPolicy",
        "OffloadPolicy",
        "ShardingStrategy",
        "fully_shard",
    },
    "torch.distributed.fsdp.sharded_grad_scaler": {"ShardedGradScaler"},
    "torch.distributed.fsdp.wrap": {"_module_wrap_policy", "transformer_auto_wrap_policy"},
    "torch.distributed.checkpoint.state_dict": {
        "StateDictOptions",
        "get_model_state_dict",
        "set_model_state_dict",
    },
    # Its module extends a class of torch's checkpoints.
    "rlinf.hybrid_engines.fsdp.strategy.checkpoint": {"Checkpoint"},
}
"""The same for a driver: a learner uses them, and gets torch's own."""
STATE_OF_RAY = "ray.util.state"
WORKER_NAME = "WORKER_NAME"
"""The variable that RLinf sets in worker processes only."""


@contextmanager
def light_imports() -> Iterator[None]:
    """Have modules of RLinf that are imported inside the block leave torch's compiler, sharded tensors, the
    names of `LATE_NAMES` and, in a driver, of `FSDP_NAMES` for later.
    """
    with compiled_when_called(), names_when_used():
        yield


@contextmanager
def compiled_when_called() -> Iterator[None]:
    """Have functions that are given to `torch.compile` inside the block compiled by their first call.

    Modules and other callables are compiled at once, as a wrapper would hide their attributes.
    """
    import torch  # not needed by callers that only read sources

    compile_now = torch.compile

    def compile_later(function: Any = None, **options: Any) -> Any:
        if function is None:
            return functools.partial(compile_later, **options)
        if not isinstance(function, FunctionType):
            return compile_now(function, **options)
        return _compiled_when_called(function, functools.partial(compile_now, function, **options))

    with patch.object(torch, "compile", compile_later):
        yield


def _compiled_when_called(function: Callable[..., Any], build: Callable[[], Any]) -> Callable[..., Any]:
    compiled = functools.cache(build)

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return compiled()(*arguments, **named)

    return call


@contextmanager
def names_when_used() -> Iterator[None]:
    """Have modules of RLinf that import `DTensor` alone inside the block get `LateDTensor` in its place, and
    those that import none but `LATE_NAMES`, or `FSDP_NAMES` in a driver, get a `LateName` for each.

    All other modules get what they ask for; and once torch's package is loaded, all get its `DTensor`.
    """
    with standing_in(_late):
        yield


def _late(module: str, names: tuple[str, ...]) -> SimpleNamespace | None:
    """Return the stand-in for a module with `names`; None if one of them has none."""
    if module == STATE_OF_RAY and not names:
        parts_when_used(module)
    if module == SHARDED_TENSORS and names == ("DTensor",) and module not in sys.modules:
        return SimpleNamespace(DTensor=LateDTensor)
    driver = {} if WORKER_NAME in os.environ else FSDP_NAMES
    if names and {**LATE_NAMES, **driver}.get(module, set()).issuperset(names):
        return SimpleNamespace(**{name: LateName(module, name) for name in names})
    return None


class _Late(type):
    def __instancecheck__(cls, value: Any) -> bool:
        # No tensor is sharded before the package is loaded.
        loaded = sys.modules.get(SHARDED_TENSORS)
        return loaded is not None and isinstance(value, loaded.DTensor)

    def __getattr__(cls, name: str) -> Any:
        from torch.distributed.tensor import DTensor

        return getattr(DTensor, name)


class LateDTensor(metaclass=_Late):
    """Stands for torch's `DTensor` in annotations and `isinstance`; other attributes load torch's class."""
