"""Imports of RLinf that leave for later what takes longer than RLinf itself.

Two things of torch take seconds of CPU time in every process of a run, and most processes use neither:

* `rlinf.config` decorates one function with `torch.compile`, which imports torch's compiler.
* Modules of env and rollout workers import `DTensor`, for annotations and `isinstance`. That imports the
  package of sharded tensors, and with it SymPy.
"""

from __future__ import annotations

import builtins
import functools
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType, SimpleNamespace
from typing import Any
from unittest.mock import patch

SHARDED_TENSORS = "torch.distributed.tensor"


@contextmanager
def light_imports() -> Iterator[None]:
    """Have modules of RLinf that are imported inside the block leave torch's compiler and sharded tensors for
    later.
    """
    with compiled_when_called(), sharded_tensors_when_used():
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
def sharded_tensors_when_used() -> Iterator[None]:
    """Have modules of RLinf that import `DTensor` alone inside the block get `LateDTensor` in its place.

    All other modules, and all modules once torch's package is loaded, get what they ask for.
    """
    import_now = builtins.__import__

    def import_later(name: str, *arguments: Any, **named: Any) -> Any:
        given = {**dict(zip(("globals", "locals", "fromlist"), arguments, strict=False)), **named}
        is_alone = name == SHARDED_TENSORS and tuple(given.get("fromlist") or ()) == ("DTensor",)
        importer = (given.get("globals") or {}).get("__name__", "")
        if is_alone and importer.startswith("rlinf.") and name not in sys.modules:
            return SimpleNamespace(DTensor=LateDTensor)
        return import_now(name, *arguments, **named)

    with patch.object(builtins, "__import__", import_later):
        yield


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
