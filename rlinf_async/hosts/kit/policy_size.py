"""The size of a policy that a package declares, from its section of a config."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from rlinf_async.core.failures import LONGEST_ERROR, ForeignError, Terminated, one_line
from rlinf_async.entry_points import MODELS_GROUP, load_class, names_of

SIZES_GROUP = "rlinf_async.model_sizes"
"""Entry points by model: functions that return the number of parameters of the policy of a config section, or
raise the error that building the policy would raise. They spare a check the imports of a large model."""


def is_declared(section: Mapping[str, Any]) -> bool:
    """Return True if a package declares the policy of `section` as an entry point."""
    return str(section.get("model_type")) in names_of(MODELS_GROUP)


def parameters(section: Mapping[str, Any], *, key: str) -> int:
    """Return the number of parameters of the policy of `section`, the block at `key`; a package declares it.

    Raises:
        ImportError: a package that the policy needs is not installed.
        ValueError: the policy cannot be built; the message quotes the error.
    """
    name = str(section.get("model_type"))
    with naming(section, key=key):
        if name in names_of(SIZES_GROUP):
            return int(load_class(SIZES_GROUP, name)(section))
        # These import torch.
        from rlinf_async.hosts.kit.building import parameters_of
        from rlinf_async.hosts.policy_contract import keeping_defaults

        with keeping_defaults():
            return parameters_of(load_class(MODELS_GROUP, name), section)


@contextmanager
def naming(section: Mapping[str, Any], *, key: str) -> Iterator[None]:
    """Raise the error of a policy's builder as a ValueError that names the policy and the block at `key`."""
    try:
        yield
    # Callers report a missing package in their own words; a signal's exception is no fault of the builder.
    except (ImportError, KeyboardInterrupt, Terminated):
        raise
    except BaseException as error:  # noqa: BLE001 a builder of another package may raise anything, as SystemExit
        name = section.get("model_type")
        text = f"{key} does not make a {name}: {one_line(error, LONGEST_ERROR)}"
        raise ValueError(text) from ForeignError.of(error)
