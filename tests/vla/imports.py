"""Third-party modules that are changed when they are imported, or stood in for by empty ones."""

import importlib.abc
import importlib.util
import sys
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any

CHANGES: dict[str, Callable[[Any], None]] = {}


def change(name: str) -> Callable[[Callable[[Any], None]], Callable[[Any], None]]:
    """The decorated function is called with module `name` once that has been executed: now, if it has."""

    def remember(function: Callable[[Any], None]) -> Callable[[Any], None]:
        CHANGES[name] = function
        if name in sys.modules:
            function(sys.modules[name])
        return function

    return remember


def stand_in(name: str, *, path: Path | None = None, **attributes: Any) -> None:
    """Put an empty module in the place of `name`: with a `path`, a package whose `__init__` is not run."""
    module = types.ModuleType(name)
    module.__dict__.update(attributes)
    module.__path__ = [str(path)] if path else []
    module.__spec__ = importlib.util.spec_from_loader(name, loader=None, is_package=True)
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    if parent in sys.modules:
        setattr(sys.modules[parent], own, module)


class _Changer(importlib.abc.MetaPathFinder):
    def find_spec(self, name: str, path: Any, target: Any = None) -> Any:
        if name not in CHANGES or (spec := self._stock(name)) is None:
            return None
        execute = spec.loader.exec_module

        def exec_module(module: types.ModuleType) -> None:
            execute(module)
            CHANGES[name](module)

        spec.loader.exec_module = exec_module
        return spec

    def _stock(self, name: str) -> Any:
        sys.meta_path.remove(self)
        try:
            return importlib.util.find_spec(name)
        finally:
            sys.meta_path.insert(0, self)


sys.meta_path.insert(0, _Changer())


@change("torchvision.extension")
def _declare_operators(module: Any) -> None:
    """The wheel on PyPI is built against torch with CUDA; beside another torch its library does not load.

    Torchvision declares meta kernels for two of its operators, which therefore have to exist.
    """
    import torch

    if not module._has_ops():
        module.library = torch.library.Library("torchvision", "DEF")
        for operator in ("nms", "qnms"):
            module.library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
