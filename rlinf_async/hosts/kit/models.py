"""Checks that a policy of `rlinf_async.models` can be built of its section, before Ray starts, and counts
it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rlinf_async.entry_points import MODELS_GROUP, load_class, names_of
from rlinf_async.hosts.reasons import Reason

SIZES_GROUP = "rlinf_async.model_sizes"
"""Entry points by the same names: functions that return the number of parameters of a section's policy,
or raise what building it would raise. A model whose imports take long need not be built to find out."""


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


def unbuildable(section: Mapping[str, Any], *, key: str) -> Iterator[Reason]:
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
