"""Checks that the packages, classes and files that a config names exist, and that its policy can be built.

Also turns an error of the framework's own check into one sentence.
"""

from __future__ import annotations

import errno
import io
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from rlinf_async.core.config_keys import dotted, lookup
from rlinf_async.entry_points import ENVS_GROUP, MODELS_GROUP, load_class, names_of
from rlinf_async.hosts.judge.reasons import Reason, RefusedError, readable, unknown_reason
from rlinf_async.hosts.judge.table import Table
from rlinf_async.hosts.kit.policy_size import is_declared, parameters

CHECKS_GROUP = "rlinf_async.env_checks"
"""Entry points by environment class: functions `(section, *, key, model)` that yield the reasons why
environments cannot be built from a config section, or do not fit the policy. They run before Ray starts."""


def environment_reasons(sections: Mapping[str, Any], model: object = None) -> Iterator[Reason]:
    """Yield a reason for each environment class in `sections`, by dotted key, that no package provides, and
    the reasons of its own check; a class without a check is not imported. `model` has blocks around the
    policy's.
    """
    keys = dotted(model) if isinstance(model, Mapping) else {}
    judged: list[Any] = []
    for key, section in sections.items():
        # `env.eval` is often `${env.train}`: a mistake in both is reported once.
        if not isinstance(section, Mapping) or section in judged:
            continue
        judged.append(section)
        if not isinstance(name := section.get("env_class"), str) or not name:
            continue  # the table of keys judges what is no text
        if name not in (classes := names_of(ENVS_GROUP)):
            yield unknown_reason(f"{key}.env_class", name, classes, f"an entry point of {ENVS_GROUP}")
        elif name in names_of(CHECKS_GROUP):
            yield from load_class(CHECKS_GROUP, name)(section, key=key, model=keys)


def package_reasons(
    key: str, choice: object, packages: Mapping[str, str], remedy: str = "", *, instead: str = ""
) -> Iterator[Reason]:
    """Yield a reason for each name in `choice`, one name or a list at `key`, if its package of `packages` is
    missing; `instead` is a list of names that need no package.
    """
    from rlinf_async.extras import is_here  # configs of some hosts name packages

    for name in names_in(choice):
        if (package := packages.get(name)) and not is_here(package):
            override = f"{key}={instead}" if instead else ""
            what = remedy or f"install it: pip install {package}"
            yield Reason(
                f"{key}={name} needs the package {package}, which is not installed; {what}", override
            )


def names_in(choice: object) -> Sequence[Any]:
    """Return the names in a value that is one name or a list of them; none in any other value."""
    return [choice] if isinstance(choice, str) else choice if isinstance(choice, Sequence) else ()


FILE_WORDS, PATH_WORDS = "a file of weights", "the path or the name of a model"
FOLDER_WORDS = "the folder for the run's records"
"""Kinds of keys in a table that name a file, a file or a folder if they name no model of a hub, and a folder
to write."""


def file_reasons(cfg: Mapping[str, Any], table: Table, *more_keys: str) -> Iterator[Reason]:
    """Yield a reason for each path at a key of `FILE_WORDS` or `PATH_WORDS` that does not exist, or that is a
    folder instead of a file. `more_keys` are judged as those of `PATH_WORDS`.

    Such a path begins with `/`, `./`, `../` or `~`: else it may name a model.
    """
    paths: dict[str, str] = {}
    files = table.keys_of(FILE_WORDS)
    for key in (*files, *table.keys_of(PATH_WORDS), *more_keys):
        path = lookup(cfg, key)
        if isinstance(path, str) and path and (key in files or path.startswith(("/", "./", "../", "~"))):
            paths.setdefault(path, key)  # several keys often have the same path
    for path, key in paths.items():
        is_there = os.path.exists(path)  # False for a path too long, or with a null byte
        if path[0] == "~" and not is_there:  # what loads weights does not read `~` as the home folder
            yield Reason(f"{key}={path} does not exist; use the path without ~")
        elif not is_there:
            yield Reason(f"{key}={path} does not exist; name the checkpoint, or the folder of the model")
        elif key in files and Path(path).is_dir():
            yield Reason(f"{key}={path} is a folder; name the file of weights in it")


