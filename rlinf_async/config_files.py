"""Checks the user's YAML files before Hydra reads them."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import yaml

from rlinf_async.core.config_keys import BLOCK_NAME
from rlinf_async.observe.read_files import read_named
from rlinf_async.observe.yaml_data import (
    FAST_YAML_LOADER,
    MAX_YAML_BYTES,
    SelfContainedError,
    has_more_nodes,
    inner_nodes,
    yaml_depths,
)

MAX_VALUES = 100_000
"""Most values of a file, with every alias written out; the largest configs of RLinf have a few hundred."""
FOREIGN_TAGS = frozenset(f"tag:yaml.org,2002:{name}" for name in ("set", "omap", "pairs"))
"""Types of YAML that OmegaConf has none for."""
UTF_16 = (b"\xff\xfe", b"\xfe\xff")
PYTHON_LOADER = yaml.loader.SafeLoader
"""Reads a file again that the fast loader refuses, for its better errors. Not `yaml.SafeLoader`, which is the
fast loader while `compose` composes."""
MAX_FAST_DEPTH = 100


def check_file(path: Path) -> None:
    """Check that `path` is a YAML mapping, as a part of a config must be, or empty.

    Raises:
        ValueError: the file has a fault; the message has the line.
    """
    tree = _parse(path, _text(path))
    if tree is not None:
        _check_kind(path, tree)
        _check_size(path, tree)
        for node in _nodes(tree):
            if node.tag in FOREIGN_TAGS:
                raise ValueError(
                    f"{path}, line {_line(node)}: a config has no values of the type "
                    f"!!{node.tag.rpartition(':')[2]}; write a list, a block or a text"
                )
            if isinstance(node, yaml.MappingNode):
                _check_keys(path, node)
                if node is tree:
                    _check_block(path, node)


def check_not_empty(path: Path) -> None:
    """Check that the primary file of a config is not empty.

    Raises:
        ValueError: the file is empty.
    """
    if _parse(path, _text(path)) is None:
        raise ValueError(
            f"{path} is empty; write at least its defaults, as in: defaults: [metaworld_ppo_mlp]"
        )


def _text(path: Path) -> str:
    try:
        raw = read_named(path, limit=MAX_YAML_BYTES)
    except OSError as error:  # a folder, a link to itself, a pipe, a file of another user
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


def _parse(path: Path, text: str) -> yaml.Node | None:
    try:
        if _is_shallow(text):
            with suppress(yaml.YAMLError):
                return yaml.compose(text, Loader=FAST_YAML_LOADER)
        return yaml.compose(text, Loader=PYTHON_LOADER)
    except yaml.reader.ReaderError as error:
        line = text.count("\n", 0, error.position) + 1
        raise ValueError(
            f"{path}, line {line}: YAML does not allow the character {text[error.position]!r}; take it out"
        ) from error
    except yaml.YAMLError as error:
        raise ValueError(unreadable_yaml(error, path)) from error
    except RecursionError as error:
        raise ValueError(f"{path} nests its values too deeply to be read") from error


def _is_shallow(text: str) -> bool:
    """Return True if a text is YAML whose values nest at most `MAX_FAST_DEPTH` deep."""
    try:
        return all(depth <= MAX_FAST_DEPTH for depth in yaml_depths(text))
    except yaml.YAMLError:
        return False


def unreadable_yaml(error: yaml.YAMLError, path: Path | None = None) -> str:
    """PyYAML's error in one sentence with file and line; its own text has four lines."""
    problem = str(getattr(error, "problem", None) or getattr(error, "reason", None) or error).splitlines()[0]
    mark = getattr(error, "problem_mark", None)
    place = str(path) if path is not None else str(getattr(mark, "name", "a config"))
    if mark is not None:
        place += f", line {mark.line + 1}"
    if r"'\t'" in problem:
        return f"{place}: {problem}; indent with spaces"
    context, begin_mark = getattr(error, "context", None), getattr(error, "context_mark", None)
    if context and begin_mark is not None:
        problem += f", {context} that begins in line {begin_mark.line + 1}"
    return f"{place}: {problem}"


def _check_kind(path: Path, tree: yaml.Node) -> None:
    if not isinstance(tree, yaml.MappingNode):
        kind = "a list" if isinstance(tree, yaml.SequenceNode) else "one value"
        raise ValueError(
            f"{path}, line {_line(tree)}: this is {kind}, and a config has keys, as in async: {{mode: full}}"
        )


def _check_block(path: Path, tree: yaml.MappingNode) -> None:
    """Check that the block is no list: Hydra cannot merge a list with the block of another file."""
    for key, content in tree.value:
        if key.value == BLOCK_NAME and isinstance(content, yaml.SequenceNode):
            raise ValueError(
                f"{path}, line {_line(key)}: {BLOCK_NAME} is a list and must be a block, as in "
                f"{BLOCK_NAME}: {{mode: full}}"
            )


def _check_keys(path: Path, mapping: yaml.MappingNode) -> None:
    line_of_key: dict[tuple[str, str], int] = {}
    for key, _ in mapping.value:
        line = _line(key)
        if not isinstance(key, yaml.ScalarNode):
            raise ValueError(f"{path}, line {line}: a key is one word, and this is a list or a block")
        if key.tag.endswith(":null"):
            raise ValueError(
                f"{path}, line {line}: the key {key.value or 'of an empty name'} is null for YAML; write it "
                "in quotes"
            )
        if key.value != key.value.strip():
            raise ValueError(
                f"{path}, line {line}: the key {key.value!r} has a space at one of its ends; take it out"
            )
        name = (key.tag, key.value)
        # YAML's `<<` may stand in a mapping more than once.
        if name in line_of_key and not key.tag.endswith(":merge"):
            raise ValueError(
                f"{path}, line {line}: the key {key.value} stands in line {line_of_key[name]} already; keep "
                "one of the two"
            )
        line_of_key[name] = line


def _line(node: yaml.Node) -> int:
    return int(node.start_mark.line) + 1


def _nodes(tree: yaml.Node) -> Iterator[yaml.Node]:
    """Yield every node once, even if aliases refer to it."""
    visited_ids: set[int] = set()
    waiting = [tree]
    while waiting:
        node = waiting.pop()
        if id(node) not in visited_ids:
            visited_ids.add(id(node))
            yield node
            waiting += inner_nodes(node)


def _check_size(path: Path, tree: yaml.Node) -> None:
    try:
        too_large = has_more_nodes(tree, MAX_VALUES)
    except SelfContainedError as error:
        raise ValueError(
            f"{path}, line {_line(error.node)}: an alias is inside the value that it stands for"
        ) from error
    except RecursionError as error:
        raise ValueError(f"{path} nests its values too deeply to be read") from error
    if too_large:
        raise ValueError(
            f"{path} has more than {MAX_VALUES} values with its aliases written out; write fewer aliases"
        )
