"""A starting policy cloned from Meta-World's scripted expert, strong enough to earn some sparse rewards."""

import io
import json
import shutil
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import nn

from rlinf_async.lab.demo.simulators.metaworld import MetaWorldBatch
from rlinf_async.lab.demo.simulators.metaworld_expert import Demonstrations, demonstrate
from rlinf_async.lab.demo.simulators.metaworld_task import (
    ACTION_DIM,
    STATE_DIM,
    TaskSettings,
    instruction,
)
from rlinf_async.lab.demo.simulators.observation_stats import ObservationStats
from rlinf_async.lab.demo.warm_start_settings import PARALLEL_EPISODES, WarmStart
from rlinf_async.observe.files import make_directory, write_whole
from rlinf_async.observe.read_files import read_json_file

HIDDEN_UNITS = 256
MAX_BISECTIONS = 6
"""Largest number of bisections between a policy that is too weak and one that is too strong."""

STARTS_FOLDER = Path(__file__).parent / "starts"
"""Folder of the demos' starts, by the key of their settings. It is in the repository, and in no wheel."""

State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class WarmStartResult:
    """The files of a start, and its success.

    policy_path holds a state dict for `runner.ckpt_path`; obs_stats_path the ObservationStats it was cloned
    under. `success` is the share of test episodes that the sampled policy
    solved, `seconds` the time of making it (not of finding it again).
    """

    policy_path: Path
    obs_stats_path: Path
    success: float
    seconds: float


class Clone(Protocol):
    """A policy that learns from demonstrations, on normalised states."""

    @property
    def chunk(self) -> int:
        """Number of actions of a decision."""

    def loss(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        """Return the loss for states [batch, 39] and the expert's next actions [batch, chunk, 4]."""

    def sample(self, states: torch.Tensor) -> torch.Tensor:
        """Return sampled actions [batch, chunk, 4] for states [batch, 39]."""

    def parameters(self) -> Iterator[nn.Parameter]: ...

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: State) -> Any: ...


