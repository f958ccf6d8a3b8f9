"""Stand-ins for names of modules that take long to import, in modules of RLinf that use them in few calls.

One of the modules is torch, in RLinf's parts that need it only when they are called. As long as modules are
being imported, the names of its stand-in are stand-ins, too, which serve in annotations; every other use
loads torch.
"""

from __future__ import annotations

import builtins
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from importlib.util import find_spec, module_from_spec
from typing import Any
from unittest.mock import patch


@contextmanager
def standing_in(choose: Callable[[str, tuple[str, ...]], Any]) -> Iterator[None]:
    """Have modules of RLinf get stand-ins by their imports inside the block.

    Args:
        choose: returns the stand-in for a module, given its name and the names that are imported from it
            (none by `import module`); None if the module itself is imported.
    """
    import_now = builtins.__import__

    def import_later(name: str, *arguments: Any, **named: Any) -> Any:
        given = {**dict(zip(("globals", "locals", "fromlist"), arguments, strict=False)), **named}
        importer = (given.get("globals") or {}).get("__name__", "")
        names = tuple(given.get("fromlist") or ())
        late = choose(name, names) if importer.startswith("rlinf.") else None
        return import_now(name, *arguments, **named) if late is None else late

    with patch.object(builtins, "__import__", import_later):
        yield


class LateName:
    """Stands for a name of a module: any use but that in an annotation loads the module, and goes to its
    own object.
    """

    def __init__(self, module: str, path: str) -> None:
        self._module, self._path = module, path

    def _real(self) -> Any:
        found: Any = import_module(self._module)
        for name in self._path.split("."):
            found = getattr(found, name)
        return found

    def __getattr__(self, name: str) -> Any:
        # Python looks for special attributes of what stands in an annotation.
        if name.startswith("__"):
            raise AttributeError(name)
        return getattr(self._real(), name)

    def __or__(self, other: Any) -> Any:
        return Any  # in annotations such as `Tensor | None`

    __ror__ = __or__

    def __repr__(self) -> str:
        return f"{self._module}.{self._path}"

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        return self._real()(*arguments, **named)

    def __getitem__(self, item: Any) -> Any:
        return self._real()[item]

    def __mro_entries__(self, bases: tuple[Any, ...]) -> tuple[Any, ...]:
        return (self._real(),)

    def __instancecheck__(self, value: Any) -> bool:
        return isinstance(value, self._real())

    def __subclasscheck__(self, cls: type) -> bool:
        return issubclass(cls, self._real())

    def __eq__(self, other: object) -> bool:
        if isinstance(other, LateName):
            return (self._module, self._path) == (other._module, other._path)
        # `Optional` compares with names of typing: nothing equals what is not loaded.
        return self._module in sys.modules and bool(self._real() == other)

    def __hash__(self) -> int:
        # Not that of the object itself: `Union` in an annotation asks for it.
        return hash((self._module, self._path))


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
