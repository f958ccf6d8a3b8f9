"""Whether a policy of `rlinf_async.models` can be built of its section, before Ray starts, and its size."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rlinf_async.entry_points import load_class, names_of
from rlinf_async.hosts.reasons import Reason

MODELS = "rlinf_async.models"
SIZES = "rlinf_async.model_sizes"
"""By the same names: what says of a section how many parameters its policy has, or raises what building it
would raise. A model whose imports take long is then not built to find out."""


def is_declared(section: Mapping[str, Any]) -> bool:
    """Whether a package declares the policy of a section."""
    return str(section.get("model_type")) in names_of(MODELS)


def parameters(section: Mapping[str, Any], *, key: str) -> int:
    """How many parameters the policy of `section` has, which stands at `key` and which a package declares.

    Raises:
        ImportError: what it is built of is not here.
        ValueError: it cannot be built, with what its package has said.
    """
    name = str(section.get("model_type"))
    with naming(section, key=key):
        if name in names_of(SIZES):
            return int(load_class(SIZES, name)(section))
        from rlinf_async.hosts.kit.building import parameters_of  # which loads torch

        return parameters_of(load_class(MODELS, name), section)


@contextmanager
def naming(section: Mapping[str, Any], *, key: str) -> Iterator[None]:
    """What a builder says of `section`, which stands at `key`, becomes a ValueError that names them."""
    try:
        yield
    except ImportError:
        raise
    except Exception as error:
        said = " ".join(str(error).split())[:200]
        name = section.get("model_type")
        raise ValueError(f"{key} does not make a {name}: {type(error).__name__}: {said}") from error


def unbuildable(section: Mapping[str, Any], *, key: str) -> Iterator[Reason]:
    """That a policy which a package declares cannot be built of its section; nothing of other models."""
    if not is_declared(section) or section.get("model_path"):
        return  # with a checkpoint the builder may read gigabytes
    try:
        parameters(section, key=key)
    except ImportError as error:
        yield Reason(f"{key}.model_type={section['model_type']} cannot be imported: {error}")
    except ValueError as error:
        yield Reason(str(error))