class ClonedPolicy(nn.Module):
    """A Gaussian policy with the parameter names of RLinf's `mlp_policy`, value head included."""

    chunk = 1

    def __init__(self, log_std: float) -> None:
        super().__init__()
        self.backbone = _three_layers(STATE_DIM)
        self.actor_mean = nn.Linear(HIDDEN_UNITS, ACTION_DIM)
        self.actor_logstd = nn.Parameter(torch.full((1, ACTION_DIM), log_std), requires_grad=False)
        value = nn.Linear(HIDDEN_UNITS, 1, bias=False)
        self.value_head = nn.ModuleDict({"mlp": nn.Sequential(*_three_layers(STATE_DIM), value)})
        nn.init.orthogonal_(self.actor_mean.weight, gain=0.01)
        nn.init.zeros_(self.actor_mean.bias)
        nn.init.zeros_(value.weight)  # values are 0 before the first training

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return mean actions [batch, 4] for normalised states [batch, 39]."""
        return self.actor_mean(self.backbone(states))

    def loss(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        return (self(states) - actions[:, 0]).square().mean()

    def sample(self, states: torch.Tensor) -> torch.Tensor:
        mean = self(states)
        return (mean + self.actor_logstd.exp() * torch.randn_like(mean))[:, None]


class SuccessBand(Protocol):
    """Bounds of the wanted success: a share of solved test episodes."""

    @property
    def lowest_success(self) -> float: ...

    @property
    def highest_success(self) -> float: ...


class CloningSettings(SuccessBand, Protocol):
    """Settings of cloning, and of the search for a policy of the wanted strength; see WarmStart."""

    @property
    def learning_rate(self) -> float: ...

    @property
    def batch_size(self) -> int: ...

    @property
    def log_std(self) -> float: ...

    @property
    def max_epochs(self) -> int: ...


class PolicyTrial(Protocol):
    """Measures the success of parameters."""

    def success(self, state: State, *, enough: float) -> float:
        """Return the share of solved test episodes; may stop early once `enough` is out of reach."""


class Candidate(NamedTuple):
    """Parameters and the share of test episodes they solved."""

    state: State
    success: float


def warm_start(settings: WarmStart, out_dir: Path) -> WarmStartResult:
    """Clone the expert into `out_dir`, or return an existing start, from there or from the repository.

    Raises:
        ValueError: the existing start cannot be read.
    """
    folder = place(settings, out_dir)
    if not folder.exists():
        _make(settings, out_dir, folder)
    try:
        record = read_json_file(folder / "summary.json")
        summary = {name: float(record[name]) for name in ("success", "seconds")}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(
            f"{folder} holds no warm start that can be read; remove it to have it made"
        ) from error
    return WarmStartResult((folder / "policy.pt").resolve(), (folder / "obs_stats.npz").resolve(), **summary)


def place(settings: WarmStart, out_dir: Path) -> Path:
    """Return the folder of a start; it may not exist."""
    shipped = STARTS_FOLDER / settings.key
    return shipped if shipped.exists() else out_dir / settings.key


def _make(settings: WarmStart, out_dir: Path, folder: Path) -> None:
    start = time.monotonic()
    demonstrations = demonstrate(
        settings.task_name,
        episodes=settings.demonstrations,
        steps=settings.demonstration_steps,
        seed=settings.seed,
    )
    stats = ObservationStats.of(demonstrations.states)
    trial = Trial(settings, stats)
    try:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(settings.seed)
            clone = clone_of(settings)
            repeat = settings.action_repeat
            epochs = cloning_epochs(settings, demonstrations, stats, clone, action_repeat=repeat)
            best = search(settings, epochs, trial)
    finally:
        trial.close()
    make_directory(out_dir, private=False)
    draft = Path(mkdtemp(prefix=".draft-", dir=out_dir))  # renamed when complete: no half start is found
    policy = io.BytesIO()
    torch.save(best.state, policy)
    write_whole(draft / "policy.pt", policy.getbuffer(), private=False)
    stats.save(draft / "obs_stats.npz")
    summary = {"success": best.success, "seconds": round(time.monotonic() - start, 3)}
    write_whole(draft / "summary.json", json.dumps(summary).encode(), private=False)
    _put(draft, folder)


def _put(draft: Path, folder: Path) -> None:
    """Rename `draft` to `folder`, unless another run has made the same start meanwhile."""
    try:
        draft.rename(folder)
    except OSError:
        if not folder.exists():
            raise
        shutil.rmtree(draft)


class Trial:
    """Plays test episodes with sampled actions and always the same goals."""

    def __init__(self, settings: WarmStart, stats: ObservationStats) -> None:
        self._policy = clone_of(settings)
        self._rounds = settings.episodes // PARALLEL_EPISODES
        self._decisions = settings.max_episode_steps // self._policy.chunk
        self._simulators = MetaWorldBatch(
            TaskSettings(settings.task_name, settings.max_episode_steps, settings.action_repeat),
            PARALLEL_EPISODES,
            seed=(settings.seed, 1),
            obs_stats=stats,
        )

    @torch.no_grad()
    def success(self, state: State, *, enough: float) -> float:
        """Return the share of solved episodes; stop early once `enough` is out of reach."""
        self._policy.load_state_dict(state)
        self._simulators.rewind()
        solved_count = 0
        for round_number in range(1, self._rounds + 1):
            solved_count += self._round()
            if (solved_count / PARALLEL_EPISODES + self._rounds - round_number) / self._rounds < enough:
                break
            if round_number == 1 and solved_count == 0:
                break
        return solved_count / (self._rounds * PARALLEL_EPISODES)

    def close(self) -> None:
        self._simulators.close()

    def _round(self) -> int:
        states = self._simulators.reset().states
        for _ in range(self._decisions):
            step = self._simulators.step(self._policy.sample(torch.from_numpy(states)).numpy())
            states = step.observation.states
        return int(step.successes[:, -1].sum())


def clone_of(settings: WarmStart) -> Clone:
    """Return an untrained policy to clone into."""
    if settings.model is None:
        return ClonedPolicy(settings.log_std)
    from rlinf_async.lab.demo.policies.tiny_pi0 import ClonedPi0  # openpi takes seconds to import

    return ClonedPi0(settings.model, instruction(settings.task_name))


def cloning_epochs(
    settings: CloningSettings,
    demonstrations: Demonstrations,
    stats: ObservationStats,
    policy: Clone | None = None,
    *,
    action_repeat: int = 1,
) -> Iterator[State]:
    """Yield the parameters of `policy`, by default a ClonedPolicy, after each epoch of behaviour cloning.

    The actions of a chunk are the expert's, `action_repeat` steps apart.
    """
    policy = policy or ClonedPolicy(settings.log_std)
    parameters = [parameter for parameter in policy.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(parameters, lr=settings.learning_rate)
    states_before, actions_after = demonstrations.chunks(policy.chunk, every=action_repeat)
    states, actions = torch.from_numpy(stats.normalise(states_before)), torch.from_numpy(actions_after)
    for _ in range(settings.max_epochs):
        for batch in torch.randperm(len(states)).split(settings.batch_size):
            loss = policy.loss(states[batch], actions[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        yield {name: tensor.detach().clone() for name, tensor in policy.state_dict().items()}


def search(settings: SuccessBand, epochs: Iterator[State], trial: PolicyTrial) -> Candidate:
    """Return the first epoch with enough success; if that is too much, a mixture with the previous epoch."""
    weak = best = Candidate(next(epochs), 0.0)
    for state in epochs:
        attempt = Candidate(state, trial.success(state, enough=settings.lowest_success))
        best = max(best, attempt, key=lambda candidate: candidate.success)
        if attempt.success > settings.highest_success:
            return _between(settings, weak, attempt, trial)
        if attempt.success >= settings.lowest_success:
            return attempt
        weak = attempt
    return best


def _between(settings: SuccessBand, weak: Candidate, strong: Candidate, trial: PolicyTrial) -> Candidate:
    """Bisect the straight line between two parameter sets until the success lies in the wanted band."""
    for _ in range(MAX_BISECTIONS):
        middle = {name: (tensor + strong.state[name]) / 2 for name, tensor in weak.state.items()}
        candidate = Candidate(middle, trial.success(middle, enough=0.0))
        if settings.lowest_success <= candidate.success <= settings.highest_success:
            return candidate
        weak, strong = (
            (candidate, strong) if candidate.success < settings.lowest_success else (weak, candidate)
        )
    return strong


def _three_layers(inputs: int) -> nn.Sequential:
    layers: list[nn.Module] = []
    for width in (inputs, HIDDEN_UNITS, HIDDEN_UNITS):
        linear = nn.Linear(width, HIDDEN_UNITS)
        nn.init.orthogonal_(linear.weight, gain=float(np.sqrt(2)))
        nn.init.zeros_(linear.bias)
        layers += [linear, nn.Tanh()]
    return nn.Sequential(*layers)
