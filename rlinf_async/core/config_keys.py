"""Keys that users write in configs: by dotted names, and the nearest known key of a misspelt one."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any


def nearest(name: object, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name that is most like `name`, if one is at least `cutoff` like it (difflib's ratio)."""
    return next(iter(difflib.get_close_matches(str(name), list(names), n=1, cutoff=cutoff)), None)


MISSPELT = 0.8
"""Least ratio of difflib at which a name counts as another one misspelt."""

LEAST_BEGINNING = 3
"""Letters of a name's beginning that stand for it."""


def misspelt(name: object, names: Iterable[str]) -> str | None:
    """The known name that `name` is a misspelling of: one with the same letters, or nearly all of them; or
    the only one that begins with it.
    """
    known, text = list(names), str(name)
    swapped = [each for each in known if sorted(each) == sorted(text)]
    begun = [each for each in known if each.startswith(text) and len(text) >= LEAST_BEGINNING]
    if swapped or len(begun) == 1:
        return (swapped or begun)[0]
    return nearest(name, known, cutoff=MISSPELT)


LONGEST_VALUE = 80
"""Characters of a value in a sentence, which is short however long the value is."""


def shortened(value: object) -> str:
    """A value as Python writes it, within a line."""
    return clipped(repr(value))


def clipped(text: str) -> str:
    """A text within a line."""
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 4]} ..."


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """`; did you mean 'the nearest'?`, or nothing where no known name is near."""
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near else ""


def dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """`{"a.b": value}` of nested mappings; a list is a value."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        # An empty mapping is a value: taken apart, it would leave no key.
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def lookup(tree: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None where there is none."""
    value: Any = tree
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


BLOCK_NAME = "async"
MODE_PRESETS = ("off", "lean", "train", "rollout", "streamer", "full")
OWN_KEYS = frozenset({"mode", "train", "rollout", "streamer", "skip"})
"""Keys by which a block of another name is known for ours."""
STRAY_KEYS = ("mode", "train", "streamer")
"""Keys of the block that no framework has at the top of its configs; RLinf has a `rollout` of its own."""
OTHER_WORDS = frozenset({"asyncio", "sync"})
"""Words near to our name with a meaning of their own."""
MIN_LIKENESS = 0.8
"""Least ratio of difflib at which a key counts as a misspelling of our name."""


def misplaced(config: Any) -> str | None:
    """Return a sentence that tells what is wrong with how a config names the block; None if nothing is.

    Args:
        config: nested mappings, or a config of OmegaConf's; only its top is looked at.
    """
    for name in config:
        if isinstance(name, str) and name != BLOCK_NAME and _means_block(name, config):
            return f"the key {name} is unknown; did you mean {BLOCK_NAME}?"
    if BLOCK_NAME in config and config.get(BLOCK_NAME) is None:
        for name in STRAY_KEYS:
            if name in config and _is_content(name, config.get(name)):
                return (
                    f"the block {BLOCK_NAME} is empty, and the key {name} stands beside it; indent {name} "
                    f"below {BLOCK_NAME}, as in {BLOCK_NAME}: {{mode: full}}"
                )
    return None


def _means_block(name: str, config: Any) -> bool:
    letters = "".join(filter(str.isalpha, name.lower()))
    if sorted(letters) == sorted(BLOCK_NAME):
        return True
    likeness = difflib.SequenceMatcher(None, letters, BLOCK_NAME).ratio()
    if likeness >= MIN_LIKENESS and letters not in OTHER_WORDS:
        return True
    return letters.startswith(BLOCK_NAME) and _looks_like_block(config.get(name))


def _looks_like_block(value: Any) -> bool:
    return bool(OWN_KEYS & set(value)) if _is_mapping(value) else value in MODE_PRESETS


def _is_content(name: str, value: Any) -> bool:
    return (
        # YAML reads `mode: off` as False.
        value in MODE_PRESETS or value is False
        if name == "mode"
        else _is_mapping(value) and "enabled" in value
    )


def _is_mapping(value: Any) -> bool:
    """A mapping or a config of OmegaConf's, which is none to Python."""
    return hasattr(value, "keys")
