"""What a handle of a process can be asked, for the type checker: Ray's own types end there."""

from __future__ import annotations

from typing import Any, Protocol


class RemoteMethod(Protocol):
    """A method of another process."""

    def remote(self, *arguments: object, **keywords: object) -> Any:
        """Call it; what comes back can be awaited, and given to `ray.get` and `ray.wait`."""

    def options(self, **options: object) -> RemoteMethod:
        """The same method, called in another way."""


class Handle(Protocol):
    """Another process of the run, whose methods are called by their names; Ray's `ActorHandle` fills it."""

    def __getattr__(self, name: str) -> RemoteMethod: ...
