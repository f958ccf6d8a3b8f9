"""YAML from an untrusted file, as plain data of bounded size and depth.

A few lines of YAML can expand to more than fits in memory, by aliases of aliases. Data that passes here can
be walked by a plain recursion.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import yaml

from rlinf_async.observe.read_files import MAX_DEPTH, DamagedError

MAX_YAML_BYTES = 1 << 20
MAX_YAML_NODES = 50_000
"""The most nodes of a document with expanded aliases; the largest config of a framework has some thousand."""

FAST_YAML_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml's loader, which is about ten times faster; not every build of PyYAML has it. It crashes the process
if values nest too deeply, and its errors have less detail than those of Python's loader."""


def read_yaml(text: str) -> Any:
    """Return the content of a YAML text, with strings for all keys.

    Raises:
        DamagedError: it is not YAML, nests too deeply, or is too large with its aliases expanded.
    """
    try:
        _check_events(text)
        loader = FAST_YAML_LOADER(text)
        try:
            node = loader.get_single_node()
            if node is None:
                return None
            if has_more_nodes(node, MAX_YAML_NODES):
                raise DamagedError(f"has more than {MAX_YAML_NODES:,} values, by its aliases")
            return _with_text_names(loader.construct_document(node))
        finally:
            loader.dispose()
    except DamagedError:
        raise
    except SelfContainedError as error:
        raise DamagedError(str(error)) from None
    except (yaml.YAMLError, ValueError, TypeError, RecursionError, OverflowError, AttributeError):
        # PyYAML raises the other ones for values such as the date 2001-99-99, and for unhashable keys.
        raise DamagedError("is cut off or damaged") from None


def _check_events(text: str) -> None:
    """Check depth and number of values without recursion, before any value is built."""
    for count, depth in enumerate(yaml_depths(text)):
        if depth > MAX_DEPTH:
            raise DamagedError("nests too deeply")
        if count > MAX_YAML_NODES:
            raise DamagedError(f"has more than {MAX_YAML_NODES:,} values")


def yaml_depths(text: str) -> Iterator[int]:
    """Yield the nesting depth of a YAML text at each of its events; no values are built."""
    depth = 0
    for event in yaml.parse(text, Loader=FAST_YAML_LOADER):
        depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
        yield depth


class SelfContainedError(ValueError):
    """The value of `node` contains an alias of itself."""

    def __init__(self, node: yaml.Node) -> None:
        super().__init__("holds a value that contains itself")
        self.node = node


def has_more_nodes(root: yaml.Node, most: int) -> bool:
    """Return True if a document has more nodes than `most` with its aliases expanded.

    Nodes behind an alias count each time, but are visited once.

    Raises:
        SelfContainedError: a value contains itself.
    """
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in open_nodes:
            raise SelfContainedError(node)
        if id(node) not in sizes:
            open_nodes.add(id(node))
            # Aliases of aliases double the number with every line: cap it above `most`.
            sizes[id(node)] = min(1 + sum(size(each) for each in inner_nodes(node)), most + 1)
            open_nodes.remove(id(node))
        return sizes[id(node)]

    return size(root) > most


def inner_nodes(node: yaml.Node) -> list[yaml.Node]:
    """Return the keys and values of a mapping, or the items of a sequence."""
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _with_text_names(tree: Any, depth: int = 0) -> Any:
    if depth > MAX_DEPTH:
        raise DamagedError("nests too deeply")
    if isinstance(tree, dict):
        return {_text(name): _with_text_names(value, depth + 1) for name, value in tree.items()}
    if isinstance(tree, list | tuple | set):
        return [_with_text_names(value, depth + 1) for value in tree]
    return tree if tree is None or isinstance(tree, bool | int | float | str) else _text(tree)


def _text(value: Any) -> str:
    """Return `str(value)`; Python refuses it for integers of more than some thousand digits."""
    try:
        return str(value)
    except ValueError:
        return "a number"
