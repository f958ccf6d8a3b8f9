"""Keys that users write in configs: access by dotted names, and suggestions for misspelt keys."""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Iterator, Mapping
from typing import Any


def nearest(name: object, names: Iterable[str], *, cutoff: float = 0.6) -> str | None:
    """The known name most similar to `name`, if its similarity (difflib's ratio) is at least `cutoff`; first
    one with the same letters, small or large.
    """
    known_names, letters = list(names), str(name).casefold()
    alike = [each for each in known_names if each.casefold() == letters]
    return next(iter(alike or difflib.get_close_matches(str(name), known_names, n=1, cutoff=cutoff)), None)


def nearest_key(key: str, keys: Iterable[str]) -> str | None:
    """The dotted key most similar to `key`: by its last name in the same section, else of another section."""
    section, _, name = key.rpartition(".")
    siblings: dict[str, str] = {}
    others: list[str] = []
    for each in keys:
        place, _, last = each.rpartition(".")
        if place == section:
            siblings[last] = each
        else:
            others.append(each)
    # Without the section, which makes every key of it similar.
    near = nearest(name, siblings, cutoff=0.75)
    return nearest(key, others, cutoff=0.85) if near is None else siblings[near]


MIN_MISSPELT_RATIO = 0.8
"""Least ratio of difflib at which a name counts as a misspelling of another."""

MIN_PREFIX_LETTERS = 3
"""Letters that a prefix needs at least to stand for the whole name."""


def misspelt(name: object, names: Iterable[str]) -> str | None:
    """The known name that `name` misspells: one with the same letters in another order, the only one that
    begins with `name`, or one that shares nearly all letters.
    """
    known_names, text = list(names), str(name)
    anagrams = [each for each in known_names if sorted(each) == sorted(text)]
    completions = [each for each in known_names if each.startswith(text) and len(text) >= MIN_PREFIX_LETTERS]
    if anagrams or len(completions) == 1:
        return (anagrams or completions)[0]
    return nearest(name, known_names, cutoff=MIN_MISSPELT_RATIO)


def misspelt_key(key: str, keys: Iterable[str]) -> str | None:
    """The known dotted key that `key` misspells in one of its names; all other names are the same."""
    parts, split = key.split("."), [each.split(".") for each in keys]
    for place, part in enumerate(parts):
        before, after = parts[:place], parts[place + 1 :]
        alike = (each for each in split if each[:place] == before and each[place + 1 :] == after)
        if near := misspelt(part, [each[place] for each in alike if len(each) == len(parts)]):
            return ".".join([*before, near, *after])
    return None


def completed(section: Mapping[str, Any], usual: Mapping[str, Any]) -> dict[str, Any]:
    """Return `section` with the `usual` values of keys that it lacks, or has as null."""
    return {
        **usual,
        **{name: value for name, value in section.items() if name not in usual or value is not None},
    }


LONGEST_VALUE = 80
"""Most characters of a value in a message."""


def shortened(value: object) -> str:
    """The `repr` of a value, cut to `LONGEST_VALUE` characters."""
    return clipped(repr(value))


def clipped(text: str) -> str:
    """`text`, cut to `LONGEST_VALUE` characters."""
    return text if len(text) <= LONGEST_VALUE else f"{text[: LONGEST_VALUE - 4]} ..."


def did_you_mean(name: object, names: Iterable[str]) -> str:
    """`; did you mean 'the nearest'?`, or "" if no known name is near."""
    near = nearest(name, names)
    return f"; did you mean {near!r}?" if near else ""


def dotted(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Flatten nested mappings to `{"a.b": value}`; a list is a value."""
    flat: dict[str, Any] = {}
    for name, value in tree.items():
        # An empty mapping is a value: flattened, it would leave no key.
        if isinstance(value, Mapping) and value:
            flat |= dotted(value, f"{prefix}{name}.")
        else:
            flat[f"{prefix}{name}"] = value
    return flat


def entries(tree: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """All keys of nested mappings, by dotted name; as `dotted`, and the mappings themselves."""
    found: dict[str, Any] = {}
    for name, value in tree.items():
        found[f"{prefix}{name}"] = value
        if isinstance(value, Mapping):
            found |= entries(value, f"{prefix}{name}.")
    return found


def lookup(tree: Mapping[str, Any], key: str) -> Any:
    """The value of a dotted key; None if the key is missing."""
    value: Any = tree
    for name in key.split("."):
        if not isinstance(value, Mapping) or name not in value:
            return None
        value = value[name]
    return value


BLOCK_NAME = "async"
MODE_PRESETS = ("off", "lean", "train", "rollout", "streamer", "full")
OWN_KEYS = frozenset({"mode", "train", "rollout", "streamer", "skip"})
"""Keys that mark a block of another name as a misnamed `async` block."""
STRAY_KEYS = ("mode", "train", "streamer")
"""Keys of the block that no framework has at the top of its configs; RLinf has a `rollout` of its own."""
OTHER_WORDS = frozenset({"asyncio", "sync"})
"""Words similar to the block's name that have a meaning of their own."""
MIN_LIKENESS = 0.8
"""Least ratio of difflib at which a key counts as a misspelling of the block's name."""


def dotted_names(tree: Mapping[str, Any], blocks: Collection[str], place: str = "") -> Iterator[str]:
    """Yield a message for each key of nested mappings that has a dot, as an override has, if the block that
    it seems to be a key of is one of the dotted names `blocks` and stands beside it.

    YAML makes no block of such a key, and nothing would read it. In a block of the user's own it may be a
    name.
    """
    for name, value in tree.items():
        first, dot, _ = str(name).partition(".")
        block = f"{place}.{first}".lstrip(".")
        if dot and block in blocks and isinstance(tree.get(first), Mapping):
            within = f" in {place}" if place else ""
            yield (
                f"the key {name!r}{within} has a dot, so that it sets nothing in {block}; write it as "
                f"{_nested(str(name))}"
            )
        elif isinstance(value, Mapping) and block in blocks:
            yield from dotted_names(value, blocks, block)


def _nested(name: str) -> str:
    """A dotted name as YAML nests it: `a: {b: ...}`."""
    *outer, last = name.split(".")
    return "".join(f"{part}: {{" for part in outer) + f"{last}: ..." + "}" * len(outer)


def misplaced(config: Any) -> str | None:
    """Return a message if the `async` block is misspelt, or stands empty beside its own keys; else None.

    Args:
        config: nested mappings, or an OmegaConf config; only its top level is read.
    """
    for name in config:
        if isinstance(name, str) and name.startswith(f"{BLOCK_NAME}."):
            return f"the key {name!r} has a dot, so that it sets nothing; write it as {_nested(name)}"
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
    """True for mappings and for OmegaConf's DictConfig, which is no `Mapping`."""
    return hasattr(value, "keys")
