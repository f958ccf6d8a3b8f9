"""What may be shown to others: no absolute path, no secret, no name of a machine or a user."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

from rlinf_async.report.run_files import RunFiles

HIDDEN = "hidden"
RUN = "RUN"
"""Stands for the run's own directory in its config."""

SECRET = r"(?:token|key|secret|passw|credential)"
SECRET_KEY = re.compile(SECRET, re.IGNORECASE)
NUMBERS = re.compile(r"tokens(_|$)|token_(id|len)s?$", re.IGNORECASE)
"""Keys of a model's tokens, whose numbers are no secret."""
PERSONAL_KEY = re.compile(
    r"(^|[._-])(host|hostname|node_ip|ip|address|addr|user|username|email)$", re.IGNORECASE
)
SAID = re.compile(
    rf"([\w.-]*{SECRET}[\w.-]*['\"]?\s*[=:]\s*|bearer\s+)(?:\"[^\"]*\"|'[^']*'|\S+)", re.IGNORECASE
)
"""A secret and its name within a text."""
SHAPES = re.compile(
    r"\b(?:hf_\w{8,}|sk-[\w-]{8,}|gh[a-z]_\w{16,}|github_pat_\w+|xox[a-z]-[\w-]+|AKIA[A-Z0-9]{12,}"
    r"|eyJ[\w-]+\.[\w.-]+)"
)
"""Secrets that are known by what they look like."""
ADDRESS = re.compile(r"\b\d{1,3}(?:\.\d{1,3}){3}(?::\d+)?\b")
URL = re.compile(r"\b[a-z][a-z0-9+.-]*://[^\s'\"<>]+", re.IGNORECASE)
WINDOWS = re.compile(r"(?:\b[A-Za-z]:[\\/]|\\\\)[^\s'\"<>|]*")
POSIX = re.compile(r"(?:(?<![\w.~/])~[\w.-]*/|(?<![\w./])/+(?=[^\s/'\"<>])|/+(?=(?:home|Users)/))[^\s'\"<>]*")
HOMES = ("home", "Users")


def text(said: str) -> str:
    """`said` with `.../last` for every absolute path or address, and `hidden` for every secret."""
    said = SHAPES.sub(HIDDEN, SAID.sub(rf"\g<1>{HIDDEN}", said))
    said = URL.sub(lambda found: _last(found.group().partition("://")[2]), said)
    said = WINDOWS.sub(lambda found: _last(found.group().replace("\\", "/")), said)
    return ADDRESS.sub(HIDDEN, POSIX.sub(lambda found: _last(found.group()), said))


def plain(tree: Any, *, key: str = "") -> Any:
    """The same plain data, with nothing in it that should not be shown; `key` is the name of `tree`."""
    number = isinstance(tree, bool | int | float) and NUMBERS.search(key)
    if tree is not None and not number and (SECRET_KEY.search(key) or PERSONAL_KEY.search(key)):
        return HIDDEN
    if isinstance(tree, Mapping):
        return {text(str(name)): plain(value, key=str(name)) for name, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [plain(value) for value in tree]
    if tree is None or isinstance(tree, bool | int | float):
        return tree
    # As a whole: a path may have spaces.
    said = str(tree)
    whole = said.startswith(("/", "~")) and "\n" not in said and "/" in said
    return _last(text(said)) if whole else text(said)


def run(files: RunFiles) -> RunFiles:
    """What a page may be made of. The words of spans and metrics are not shown, only their numbers."""
    return replace(
        files,
        name=text(files.name),
        config=plain(_without_own_directory(files)),
        facts=plain(files.facts),
        summary=plain(files.summary),
        status=plain(files.status),
        missing=[text(sentence) for sentence in files.missing],
    )


def _last(path: str) -> str:
    parts = [part for part in PurePosixPath(path).parts if part.strip("/")]
    # A home directory is called by the name of its user.
    at_home = len(parts) > 1 and parts[-2] in HOMES
    if not parts or at_home or (len(parts) == 1 and not path.startswith("/")):
        return "..."
    return f".../{parts[-1]}"


def _without_own_directory(files: RunFiles) -> dict[str, Any]:
    directory = str(files.setting("runner.logger.log_path", "")).rstrip("/")
    if directory.count("/") < 1 or len(directory) < 3:
        return files.config
    return {name: _renamed(value, directory) for name, value in files.config.items()}


def _renamed(tree: Any, directory: str) -> Any:
    if isinstance(tree, dict):
        return {name: _renamed(value, directory) for name, value in tree.items()}
    if isinstance(tree, list):
        return [_renamed(value, directory) for value in tree]
    if isinstance(tree, str) and (tree == directory or tree.startswith(f"{directory}/")):
        return RUN + tree[len(directory) :]
    return tree
