"""Checks that the packages, classes, files and policies that a config names exist and can be built of it; and
puts an error of the framework's own check into a sentence.
"""

from __future__ import annotations

import errno
import io
import os
import traceback
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from stat import S_ISDIR
from typing import Any

from rlinf_async.core.config_keys import lookup
from rlinf_async.entry_points import ENVS_GROUP, MODELS_GROUP, load_class, names_of
from rlinf_async.hosts.judge.reasons import LONG_WORD, Reason, RefusedError, clip_word, unknown

CHECKS_GROUP = "rlinf_async.env_checks"
"""Entry points by the names of environments: functions that yield what stands against building them of a
section, before Ray starts."""
SIZES_GROUP = "rlinf_async.model_sizes"
"""Entry points by the names of models: functions that return the number of parameters of a section's policy,
or raise what building it would raise. A model whose imports take long need not be built to find out."""


def is_here(package: str) -> bool:
    """Return True if `package` can be imported; nothing of it is imported."""
    try:
        return find_spec(package) is not None
    except ValueError:  # a module without a spec, put there by other code
        return True
    except ModuleNotFoundError:  # the package that it is in is not here, or a finder says so by itself
        return False


def environment_reasons(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Yield the environment classes in `cfg` (plain data) that no package provides, and what is wrong with
    the sections of others.

    A class of which its package declares no check is not looked at, and not imported.
    """
    classes, train = names_of(ENVS_GROUP), lookup(cfg, "env.train")
    for mode in ("train", "eval"):
        section, key = lookup(cfg, f"env.{mode}"), f"env.{mode}"
        # `env.eval` is often `${env.train}`: the same mistake is told once.
        if not isinstance(section, Mapping) or (mode == "eval" and section == train):
            continue
        if (name := section.get("env_class")) and name not in classes:
            yield unknown(f"{key}.env_class", name, classes, f"an entry point of {ENVS_GROUP}")
        elif name in names_of(CHECKS_GROUP):
            yield from load_class(CHECKS_GROUP, str(name))(section, key=key)


def logger_reasons(key: str, choice: object, loggers: Sequence[str], *, what: str) -> Iterator[Reason]:
    """Yield the loggers that `key` asks for, one name or several, and that are none of `loggers`, each
    `what`.
    """
    for name in _names(choice):
        if name not in loggers:
            yield unknown(key, name, loggers, what)


def logger_package_reasons(
    key: str, choice: object, packages: Sequence[str], *, instead: str
) -> Iterator[Reason]:
    """Yield the loggers that `key` asks for and that need one of `packages`, of the same name, that is
    missing; `instead` is a logger that needs nothing.
    """
    for name in _names(choice):
        if name in packages and not is_here(name):
            yield Reason(f"{key}={name} needs the package {name}: pip install {name}", f"{key}=[{instead}]")


def _names(choice: object) -> Sequence[Any]:
    return [choice] if isinstance(choice, str) else choice if isinstance(choice, Sequence) else ()


def file_reasons(cfg: Mapping[str, Any], keys: Sequence[str]) -> Iterator[Reason]:
    """Yield the files and folders that `cfg` (plain data) names and that do not exist.

    A path begins with `/`, `./`, `../` or `~`; anything else may be the name of a model on a hub.
    """
    paths: dict[str, str] = {}
    for key in keys:
        path = lookup(cfg, key)
        if isinstance(path, str) and path.startswith(("/", "./", "../", "~")):
            paths.setdefault(path, key)  # one key often repeats another
    for path, key in paths.items():
        if not is_there(path):
            yield Reason(f"{key}={path} does not exist; name the checkpoint, or the folder of the model")


def is_there(path: str) -> bool:
    """Return True if there is a file or folder at `path`, which may be no path at all."""
    try:
        return Path(path).expanduser().exists()
    except (OSError, RuntimeError, ValueError):  # too long, of an unknown user, or with a null byte
        return False


def directory_reasons(directory: str, *, key: str) -> Iterator[Reason]:
    """Yield a reason if records cannot be written into a directory, which `key` names; nothing is made to
    find out.
    """
    # The nearest folder that exists decides: those below it are made in it.
    place = Path(directory).absolute()
    for each in (place, *place.parents):
        try:
            is_folder = S_ISDIR(each.stat().st_mode)
        except FileNotFoundError:
            continue
        except (OSError, ValueError) as error:  # a file on the way, too long, or with a null byte
            why = getattr(error, "strerror", None) or str(error)
        else:
            if is_folder and os.access(each, os.W_OK):
                return
            why = os.strerror(errno.EACCES if is_folder else errno.ENOTDIR)
        yield Reason(f"{directory}, by {key}, cannot be written: {why}")
        return


def is_declared(section: Mapping[str, Any]) -> bool:
    """Return True if a package declares the policy of a section."""
    return str(section.get("model_type")) in names_of(MODELS_GROUP)


def parameters(section: Mapping[str, Any], *, key: str) -> int:
    """Return the number of parameters of the policy of `section`, which stands at `key` and which a
    package declares.

    Raises:
        ImportError: a package that it is built of is not installed.
        ValueError: it cannot be built, with the message of its package.
    """
    name = str(section.get("model_type"))
    with naming(section, key=key):
        if name in names_of(SIZES_GROUP):
            return int(load_class(SIZES_GROUP, name)(section))
        from rlinf_async.hosts.kit.building import parameters_of  # which loads torch

        return parameters_of(load_class(MODELS_GROUP, name), section)


@contextmanager
def naming(section: Mapping[str, Any], *, key: str) -> Iterator[None]:
    """Raise the error of a builder about `section`, which stands at `key`, as a ValueError that names
    both.
    """
    try:
        yield
    # A package that is missing is told in other words by the callers.
    except ImportError:
        raise
    # Broad: the builder is another package's, and raises whatever its parts raise.
    except Exception as error:
        message = " ".join(str(error).split())[:200]
        name = section.get("model_type")
        raise ValueError(f"{key} does not make a {name}: {type(error).__name__}: {message}") from error


def model_reasons(section: Mapping[str, Any], *, key: str) -> Iterator[Reason]:
    """Yield a reason if a policy which a package declares cannot be built of its section; none for other
    models.
    """
    if not is_declared(section) or section.get("model_path"):
        return  # with a checkpoint the builder may read gigabytes
    try:
        parameters(section, key=key)
    except ImportError as error:
        yield Reason(f"{key}.model_type={section['model_type']} cannot be imported: {error}")
    except ValueError as error:
        yield Reason(str(error))


CHECKING_ERRORS: tuple[type[Exception], ...] = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    NotImplementedError,
    TypeError,
    ValueError,
)
"""Errors of frameworks that check by asserts, by attributes that they take for granted and by building."""
UNCLEAR_ERRORS = (ArithmeticError, AttributeError, TypeError)
LONGEST_TEXT = 500
"""Characters of an error of a framework's, which may hold a whole config."""


@contextmanager
def own_check(framework: str, *more_errors: type[Exception]) -> Iterator[None]:
    """Raise what `framework`'s own check of a config raises as a refusal of one sentence.

    `more_errors` are those of a package that builds the framework's classes.
    """
    try:
        with redirect_stdout(io.StringIO()):  # it praises what passes, where `explain --json` writes
            yield
    except (*CHECKING_ERRORS, *more_errors) as error:
        cause = error.__cause__ or error  # Hydra wraps errors of a framework's own classes
        # OmegaConf's errors have the key, and the object's type on further lines.
        key = getattr(cause, "full_key", None)
        text = f"{str(cause).splitlines()[0]}: {key}" if key else " ".join(str(cause).split())
        line = str(traceback.extract_tb(cause.__traceback__)[-1].line)
        # An attribute of null, or a number that is none, names no key: the line of the framework does.
        if text and not key and cause is error and isinstance(error, UNCLEAR_ERRORS):
            text = f"{text}, in the line {line}"
        text = f"{framework} refuses this config: {LONG_WORD.sub(clip_word, text or line)}"
        raise RefusedError([Reason(text[:LONGEST_TEXT])]) from error
