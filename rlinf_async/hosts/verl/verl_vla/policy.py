"""verl-vla's GaussianActor as a policy for PPO and GRPO: `model_type: verl_vla`.

verl-vla trains it with SAC and TD3, which have no state values. Here each decision is one action, its
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
from rlinf_async.hosts.verl.verl_vla.env import OBSERVATION_NAMES

ARCHITECTURE_NAME = "gaussian_actor"
"""The only architecture of verl-vla that can compute log-probabilities of earlier actions."""
DENOISE_STEPS_DRAWN_AGAIN = ", which draws the steps of an action anew wherever it gives a log-probability"
# pi0 and pi0.5: their flow-SDE draws a noise level and every step itself, and neither stores nor accepts
# them.
UNSUPPORTED_KINDS = {"pi0": DENOISE_STEPS_DRAWN_AGAIN, "PI0Policy": DENOISE_STEPS_DRAWN_AGAIN}
WITHOUT_CRITIC = {"critic": {"enabled": False}}
TANH_TRANSFORM = TanhTransform()


@dataclass(frozen=True, kw_only=True)
class Settings:
    """A `vla.model` section."""

    model_type: str
    action_dim: int
    num_action_chunks: int = 1
    add_value_head: bool = True
    precision: str | None = None
    model_path: str | None = None
    """A folder with a model artifact of verl-vla, as in verl-vla's `model.path`. None: new weights."""
    state_dim: int = 8
    """The size of the state, for new weights; as are all fields below."""
    image_size: int = 0
    """Pixels of an image's side; 0: no images."""
    cameras: tuple[str, ...] = ("main_images", "wrist_images")
    hidden_dims: tuple[int, ...] = (256, 256)
    """Hidden layers of the actor and of the value head."""
    config: dict[str, Any] = field(default_factory=dict)
    """Other fields of verl-vla's GaussianActorConfig."""

    def __post_init__(self) -> None:
        if self.num_action_chunks != 1:
            raise ValueError(
                f"vla.model.num_action_chunks={self.num_action_chunks}: {ARCHITECTURE_NAME} decides on one "
                "action at a time; use 1"
            )


class GaussianActor(nn.Module):
    """Acts with verl-vla's policy, and scores its earlier actions."""

    def __init__(self, model: Any, value_head: nn.Module | None) -> None:
        super().__init__()
        self.model = model
        self.value_head = value_head
        input_features = model.policy.config.input_features
        fields = {name: ours for name, ours in OBSERVATION_NAMES.items() if name in input_features}
        if unknown := set(input_features) - set(fields):
            raise ValueError(
                f"the policy needs the observations {sorted(unknown)}, "
                f"which no environment here has; use one with {sorted(OBSERVATION_NAMES)}"
            )
        self._fields = fields
        self.train()

    def train(self, mode: bool = True) -> GaussianActor:
        """Set the mode, but without dropout in verl-vla's model, as the same weights must score an action
        alike.
        """
        super().train(mode)
        self.model.eval()
        return self

    def forward(self, forward_type: Any = None, **inputs: Any) -> Tensors:
        return self.default_forward(**inputs)

    def predict_action_batch(
        self, env_obs: Mapping[str, Any], mode: str = "train", do_sample: bool = True, **_: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Return actions [B, 1, action_dim] for observations, and the fields that PPO needs."""
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

        The entropy of a squashed Gaussian has no closed form: it is estimated by one draw, as in verl-vla's
        SAC.
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
        """Return the Gaussian before squashing, and the value."""
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
    """Return log-probabilities of the action `drawn.tanh()`, [B, 1, action_dim]; their sum is verl-vla's.

    Draws are stored before squashing, as an action too near to a bound could not be scored.
    """
    return (normal.log_prob(drawn) - TANH_TRANSFORM.log_abs_det_jacobian(drawn, drawn.tanh()))[:, None]


def build(cfg: Any, torch_dtype: torch.dtype | None) -> GaussianActor:
    """Build the policy of a `vla.model` section; verl-vla's own builder reads an artifact of verl-vla.

    Raises:
        ValueError: an unsupported setting, or an artifact of another architecture.
    """
    given: Any = OmegaConf.to_container(cfg, resolve=True) if OmegaConf.is_config(cfg) else dict(cfg)
    settings = Settings(**given)
    dtype = torch_dtype or torch.float32
    with torch.device("cpu"):  # the import computes tensors, and `explain` builds on the meta device
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
    theirs = {ours: name for name, ours in OBSERVATION_NAMES.items()}
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
    # Without statistics actions are not normalised: they are the simulator's, from -1 to 1.
    processors = import_module("verl_vla.models.gaussian_actor.processor")
    before, after = processors.make_gaussian_actor_pre_post_processors(config)
    policy = actor.GaussianActorPolicy(config).to(dtype)
    return actor.GaussianActorTrainableModel(
        policy, preprocessor=before, postprocessor=after, adapter_config=WITHOUT_CRITIC
    )


def _artifact(path: str, dtype: torch.dtype) -> Any:
    file = Path(path, "config.json")
    if not file.is_file():
        raise ValueError(f"vla.model.model_path={path} holds no config.json of verl-vla; name its folder")
    found = json.loads(file.read_text())
    kind = found.get("type") or found.get("_class_name") or found.get("model_type")
    if kind != ARCHITECTURE_NAME:
        raise ValueError(
            f"vla.model.model_path={path} holds a {kind} of verl-vla{UNSUPPORTED_KINDS.get(kind, '')}; use a "
            f"{ARCHITECTURE_NAME}, whose classes compute the log-probability of an earlier action"
        )
    config = SimpleNamespace(
        native_architecture=kind, local_path=path, override_config={}, adapter=WITHOUT_CRITIC
    )
    return import_module("verl_vla.models").build_vla_model(config, torch_dtype=dtype)
