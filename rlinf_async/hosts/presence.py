"""Whether the packages that a config names by what it asks for are here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import entry_points
from importlib.util import find_spec
from typing import Any

from rlinf_async.core.nested import lookup
from rlinf_async.hosts.reasons import Reason, unknown


def is_here(package: str) -> bool:
    """Whether `package` can be imported; nothing of it is."""
    try:
        return find_spec(package) is not None
    except ValueError:  # a module without a spec, which somebody has put there
        return True
    except ModuleNotFoundError:  # the package that it is in is not here, or a finder says so by itself
        return False


def no_numbers(
    cfg: Mapping[str, Any],
    *,
    counts: Sequence[str],
    optional: Sequence[str],
    signed: Sequence[str],
    real: Sequence[str],
) -> Iterator[Reason]:
    """Which dotted keys of `cfg` (plain data) hold no number of their kind.

    Args:
        counts: whole numbers of at least 1, which are there.
        optional: whole numbers of at least 1, which may be absent or null, as those that follow.
        signed: whole numbers.
        real: any numbers.
    """
    for key in (*counts, *optional, *signed, *real):
        value = lookup(cfg, key)
        if value is None and key not in counts:
            continue
        if key in real and not _is_number(value, (int, float)):
            yield Reason(f"{key}={value!r} must be a number")
        elif key in signed and not _is_number(value, int):
            yield Reason(f"{key}={value!r} must be a whole number")
        elif key in (*counts, *optional) and (not _is_number(value, int) or value < 1):
            yield Reason(f"{key}={value!r} must be a whole number of at least 1")


def _is_number(value: object, kinds: type | tuple[type, ...]) -> bool:
    return isinstance(value, kinds) and not isinstance(value, bool)


def absent_env_classes(cfg: Mapping[str, Any]) -> Iterator[Reason]:
    """Which environment classes `cfg` (plain data) names that no package provides."""
    classes = sorted(entry_points(group="rlinf_async.envs").names)
    for mode in ("train", "eval"):
        name = lookup(cfg, f"env.{mode}.env_class")
        if name and name not in classes:
            yield unknown(f"env.{mode}.env_class", name, classes, "an entry point of rlinf_async.envs")


def absent_loggers(
    key: str, choice: object, loggers: Sequence[str], *, what: str, packages: Sequence[str], instead: str
) -> Iterator[Reason]:
    """Which of the loggers that `key` asks for, one name or several, cannot log.

    Args:
        loggers: all names that the framework has, each of which is `what`.
        packages: those of them that are packages of their own, by the same name.
        instead: one that needs nothing.
    """
    names = [choice] if isinstance(choice, str) else choice if isinstance(choice, Sequence) else ()
    for name in names:
        if name not in loggers:
            yield unknown(key, name, loggers, what)
        elif name in packages and not is_here(name):
            yield Reason(f"{key}={name} needs the package {name}: pip install {name}", f"{key}=[{instead}]")
