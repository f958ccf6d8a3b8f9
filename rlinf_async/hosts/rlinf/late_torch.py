"""Imports of RLinf's parts that need torch only when they are called: torch is loaded then.

A stand-in takes the place of torch in RLinf's modules. As long as modules are being imported, its names are
stand-ins, too, which serve in annotations; every other use loads torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any

from rlinf_async.hosts.rlinf.late_names import LateName, standing_in

TORCH = "torch"


@contextmanager
def torch_when_used() -> Iterator[None]:
    """Have modules of RLinf that say `import torch` inside the block get a stand-in, unless torch is loaded.

    Modules that import parts of torch, or names from it, load it as ever.
    """
    root = LateTorch()

    def choose(module: str, names: tuple[str, ...]) -> Any:
        return sys.modules.get(TORCH, root) if module == TORCH and not names else None

    with standing_in(choose):
        try:
            yield
        finally:
            vars(root)["importing"] = False


class LateTorch:
    """Stands for torch: after the imports each of its names is torch's own."""

    def __init__(self) -> None:
        self.importing = True

    def __getattr__(self, name: str) -> Any:
        if self.importing and not name.startswith("__"):
            return LateName(TORCH, name)
        return getattr(import_module(TORCH), name)


def parts_when_used(name: str) -> None:
    """Make the package `name` importable, and run its `__init__` only when a name of the package is used.

    Its modules can be imported before; a package that is loaded stays as it is.
    """
    spec = None if name in sys.modules else find_spec(name)
    if spec is None or spec.loader is None:
        return
    module, loader = module_from_spec(spec), spec.loader

    def load(attribute: str) -> Any:
        if attribute.startswith("__"):
            raise AttributeError(f"module {name!r} has no attribute {attribute!r}")
        # First: `__init__` may look for names of modules that look for names of the package.
        del vars(module)["__getattr__"]
        loader.exec_module(module)
        return getattr(module, attribute)

    vars(module)["__getattr__"] = load
    sys.modules[name] = module
    parent, _, own = name.rpartition(".")
    setattr(sys.modules[parent], own, module)
