"""Imports of RLinf that leave for later what takes longer than RLinf itself.

Three things take seconds of CPU time in every process that imports them, and most processes use none:

* `rlinf.config` decorates one function with `torch.compile`, which imports torch's compiler.
* Modules of env and rollout workers import `DTensor`, for annotations and `isinstance`. That imports the
  package of sharded tensors, and with it SymPy.
* RLinf's FSDP actor, which the driver imports, too, imports classes that load language models. They import
  models, accelerate and torch's compiler.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

from rlinf_async.hosts.rlinf.late_names import LateName, standing_in

SHARDED_TENSORS = "torch.distributed.tensor"
LATE_NAMES = {
    "accelerate": {"init_empty_weights"},
    "transformers": {"AutoConfig", "AutoModelForCausalLM", "AutoModelForVision2Seq"},
    "transformers.trainer_pt_utils": {"get_module_class_from_name"},
}
"""By module: the names that RLinf's modules import for a few of their functions."""


@contextmanager
def light_imports() -> Iterator[None]:
    """Have modules of RLinf that are imported inside the block leave torch's compiler, sharded tensors and
    `LATE_NAMES` for later.
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
    those that import none but `LATE_NAMES` get a `LateName` for each.

    All other modules get what they ask for; and once torch's package is loaded, all get its `DTensor`.
    """
    with standing_in(_late):
        yield


def _late(module: str, names: tuple[str, ...]) -> SimpleNamespace | None:
    """Return the stand-in for a module with `names`; None if one of them has none."""
    if module == SHARDED_TENSORS and names == ("DTensor",) and module not in sys.modules:
        return SimpleNamespace(DTensor=LateDTensor)
    if names and LATE_NAMES.get(module, set()).issuperset(names):
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
