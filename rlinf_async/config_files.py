"""Errors in a YAML file of the user's: file, line and one sentence, before Hydra reads it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from rlinf_async.observe.files import read_named
from rlinf_async.observe.plain_data import MAX_YAML_BYTES

MAX_VALUES = 100_000
"""In one file, with every alias written out; the largest configs of RLinf have a few hundred."""
FAST_LOADER: Any = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
"""libyaml reads some ten times faster; not every build of PyYAML has it. It ends the process where values
nest too deeply, and its errors say less: Python's loader reads such a file again."""
PYTHON_LOADER = yaml.SafeLoader
"""Bound here: composing has others use the fast one by this name."""
MAX_FAST_DEPTH = 100
UTF_16 = (b"\xff\xfe", b"\xfe\xff")


def check_file(path: Path) -> None:
    """See that `path` is a YAML mapping that a part of a config can be made of; a part may be empty.

    Raises:
        ValueError: it is not, with the line.
    """
    tree = _parsed(path, _text(path))
    if tree is not None:
        _check_kind(path, tree)
        _check_size(path, tree)
        for node in _nodes(tree):
            if isinstance(node, yaml.MappingNode):
                _check_keys(path, node)


def check_not_empty(path: Path) -> None:
    """See that the file with which a config begins says something.

    Raises:
        ValueError: it does not.
    """
    if _parsed(path, _text(path)) is None:
        raise ValueError(
            f"{path} is empty; write at least its defaults, as in: defaults: [metaworld_ppo_mlp]"
        )


def _text(path: Path) -> str:
    try:
        raw = read_named(path, limit=MAX_YAML_BYTES)
    except OSError as error:  # a folder, a link to itself, a pipe, somebody else's
        raise ValueError(f"{path} cannot be read: {error.strerror}") from error
    if raw.startswith(UTF_16):
        raise ValueError(f"{path} is in UTF-16; save it as UTF-8")
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"{path}, line {line}: byte {raw[error.start]:#04x} is not UTF-8; save the file as UTF-8"
        ) from error


def _parsed(path: Path, text: str) -> yaml.Node | None:
    try:
        return yaml.compose(text, Loader=FAST_LOADER if _is_shallow(text) else PYTHON_LOADER)
    except yaml.YAMLError as error:
        raise ValueError(unreadable(error, path)) from error
    except RecursionError as error:
        raise ValueError(f"{path} nests its values too deeply to be read") from error


def _is_shallow(text: str) -> bool:
    """Return True if a text is YAML whose values nest at most `MAX_FAST_DEPTH` deep."""
    depth = 0
    try:
        for event in yaml.parse(text, Loader=FAST_LOADER):
            depth += isinstance(event, yaml.CollectionStartEvent) - isinstance(event, yaml.CollectionEndEvent)
            if depth > MAX_FAST_DEPTH:
                return False
    except yaml.YAMLError:
        return False
    return True


def unreadable(error: yaml.YAMLError, path: Path | None = None) -> str:
    """PyYAML's error in one sentence with file and line; its own text has four lines."""
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).splitlines()[0]
    mark = getattr(error, "problem_mark", None)
    place = str(path) if path is not None else str(getattr(mark, "name", "a config"))
    if mark is not None:
        place += f", line {mark.line + 1}"
    if r"'\t'" in problem:
        return f"{place}: {problem}; indent with spaces"
    context, begun = getattr(error, "context", None), getattr(error, "context_mark", None)
    if context and begun is not None:
        problem += f", {context} that begins in line {begun.line + 1}"
    return f"{place}: {problem}"


def _check_kind(path: Path, tree: yaml.Node) -> None:
    if not isinstance(tree, yaml.MappingNode):
        kind = "a list" if isinstance(tree, yaml.SequenceNode) else "one value"
        raise ValueError(
            f"{path}, line {_line(tree)}: this is {kind}, and a config has keys, as in async: {{mode: full}}"
        )


def _check_keys(path: Path, mapping: yaml.MappingNode) -> None:
    seen: dict[tuple[str, str], int] = {}
    for key, _ in mapping.value:
        line = _line(key)
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"{path}, line {line}: a key is one word, and this is a list or a block")
        name = (key.tag, key.value)
        if name in seen and not key.tag.endswith(":merge"):
            raise ValueError(
                f"{path}, line {line}: the key {key.value} stands in line {seen[name]} already; keep one of "
                "the two"
            )
        seen[name] = line


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _nodes(tree: yaml.Node) -> Iterator[yaml.Node]:
    """Every node once, whatever aliases there are to it."""
    seen: set[int] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if id(node) not in seen:
            seen.add(id(node))
            yield node
            waiting += _inside(node)


def _inside(node: yaml.Node) -> list[yaml.Node]:
    if isinstance(node, yaml.MappingNode):
        return [part for pair in node.value for part in pair]
    return list(node.value) if isinstance(node, yaml.SequenceNode) else []


def _check_size(path: Path, tree: yaml.Node) -> None:
    """Count values with aliases written out, without writing them out."""
    sizes: dict[int, int] = {}
    open_nodes: set[int] = set()

    def size(node: yaml.Node) -> int:
        if id(node) in open_nodes:
            raise ValueError(f"{path}, line {_line(node)}: an alias stands inside of what it stands for")
        if id(node) not in sizes:
            open_nodes.add(id(node))
            sizes[id(node)] = 1 + sum(size(part) for part in _inside(node))
            open_nodes.remove(id(node))
        return sizes[id(node)]

    try:
        values = size(tree)
    except RecursionError as error:
        raise ValueError(f"{path} nests its values too deeply to be read") from error
    if values > MAX_VALUES:
        raise ValueError(
            f"{path} has {values} values with its aliases written out, where at most {MAX_VALUES} are read; "
            "write fewer aliases"
        )
