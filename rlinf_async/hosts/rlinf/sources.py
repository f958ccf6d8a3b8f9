"""Reads the definitions of a Python package from its sources, without importing it."""

from __future__ import annotations

import ast
import os
import platform
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path

FUNCTION_NODES = (ast.FunctionDef, ast.AsyncFunctionDef)
SUPER_PREFIX = "super()."
"""Stands before the name of a method that a subclass overrides."""


class Sources:
    """The sources of a package. A place is `module:name`, also for a name that the module imports."""

    def __init__(self, root: Path) -> None:
        """`root`: the folder of the package."""
        self.root = root

    @property
    def is_here(self) -> bool:
        """True if there is such a package."""
        return self.root.is_dir()

    def defines(self, place: str) -> bool:
        return self._find(*_parts(place)) is not None

    def definition(self, place: str) -> ast.stmt | None:
        """Return the syntax tree of the definition at `place`; None without one."""
        found = self._find(*_parts(place))
        return None if found is None else found[1]

    def tree(self, file: str) -> ast.Module:
        """Return the syntax tree of a file of the package; an empty one if there is no such file."""
        return _syntax_tree(self.root / file)

    def methods(self, place: str) -> dict[str, ast.FunctionDef]:
        """Return the methods of a class and of its bases; an overridden method is `super().NAME`."""
        module, definition = self._find(*_parts(place)) or ("", None)
        if not isinstance(definition, ast.ClassDef):
            return {}
        bases = [base.id for base in reversed(definition.bases) if isinstance(base, ast.Name)]
        methods: dict[str, ast.FunctionDef] = {}
        for base in bases:
            methods |= self.methods(f"{module}:{base}")
        own = {node.name: node for node in definition.body if isinstance(node, ast.FunctionDef)}
        return {
            **methods,
            **{f"{SUPER_PREFIX}{name}": methods[name] for name in own.keys() & methods.keys()},
            **own,
        }

    def members(self, place: str) -> set[str]:
        """Return the names of a class and its bases: methods, class variables, and attributes set in
        methods.
        """
        return self._members(*_parts(place))

    def keys_given(self, place: str, method: str) -> set[str]:
        """Return the keys of the dictionaries that a method returns as literals."""
        function = self.methods(place).get(method, ast.Pass())
        returned = [node.value for node in ast.walk(function) if isinstance(node, ast.Return)]
        keys = [key for value in returned if isinstance(value, ast.Dict) for key in value.keys]
        return {word for key in keys if key for word in _words(key)}

    def given_to(self, function: str, file: str) -> set[str]:
        """Return the string literals that are first arguments of calls of `function` in a file of the
        package.
        """
        return {
            word
            for call in ast.walk(_syntax_tree(self.root / file))
            if isinstance(call, ast.Call) and _last_name(call.func) == function
            for first in call.args[:1]
            for word in _words(first)
        }

    def compared_with(self, name: str, file: str) -> set[str]:
        """Return the string literals with which a file compares a variable, an attribute or a key called
        `name`.
        """
        return {
            word
            for node in ast.walk(_syntax_tree(self.root / file))
            if isinstance(node, ast.Compare) and _last_name(node.left) == name
            for right in node.comparators
            for word in _words(right)
        }

    def assigned(self, name: str, file: str) -> set[str]:
        """Return the attributes of a variable called `name` that a file assigns to, as dotted names without
        `name`.
        """
        targets = [
            _dotted(target)
            for node in ast.walk(_syntax_tree(self.root / file))
            if isinstance(node, ast.Assign)
            for target in node.targets
        ]
        return {chain.removeprefix(f"{name}.") for chain in targets if chain.startswith(f"{name}.")}

    def values_of(self, place: str) -> dict[str, str]:
        """Return {name: string literal} of the assignments in the body of a class, such as an enumeration."""
        body = getattr(self.definition(place), "body", [])
        return {
            name: word
            for node in body
            if isinstance(node, ast.Assign)
            for word in _words(node.value)
            for name in _assigned_names(node)
        }

    def registered(self, registry: str, file: str) -> dict[str, str]:
        """Return {"A": "a"} for every `Registry.A = Registry.register("a")` in a file."""
        return {
            target.attr: word
            for node in ast.walk(_syntax_tree(self.root / file))
            if isinstance(node, ast.Assign) and isinstance(node.value, ast.Call)
            for target in node.targets
            if isinstance(target, ast.Attribute) and _dotted(target.value) == registry
            for arg in node.value.args[:1]
            for word in _words(arg)
        }

    def listed(self, name: str, file: str) -> set[str]:
        """Return the attribute names in the value of a file's variable, such as `A` in `{Registry.A}`."""
        values = [
            node.value
            for node in _syntax_tree(self.root / file).body
            if isinstance(node, ast.Assign) and name in _assigned_names(node)
        ]
        return {each.attr for value in values for each in ast.walk(value) if isinstance(each, ast.Attribute)}

    def _members(self, module: str, name: str) -> set[str]:
        place = self._find(module, name)
        if place is None:
            return set()
        module, definition = place
        if not isinstance(definition, ast.ClassDef):
            return set()
        # A base that is written as `module.Class` is not followed; its members are then reported as missing.
        bases = [base.id for base in definition.bases if isinstance(base, ast.Name)]
        return _own(definition).union(*(self._members(module, base) for base in bases))

    def _find(self, module: str, name: str) -> tuple[str, ast.stmt] | None:
        """Return the module that defines a name of `module`, and the definition; None if it is outside of the
        package.
        """
        path = self._path(module)
        if path is None:
            return None
        for node in _statements(_syntax_tree(path)):
            if isinstance(node, (*FUNCTION_NODES, ast.ClassDef)) and node.name == name:
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


