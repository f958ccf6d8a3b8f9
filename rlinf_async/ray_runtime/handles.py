"""The methods of a process's handle, for the type checker: Ray's own types end there."""

from __future__ import annotations

from typing import Any, Protocol


class RemoteMethod(Protocol):
    """A method of another process."""

    def remote(self, *arguments: object, **keywords: object) -> Any:
        """Call the method in its process; a reference that can be awaited, and given to `ray.get`."""

    def options(self, **options: object) -> RemoteMethod:
        """The method with other options for its calls, such as `num_returns`, as Ray takes them."""


class Handle(Protocol):
    """Another process of the run, whose methods are called by their names; Ray's `ActorHandle` fills it."""

    def __getattr__(self, name: str) -> RemoteMethod: ...
