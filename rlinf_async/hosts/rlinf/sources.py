"""Reads the definitions of a Python package from its sources: nothing of it is imported."""

from __future__ import annotations

import ast
from functools import cache
from importlib.util import find_spec
from pathlib import Path

FUNCTIONS = (ast.FunctionDef, ast.AsyncFunctionDef)


class Sources:
    """The sources of a package; a place in them is `module:name`, wherever that is imported from."""

    def __init__(self, root: Path) -> None:
        """`root`: the folder of the package."""
        self.root = root

    def defines(self, place: str) -> bool:
        return self._find(*_parts(place)) is not None

    def members(self, place: str) -> set[str]:
        """Names that instances of a class have: methods, class variables, and attributes that methods of it
        or of its bases set."""
        return self._members(*_parts(place))

    def keys_given(self, place: str, method: str) -> set[str]:
        """The keys of the dictionary that a method of a class returns, where it is written out."""
        class_place = self._find(*_parts(place))
        body = (
            class_place[1].body
            if class_place is not None and isinstance(class_place[1], ast.ClassDef)
            else []
        )
        return_values = [
            node.value
            for function in body
            if isinstance(function, FUNCTIONS) and function.name == method
            for node in ast.walk(function)
            if isinstance(node, ast.Return)
        ]
        keys = [key for value in return_values if isinstance(value, ast.Dict) for key in value.keys]
        return {key.value for key in keys if isinstance(key, ast.Constant) and type(key.value) is str}

    def given_to(self, function: str, file: str) -> set[str]:
        """The words that calls of `function` begin with in a file of the package."""
        path = self.root / file
        calls = [node for node in ast.walk(_syntax_tree(path)) if isinstance(node, ast.Call)]
        own_calls = [
            call for call in calls if getattr(call.func, "attr", getattr(call.func, "id", "")) == function
        ]
        firsts = [call.args[0] for call in own_calls if call.args]
        return {
            first.value for first in firsts if isinstance(first, ast.Constant) and type(first.value) is str
        }

    def _members(self, module: str, name: str) -> set[str]:
        place = self._find(module, name)
        if place is None:
            return set()
        module, definition = place
        if not isinstance(definition, ast.ClassDef):
            return set()
        # A base that is written `module.Class` is left out; its members are then reported as missing.
        bases = [base.id for base in definition.bases if isinstance(base, ast.Name)]
        return _own(definition).union(*(self._members(module, base) for base in bases))

    def _find(self, module: str, name: str) -> tuple[str, ast.stmt] | None:
        """The module that defines a name of `module`, and the definition; None if that is elsewhere."""
        path = self._path(module)
        if path is None:
            return None
        # The top level of the module alone: a name that is defined under `if` or `try` is not found.
        for node in _syntax_tree(path).body:
            if isinstance(node, (*FUNCTIONS, ast.ClassDef)) and node.name == name:
                return module, node
            if isinstance(node, ast.Assign) and name in _assigned_names(node):
                return module, node
            if isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    if (alias.asname or alias.name) == name:
                        return self._find(_imported_module(module, node, path), alias.name)
        return None

    def _path(self, module: str) -> Path | None:
        package, *inner = module.split(".")
        if package != self.root.name:
            return None
        folder = self.root.joinpath(*inner)
        places = (folder.with_suffix(".py"), folder / "__init__.py")
        return next((place for place in places if place.is_file()), None)


@cache
def sources_of(package: str) -> Sources | None:
    """Return the sources that `import` would load in this process; None where it finds no package."""
    spec = find_spec(package)
    if spec is None or not spec.submodule_search_locations:
        return None
    return Sources(Path(next(iter(spec.submodule_search_locations))))


def _parts(place: str) -> tuple[str, str]:
    module, _, name = place.partition(":")
    return module, name


def _imported_module(module: str, node: ast.ImportFrom, path: Path) -> str:
    """The module that an import names, which may be relative to `module`."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _own(definition: ast.ClassDef) -> set[str]:
    names: set[str] = set()
    for node in definition.body:
        if isinstance(node, FUNCTIONS):
            names.add(node.name)
        elif isinstance(node, ast.Assign):
            names |= _assigned_names(node)
        elif isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            names.add(node.target.id)
    attributes = (
        node
        for node in ast.walk(definition)
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store)
    )
    return names | {
        node.attr for node in attributes if isinstance(node.value, ast.Name) and node.value.id == "self"
    }


def _assigned_names(node: ast.Assign) -> set[str]:
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


@cache
def _syntax_tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text() if path.is_file() else "", str(path))
