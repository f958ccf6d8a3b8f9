"""The methods of a process's handle, for the type checker: Ray's own types end there."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Protocol

from rlinf_async.wire.nodes import this_node
from rlinf_async.wire.peers import Peer


class RemoteMethod(Protocol):
    """A method of another process."""

    def remote(self, *arguments: object, **keywords: object) -> Any:
        """Call the method in its process; return a reference that can be awaited, and given to `ray.get`."""

    def options(self, **options: object) -> RemoteMethod:
        """Return the method with other options for its calls, such as `num_returns`, as Ray takes them."""


class Handle(Protocol):
    """Another process of the run; its methods are called by their names. Ray's `ActorHandle` fills it."""

    def __getattr__(self, name: str) -> RemoteMethod: ...


RequestChannels = Mapping[str, Handle]
"""The request channels of a run, by node; the first is that of the driver's node. A process of another node
without a channel uses the first."""


def own_channel(channels: RequestChannels, node: str) -> int:
    """Return the number of the channel that a process of `node` uses."""
    nodes = list(channels)
    return nodes.index(node) if node in channels else 0


def peer_of(process: Handle, name: str) -> Peer:
    """The process of the handle `process`, called directly instead of through Ray; `name` is its name in
    error messages."""
    return Peer(name, partial(process.address.remote, this_node()))


def remote_method(actor: Handle, method: Callable[..., Any] | str) -> RemoteMethod:
    """Return the method of the process `actor` that has the name of `method`.

    Calls refer to a method by an attribute of the actor's class, such as `Coordinator.close_weights`, so that
    type checkers and editors find it. A string names a method of a framework's own class.
    """
    return getattr(actor, method if isinstance(method, str) else method.__name__)
