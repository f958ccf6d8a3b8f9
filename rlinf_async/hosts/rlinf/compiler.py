"""Imports of RLinf that leave torch's compiler for later.

`rlinf.config` decorates one function with `torch.compile`. That alone imports torch's compiler, some three
seconds of CPU time in every process of a run, and no embodied run calls the function.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FunctionType
from typing import Any
from unittest.mock import patch


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
