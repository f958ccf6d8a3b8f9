"""The interface of this host's own policies, and of environments for them; and the work queue of a policy on
its device.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import nn

from rlinf_async.core.scores import WHOLE, Scored
from rlinf_async.core.tensors import Tree, map_tensors


class StateEnvs:
    """Environments with a vector state and one action per decision, with the interface of `rlinf_async.envs`.

    Subclasses implement `begin` and `decide`. After its end an episode does not change: `ended` stays True
    until the next one begins, and later rewards do not count. Episodes are not truncated: at the horizon the
    value of their last state is bootstrapped. Optional methods are `abort(reason)`, called from another
    thread, which ends the processes of hanging environments and returns True if there were any; and
    `take_on(seed_offset, rollout)`.
    """

    state_dim: int
    action_dim: int

    def begin(self) -> np.ndarray:
        """Start the next episode in all environments; return states [envs, state_dim], float32."""
        raise NotImplementedError

    def decide(self, actions: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Take actions [envs, action_dim]; return states, rewards and `ended`, [envs, ...] each."""
        raise NotImplementedError

    def skip(self, episodes: int) -> None:
        """Skip the next episodes: rebuilt environments would begin with the first ones again. The default
        does nothing, for environments that draw their episodes at random.
        """

    def reset(self) -> tuple[dict[str, Any], dict[str, Any]]:
        return {"states": self.begin()}, {}

    def update_reset_state_ids(self) -> None:
        """Do nothing: the next episode follows by itself."""

    def chunk_step(self, actions: torch.Tensor) -> tuple[Any, ...]:
        """Take actions [envs, 1, action_dim]."""
        states, rewards, ended = self.decide(actions[:, 0].numpy())
        return {"states": states}, rewards[:, None], ended[:, None], np.zeros((len(ended), 1), dtype=bool), {}

    def close(self) -> None:
        """Do nothing: there is nothing to close."""


class ActorCritic(nn.Module):
    """A policy with a critic; all tensors are on the device of its parameters."""

    value_head: nn.Module
    scored: Scored = WHOLE
    """The part of an action that its log-probabilities cover."""

    @property
    def critic(self) -> nn.Module:
        """The module with the learning rate `value_lr`."""
        return self.value_head

    def states_of(self, observation: dict[str, Any]) -> Any:
        """Return the part of an observation that the policy sees."""
        states: torch.Tensor = observation["states"]
        return states if states.dtype is torch.uint8 else states.float()

    def act(self, states: Any, noise: torch.Tensor) -> tuple[Any, ...]:
        """Return actions [B, A], their log-probabilities [B] and the values [B] of states [B, S].

        If each part of an action (such as a token) has its own ratio, all log-probabilities are [B, parts]:
        parts are clipped and weighted separately, and a decision's loss is the mean over them. All randomness
        is in the standard normal `noise` [B, A]. A policy that sees whole observations returns a fourth
        value: its forward inputs, a tree of tensors [B, ...], which its `score` takes.
        """
        raise NotImplementedError

    def evaluate(self, states: Any, actions: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities of `actions`, taken in the first `len(actions)` of `states`; values of all
        states.
        """
        raise NotImplementedError

    def score(self, inputs: Any) -> tuple[torch.Tensor, torch.Tensor]:
        """Return log-probabilities and values of N decisions with these forward inputs, [N, ...]."""
        return self.evaluate(inputs["states"], inputs["actions"])


PolicyFactory = Callable[..., ActorCritic]
"""Builds a policy for `state_dim` and `action_dim`, on the device for training."""


class DeviceQueue:
    """The work of one thread on the device of `model`.

    On a CUDA device it is a separate stream, so that inference and learning overlap; elsewhere work is done
    at once. A block begins after the work queued on the default stream before (copies of weights), and ends
    when its own work is complete: another thread may then read the results.
    """

    def __init__(self, model: nn.Module, *, urgent: bool = False) -> None:
        """`urgent`: give this queue's work priority over that of other queues."""
        self.device = next(model.parameters()).device
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

    def put(self, tree: Tree) -> Tree:
        """Return the tensors of `tree` on the device."""
        return map_tensors(lambda tensor: tensor.to(self.device), tree)
