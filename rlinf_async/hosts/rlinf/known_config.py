"""Values of a config that are looked up once: a read of a `DictConfig` takes some 20 microseconds.

RLinf's env worker reads its config twenty times in every step, which is most of the CPU time of a step of a
fast simulator. So an env worker of a run has `StepConfig`s in the place of its attributes with a config: a
step reads them as a `KnownConfig`, and all other code gets the config itself.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from omegaconf import DictConfig

_ABSENT = object()
_STEP = threading.local()
"""`known`: in a thread that steps environments, the configs of their worker, by attribute."""


class KnownConfig(Mapping[str, Any]):
    """A config that nothing changes any more, to be read as a `DictConfig`; each value is looked up once."""

    def __init__(self, config: Any) -> None:
        self._config = config
        self._found: dict[str, Any] = {}
        """The values that `get` has found; `_ABSENT` for a key that is not there."""

    def __getattr__(self, name: str) -> Any:
        # Called only as long as this object has no such attribute.
        value = _known(getattr(self._config, name))
        self.__dict__[name] = value
        return value

    def __getitem__(self, name: str) -> Any:
        return _known(self._config[name])

    def __contains__(self, name: object) -> bool:
        return name in self._config

    def __iter__(self) -> Iterator[str]:
        return iter(self._config)

    def __len__(self) -> int:
        return len(self._config)

    def get(self, name: str, default: Any = None) -> Any:
        if name not in self._found:
            self._found[name] = _known(self._config.get(name, _ABSENT))
        value = self._found[name]
        return default if value is _ABSENT else value


def _known(value: Any) -> Any:
    return KnownConfig(value) if isinstance(value, DictConfig) else value


class StepConfig:
    """An attribute with a config; within `reading` it is the `KnownConfig` of that name."""

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def __get__(self, worker: Any, owner: type | None = None) -> Any:
        if worker is None:
            return self  # RLinf asks the class for each of its attributes, to find its methods
        known = getattr(_STEP, "known", None)
        if known is not None and self._name in known:
            return known[self._name]
        try:
            return worker.__dict__[self._name]
        except KeyError:
            raise AttributeError(self._name) from None

    def __set__(self, worker: Any, value: Any) -> None:
        worker.__dict__[self._name] = value


@contextmanager
def reading(known: dict[str, KnownConfig] | None) -> Iterator[None]:
    """A block, in one thread, where `StepConfig`s are those of `known`; None for the configs themselves."""
    _STEP.known = known
    try:
        yield
    finally:
        _STEP.known = None
