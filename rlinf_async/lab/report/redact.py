"""Hide all texts of a run but those on a list of allowed ones: unforeseen secrets stay hidden, too."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from rlinf_async.lab.report.run_files import RunFiles

HIDDEN_MARK = "hidden"
RUN_PLACEHOLDER = "RUN"
"""The text in place of the run's own directory in its config."""

KNOWN_KEYS = re.compile(
    r"(?:config|experiment|group|model|project|task|task_suite)_name|id|label|title|unnorm_key"
    r"|environments|policy_key|rlinf-async|rlinf|ray|torch|python"
    r"|(?:.*[\W_])?(?:actor|aggregation|backends?|balance|class|correction|critic|device|dir|dtype|embodiment|envs?"
    r"|epochs?|estimator|format|func|group|implementation|interval|kind|length|level|method|mode|normalization|pack|path"
    r"|penalty|placement|precision|proximal|publication|ranks|reward|rollout|scheduler|seed|setup|shards|size|steps"
    r"|strategy|suffix|tag|type|variant)"
)
"""Keys with choices, amounts or paths as values."""
MIN_SECRET_NUMBER = 10_000
"""Smaller numbers are too short to be secrets."""

NAME_PATTERN = re.compile(r"[\w.+=,-]+")
RELATIVE_PATH_PATTERN = re.compile(rf"{NAME_PATTERN.pattern}(?:/{NAME_PATTERN.pattern})*")
SENTENCE_PATTERN = re.compile(r"(?:[\w.+=,; -]|: | / )*")
HOME_FOLDERS = ("home", "Users")


def plain(tree: object, *, key: str = "", own: str = "") -> Any:
    """Return plain data with `hidden` in place of private values, and `.../last` for absolute paths.

    Args:
        key: the key of `tree`, also for the entries of a list. Long numbers and texts are shown only under a
            known key.
        own: the run's own directory.
    """
    if isinstance(tree, Mapping):
        pairs = ((str(name), value) for name, value in tree.items())
        return {
            name if SENTENCE_PATTERN.fullmatch(name) else HIDDEN_MARK: plain(value, key=name, own=own)
            for name, value in pairs
        }
    if isinstance(tree, list | tuple):
        return [plain(value, key=key, own=own) for value in tree]
    if (
        tree is None
        or isinstance(tree, bool | float)
        or (isinstance(tree, int) and abs(tree) < MIN_SECRET_NUMBER)
    ):
        return tree
    if not KNOWN_KEYS.fullmatch(key):
        return HIDDEN_MARK
    return tree if isinstance(tree, int) else _text(str(tree), own)


def run(files: RunFiles) -> RunFiles:
    """Return the part of a run's files that a page may show: numbers, and texts of this package."""
    own = str(files.setting("runner.logger.log_path", "")).rstrip("/")
    return replace(
        files,
        config=plain(files.config, own=own if own.count("/") and len(own) > 2 else ""),
        facts=plain(files.facts),
    )


def _text(text: str, own: str) -> str:
    if own and f"{text}/".startswith(f"{own}/"):
        text = RUN_PLACEHOLDER + text[len(own) :]
    parts = [part for part in re.split(r"[/\\]", text) if part.strip()]
    at_home = any(part in HOME_FOLDERS for part in parts)
    if SENTENCE_PATTERN.fullmatch(text) or (RELATIVE_PATH_PATTERN.fullmatch(text) and not at_home):
        return text
    # A home directory has the name of its user.
    if len(parts) < 2 or "://" in text or parts[-2] in HOME_FOLDERS or not NAME_PATTERN.fullmatch(parts[-1]):
        return HIDDEN_MARK
    return f".../{parts[-1]}"