def folder_reasons(cfg: Mapping[str, Any], table: Table, *more_keys: str) -> Iterator[Reason]:
    """Yield a reason for each key of `FOLDER_WORDS`, and of `more_keys`, with a path to which no records can
    be written. Nothing is created.
    """
    for key in (*table.keys_of(FOLDER_WORDS), *more_keys):
        if isinstance(directory := lookup(cfg, key), str):
            yield from _folder_reasons(directory, key=key)


def _folder_reasons(directory: str, *, key: str) -> Iterator[Reason]:
    if not directory.strip():
        yield Reason(f"{key} is empty; name a folder, as in {key}=runs/first")
        return
    if "://" in directory or directory.startswith(("~", "$")):  # nobody replaces what a shell would
        yield Reason(
            f"{key}={directory} is no path of this machine; name a folder in full, without ~, $ and ://"
        )
        return
    # The nearest existing folder decides: the missing ones are created in it.
    place = Path(directory).absolute()
    for each in (place, *place.parents):
        try:
            is_folder = S_ISDIR(each.stat().st_mode)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:  # a file as a parent, a path too long, or a null byte
            why = getattr(error, "strerror", None) or str(error)
        else:
            if is_folder and os.access(each, os.W_OK):
                return
            why = os.strerror(errno.EACCES if is_folder else errno.ENOTDIR)
        yield Reason(f"{directory} ({key}) cannot be written: {why}")
        return


def model_reasons(section: Mapping[str, Any], *, key: str) -> Iterator[Reason]:
    """Yield a reason if no package declares the policy of `section`, or if it cannot be built."""
    if not isinstance(section.get("model_type"), str):
        return  # the table of keys judges it
    if not is_declared(section):
        name, models = section.get("model_type"), names_of(MODELS_GROUP)
        yield unknown_reason(f"{key}.model_type", name, models, f"an entry point of {MODELS_GROUP}")
        return
    if section.get("model_path"):
        return  # the builder may read gigabytes of a checkpoint
    try:
        parameters(section, key=key)
    except ImportError as error:
        yield Reason(f"{key}.model_type={section['model_type']} cannot be imported: {error}")
    except ValueError as error:
        yield Reason(str(error))


UNCLEAR_ERRORS: tuple[type[Exception], ...] = (ArithmeticError, AttributeError, TypeError)
"""Exceptions of a framework's check with a message that rarely names the key at fault."""
CHECKING_ERRORS: tuple[type[Exception], ...] = (
    *UNCLEAR_ERRORS,
    AssertionError,
    LookupError,
    NotImplementedError,
    ValueError,
)
"""All exceptions of such a check, which asserts, reads what may be missing, and builds objects."""
MAX_ERROR_CHARACTERS = 500
"""Characters kept of a framework's error message, which may contain a whole config."""


@contextmanager
def own_check(framework: str, *more_errors: type[Exception]) -> Iterator[None]:
    """Turn an exception of `framework`'s own check of a config into a RefusedError of one sentence.

    `more_errors` are exceptions of the package that builds the framework's classes.
    """
    try:
        with redirect_stdout(io.StringIO()):  # the check prints its success, which is no JSON for `--json`
            yield
    except (*CHECKING_ERRORS, *more_errors) as error:
        cause = error.__cause__ or error  # Hydra wraps errors of a framework's own classes
        # OmegaConf's errors have the attribute `full_key`, and the object's type on their further lines.
        key = getattr(cause, "full_key", None)
        text = f"{str(cause).splitlines()[0]}: {key}" if key else " ".join(str(cause).split())
        line = str(traceback.extract_tb(cause.__traceback__)[-1].line)
        # Errors about an attribute of null or a wrong number name no key; the framework's line of code does.
        if text and not key and cause is error and isinstance(error, UNCLEAR_ERRORS):
            text = f"{text}, in the line {line}"
        text = f"{framework} refuses this config: {readable(text or line)}"
        raise RefusedError([Reason(text[:MAX_ERROR_CHARACTERS])]) from error
