"""The device where a policy computes, and a queue of work there for each thread that uses it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch import nn

from rlinf_async.core.tensors import Tree, map_tensors

Watch = Callable[[str], AbstractContextManager[None]]
"""Entered around each pass over the policy by "inference" or "learner", in the thread and on the CUDA
stream that makes it."""


def unwatched(who: str) -> AbstractContextManager[None]:
    """Return a context that watches nothing."""
    return nullcontext()


class DeviceQueue:
    """The work of one thread on the device of `model`.

    On a CUDA device it is a stream of its own, so that inference and learning overlap; elsewhere work is
    done at once. A block begins after what the default stream has been given before (weights that are
    being copied), and what it has queued is done when it is left: another thread may then read it.
    """

    def __init__(self, model: nn.Module, who: str, *, urgent: bool = False, watch: Watch = unwatched) -> None:
        """`urgent` work goes before that of other queues."""
        self.device = next(model.parameters()).device
        self._who = who
        self._watch = watch
        self._stream: torch.cuda.Stream | None = None
        if self.device.type == "cuda":
            self._stream = torch.cuda.Stream(self.device, priority=-1 if urgent else 0)

    @contextmanager
    def block(self) -> Iterator[None]:
        """Put the work inside the block into the queue."""
        if self._stream is None:
            yield
            return
        self._stream.wait_stream(torch.cuda.default_stream(self.device))
        with torch.cuda.stream(self._stream):
            yield
        self._stream.synchronize()

    def watched(self) -> AbstractContextManager[None]:
        """Marks a pass over the policy, inside a block."""
        return self._watch(self._who)

    def put(self, tree: Tree) -> Tree:
        """The tensors of `tree`, on the device."""
        return map_tensors(lambda tensor: tensor.to(self.device), tree)
