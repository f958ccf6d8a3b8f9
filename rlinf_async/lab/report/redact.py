"""What may be shown to others, by what is allowed: a secret that nobody has thought of stays hidden."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlinf_async.lab.report.run_files import RunFiles

HIDDEN = "hidden"
RUN = "RUN"
"""Stands for the run's own directory in its config."""

KNOWN = re.compile(
    r"(?:config|experiment|group|model|project|task|task_suite)_name|id|label|title|unnorm_key"
    r"|environments|policy_key|rlinf-async|rlinf|ray|torch|python"
    r"|(?:.*[\W_])?(?:actor|aggregation|backends?|balance|class|correction|critic|device|dir|dtype|embodiment|envs?"
    r"|epochs?|estimator|format|func|group|implementation|interval|kind|length|level|method|mode|normalization|pack|path"
    r"|penalty|placement|precision|proximal|publication|ranks|reward|rollout|scheduler|seed|setup|shards|size|steps"
    r"|strategy|suffix|tag|type|variant)"
)
"""Keys that tell which of several things is used, how much of it, or where it lies."""
LONG = 10_000
"""A smaller number is too short to be a secret."""

NAME = re.compile(r"[\w.+=,-]+")
RELATIVE = re.compile(rf"{NAME.pattern}(?:/{NAME.pattern})*")
SENTENCE = re.compile(r"(?:[\w.+=,; -]|: | / )*")
HOMES = ("home", "Users")


def plain(tree: object, *, key: str = "", own: str = "") -> Any:
    """The same plain data, `hidden` where it may not be shown, and `.../last` for an absolute path.

    Args:
        key: The name of `tree`, and of what it lists. Long numbers and texts are shown under a known one.
        own: The run's own directory.
    """
    if isinstance(tree, Mapping):
        pairs = ((str(name), value) for name, value in tree.items())
        return {
            name if SENTENCE.fullmatch(name) else HIDDEN: plain(value, key=name, own=own)
            for name, value in pairs
        }
    if isinstance(tree, list | tuple):
        return [plain(value, key=key, own=own) for value in tree]
    if tree is None or isinstance(tree, bool | float) or (isinstance(tree, int) and abs(tree) < LONG):
        return tree
    if not KNOWN.fullmatch(key):
        return HIDDEN
    return tree if isinstance(tree, int) else _text(str(tree), own)


def run(files: RunFiles) -> RunFiles:
    """What a page may be made of. Of the other records only numbers are shown, and our own words."""
    own = str(files.setting("runner.logger.log_path", "")).rstrip("/")
    return replace(
        files,
        config=plain(files.config, own=own if own.count("/") and len(own) > 2 else ""),
        facts=plain(files.facts),
    )


def _text(text: str, own: str) -> str:
    if own and f"{text}/".startswith(f"{own}/"):
        text = RUN + text[len(own) :]
    parts = [part for part in re.split(r"[/\\]", text) if part.strip()]
    at_home = any(part in HOMES for part in parts)
    if SENTENCE.fullmatch(text) or (RELATIVE.fullmatch(text) and not at_home):
        return text
    # A home directory is called by the name of its user.
    if len(parts) < 2 or "://" in text or parts[-2] in HOMES or not NAME.fullmatch(parts[-1]):
        return HIDDEN
    return f".../{parts[-1]}"
