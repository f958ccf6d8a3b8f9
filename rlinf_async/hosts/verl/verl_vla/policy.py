"""verl-vla's GaussianActor as a policy for PPO and GRPO: `model_type: verl_vla`.

verl-vla trains it by SAC and TD3; it has no value of a state. Here one action is a decision, its
log-probabilities are those of verl-vla's squashed Gaussian, and a head of verl-vla's critic class estimates
values.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn
from torch.distributions import Normal
from torch.distributions.transforms import TanhTransform

from rlinf_async.core.tensors import Tensors
from rlinf_async.hosts.verl.verl_vla.env import FIELDS

ARCHITECTURE = "gaussian_actor"
"""The one of verl-vla's whose classes give log-probabilities of actions that were drawn before."""
STEPS_DRAWN_ANEW = ", which draws the steps of an action anew wherever it gives a log-probability"
# Of pi0 and pi0.5: the flow-SDE draws a noise level and every step itself, keeps neither and takes neither.
WHY_NOT = {"pi0": STEPS_DRAWN_ANEW, "PI0Policy": STEPS_DRAWN_ANEW}
NO_CRITIC = {"critic": {"enabled": False}}
SQUASH = TanhTransform()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A `vla.model` section."""

    model_type: str
    action_dim: int
    num_action_chunks: int = 1
    add_value_head: bool = True
    precision: str | None = None
    model_path: str | None = None
    """A folder with verl-vla's artifact: what its own `model.path` names. None: fresh weights."""
    state_dim: int = 8
    """Of fresh weights, as all that follows."""
    image_size: int = 0
    """0: no pictures."""
    cameras: tuple[str, ...] = ("main_images", "wrist_images")
    hidden_dims: tuple[int, ...] = (256, 256)
    """Of the actor, and of the value head."""
    config: dict[str, Any] = field(default_factory=dict)
    """Other fields of verl-vla's GaussianActorConfig."""

    def __post_init__(self) -> None:
        if self.num_action_chunks != 1:
            raise ValueError(
                f"vla.model.num_action_chunks={self.num_action_chunks}: {ARCHITECTURE} decides on one action "
                "at a time; use 1"
            )