_found: dict[str, Sources] = {}


def sources_of(package: str) -> Sources:
    """Return the sources that `import` would load in this process; empty ones if it finds no package."""
    # Only found packages are remembered: a missing one may be installed later.
    if package not in _found:
        spec = find_spec(package)
        if spec is None or not spec.submodule_search_locations:
            return Sources(Path(os.devnull, package))
        _found[package] = Sources(Path(next(iter(spec.submodule_search_locations))))
    return _found[package]


def _parts(place: str) -> tuple[str, str]:
    module, _, name = place.partition(":")
    return module, name


def _statements(module: ast.Module) -> Iterator[ast.stmt]:
    """Yield the statements at a module's top level, and its imports for type checkers: a package that loads
    its names at their first use imports them there.

    A name that is defined under another `if`, or under `try`, is not among them.
    """
    for node in module.body:
        if isinstance(node, ast.If) and _last_name(node.test) == "TYPE_CHECKING":
            yield from node.body
        else:
            yield node


def _imported_module(module: str, node: ast.ImportFrom, path: Path) -> str:
    """Return the absolute name of the module in an import, which may be relative to `module`."""
    if not node.level:
        return node.module or ""
    package = module.split(".") if path.name == "__init__.py" else module.split(".")[:-1]
    above = package[: len(package) - node.level + 1]
    return ".".join([*above, *([node.module] if node.module else [])])


def _own(definition: ast.ClassDef) -> set[str]:
    names: set[str] = set()
    for node in definition.body:
        if isinstance(node, FUNCTION_NODES):
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


def _dotted(node: ast.AST) -> str:
    """Return a chain of attributes of a variable as written; empty for other expressions."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.insert(0, node.attr)
        node = node.value
    return ".".join([node.id, *names]) if isinstance(node, ast.Name) else ""


def _last_name(node: ast.expr) -> str:
    if isinstance(node, ast.Call):  # `section.get("name")`
        return next((word for arg in node.args[:1] for word in _words(arg)), "")
    return str(getattr(node, "attr", getattr(node, "id", "")))


def _words(node: ast.AST) -> Iterator[str]:
    """Yield a string literal, or those in a list, a tuple or a set."""
    for each in getattr(node, "elts", [node]):
        if isinstance(each, ast.Constant) and isinstance(each.value, str):
            yield each.value


def _assigned_names(node: ast.Assign) -> set[str]:
    return {target.id for target in node.targets if isinstance(target, ast.Name)}


@cache
def _syntax_tree(path: Path) -> ast.Module:
    """Return the syntax tree of a file; a missing one is empty.

    Raises:
        ValueError: the file is no Python.
    """
    try:
        return ast.parse(path.read_bytes() if path.is_file() else b"", str(path))
    except (SyntaxError, ValueError, RecursionError) as error:
        line = getattr(error, "lineno", None)
        place = f"{path}, line {line}," if line else str(path)
        raise ValueError(
            f"{place} cannot be read as Python {platform.python_version()}: this RLinf is damaged, or is for "
            "another Python; check it out again"
        ) from error
