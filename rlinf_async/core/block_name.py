"""Whether a config means our block by a key of another name, or has left it empty beside its content."""

from __future__ import annotations

import difflib
from typing import Any

NAME = "async"
PRESETS = ("off", "train", "rollout", "streamer", "full")
OWN_KEYS = frozenset({"mode", "train", "rollout", "streamer"})
"""Keys by which a block of another name is known for ours."""
STRAY_KEYS = ("mode", "train", "streamer")
"""Keys of the block that no framework has at the top of its configs; RLinf has a `rollout` of its own."""
OTHER_WORDS = frozenset({"asyncio", "sync"})
"""Near to our name, and words of their own."""
LIKE_ENOUGH = 0.8
"""difflib's ratio."""


def misplaced(config: Any) -> str | None:
    """What is wrong with how a config names the block, in a sentence; None if nothing is.

    Args:
        config: nested mappings, or a config of OmegaConf's; only its top is looked at.
    """
    for name in config:
        if isinstance(name, str) and name != NAME and _means_block(name, config):
            return f"the key {name} is unknown; did you mean {NAME}?"
    if NAME in config and config.get(NAME) is None:
        for name in STRAY_KEYS:
            if name in config and _is_content(name, config.get(name)):
                return (
                    f"the block {NAME} is empty, and the key {name} stands beside it; indent {name} below "
                    f"{NAME}, as in {NAME}: {{mode: full}}"
                )
    return None


def _means_block(name: str, config: Any) -> bool:
    letters = "".join(filter(str.isalpha, name.lower()))
    if sorted(letters) == sorted(NAME):
        return True
    likeness = difflib.SequenceMatcher(None, letters, NAME).ratio()
    if likeness >= LIKE_ENOUGH and letters not in OTHER_WORDS:
        return True
    return letters.startswith(NAME) and _looks_like_block(config.get(name))


def _looks_like_block(value: Any) -> bool:
    return bool(OWN_KEYS & set(value)) if _is_mapping(value) else value in PRESETS


def _is_content(name: str, value: Any) -> bool:
    return value in PRESETS or value is False if name == "mode" else _is_mapping(value) and "enabled" in value


def _is_mapping(value: Any) -> bool:
    """A mapping or a config of OmegaConf's, which is none to Python."""
    return hasattr(value, "keys")