class GaussianActor(nn.Module):
    """Acts by verl-vla's policy, and scores what it drew."""

    def __init__(self, model: Any, value_head: nn.Module | None) -> None:
        super().__init__()
        self.model = model
        self.value_head = value_head
        theirs = {name: ours for name, ours in FIELDS.items() if name in model.policy.config.input_features}
        if unknown := set(model.policy.config.input_features) - set(theirs):
            raise ValueError(
                f"the policy looks at {sorted(unknown)}, "
                f"which no environment here shows; use one of {sorted(FIELDS)}"
            )
        self._fields = theirs
        self.train()

    def train(self, mode: bool = True) -> GaussianActor:
        """As of any module, but for dropout: the same weights have to score an action alike."""
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, forward_type: Any = None, **inputs: Any) -> Tensors:
        return self.default_forward(**inputs)

    def predict_action_batch(
        self, env_obs: Mapping[str, Any], mode: str = "train", do_sample: bool = True, **_: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Act on observations: actions [B, 1, action_dim], and what PPO needs of them."""
        device = next(self.parameters()).device
        seen = {ours: torch.as_tensor(env_obs[ours]).to(device) for ours in self._fields.values()}
        with torch.no_grad():
            normal, value = self._heads(seen, values=True)
            drawn = normal.sample() if mode == "train" and do_sample else normal.mean
            actions = self.model.postprocessor(drawn.tanh())
            result: dict[str, Any] = {
                "prev_logprobs": logprobs(normal, drawn),
                "forward_inputs": {**seen, "drawn": drawn},
            }
            if value is not None:
                result["prev_values"] = value
        return actions[:, None], result

    def default_forward(
        self,
        forward_inputs: Tensors,
        compute_logprobs: bool = True,
        compute_entropy: bool = True,
        compute_values: bool = True,
        **_: Any,
    ) -> Tensors:
        """Score stored actions: log-probabilities and entropy [B, 1, action_dim], values [B, 1].

        The entropy of a squashed Gaussian has no closed form: it is that of one draw, as in verl-vla's SAC.
        """
        normal, value = self._heads(forward_inputs, values=compute_values)
        scores = {}
        if compute_logprobs:
            scores["logprobs"] = logprobs(normal, forward_inputs["drawn"])
        if compute_entropy:
            scores["entropy"] = -logprobs(normal, normal.rsample())
        if value is not None:
            scores["values"] = value
        return scores

    def _heads(self, seen: Mapping[str, Any], *, values: bool) -> tuple[Normal, torch.Tensor | None]:
        """The Gaussian before it is squashed, and the value."""
        data = import_module("verl").DataProto
        observations = data.from_dict(tensors={name: seen[ours] for name, ours in self._fields.items()})
        features = self.model.sac_forward_state_features(observations, None)
        policy, scale = self.model.policy, self.model.sac_std_scale
        _, _, mean, std = policy.actor(features, std_scale=scale)
        value = None
        if values and self.value_head is not None:
            value = self.value_head(policy.encoder_critic(features))
        return Normal(mean, std), value


def logprobs(normal: Normal, drawn: torch.Tensor) -> torch.Tensor:
    """Of the action `drawn.tanh()`, [B, 1, action_dim]: their sum is verl-vla's log-probability.

    Draws are stored before they are squashed, where no action is too near to a bound to be scored.
    """
    return (normal.log_prob(drawn) - SQUASH.log_abs_det_jacobian(drawn, drawn.tanh()))[:, None]


def build(cfg: Any, torch_dtype: torch.dtype | None) -> GaussianActor:
    """The policy of a `vla.model` section; an artifact of verl-vla's is read by verl-vla's own builder.

    Raises:
        ValueError: a setting that it does not have, or an artifact of another architecture.
    """
    given: Any = OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else dict(cfg)
    settings = Settings(**given)
    dtype = torch_dtype or torch.float32
    with torch.device("cpu"):  # whatever an import computes: `explain` builds policies without data
        actor = import_module("verl_vla.models.gaussian_actor")
    model = _artifact(settings.model_path, dtype) if settings.model_path else _fresh(actor, settings, dtype)
    width = model.policy.config.output_features["action"].shape[0]
    if width != settings.action_dim:
        raise ValueError(
            f"vla.model.action_dim={settings.action_dim}, and the policy has {width}; use {width}"
        )
    if model.policy.config.num_discrete_actions is not None:
        raise ValueError("num_discrete_actions: a discrete action has no log-probability; use null")
    head = import_module("verl_vla.models.gaussian_actor.trainable_model").GaussianCriticHead
    width = model.policy.encoder_critic.output_dim
    value_head = head(width, list(settings.hidden_dims)) if settings.add_value_head else None
    return GaussianActor(model, value_head).to(dtype)


def _fresh(actor: Any, settings: Settings, dtype: torch.dtype) -> Any:
    types = import_module("lerobot.configs.types")
    theirs = {ours: name for name, ours in FIELDS.items()}
    size = settings.image_size
    seen = {theirs["states"]: types.PolicyFeature(types.FeatureType.STATE, (settings.state_dim,))} | {
        theirs[name]: types.PolicyFeature(types.FeatureType.VISUAL, (3, size, size))
        for name in (settings.cameras if size else ())
    }
    network = import_module("verl_vla.models.gaussian_actor.configuration").ActorNetworkConfig
    config = actor.GaussianActorConfig(
        input_features=seen,
        output_features={"action": types.PolicyFeature(types.FeatureType.ACTION, (settings.action_dim,))},
        device="cuda" if torch.cuda.is_available() else "cpu",
        actor_network_kwargs=network(hidden_dims=list(settings.hidden_dims)),
        **settings.config,
    )
    # Without statistics nothing is normalised: actions are those of the simulator, from -1 to 1.
    processors = import_module("verl_vla.models.gaussian_actor.processor")
    before, after = processors.make_gaussian_actor_pre_post_processors(config)
    policy = actor.GaussianActorPolicy(config).to(dtype)
    return actor.GaussianActorTrainableModel(
        policy, preprocessor=before, postprocessor=after, adapter_config=NO_CRITIC
    )


def _artifact(path: str, dtype: torch.dtype) -> Any:
    file = Path(path, "config.json")
    if not file.is_file():
        raise ValueError(f"vla.model.model_path={path} holds no config.json of verl-vla; name its folder")
    found = json.loads(file.read_text())
    kind = found.get("type") or found.get("_class_name") or found.get("model_type")
    if kind != ARCHITECTURE:
        raise ValueError(
            f"vla.model.model_path={path} holds a {kind} of verl-vla{WHY_NOT.get(kind, '')}; use a "
            f"{ARCHITECTURE}, whose classes say how probable an action was"
        )
    config = SimpleNamespace(native_architecture=kind, local_path=path, override_config={}, adapter=NO_CRITIC)
    return import_module("verl_vla.models").build_vla_model(config, torch_dtype=dtype)
