"""RLinf's pi0, made of openpi's own classes, at sizes that two CPU cores can train.

It is `OpenPi0ForRLActionPrediction` with few and narrow layers and pictures of 28 pixels. Sampling, denoise
steps, noise, log-probabilities and critic are RLinf's. Pictures are blank: the state has the positions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from openpi import transforms
from openpi.models import gemma, model
from openpi.models_pytorch import gemma_pytorch, preprocessing_pytorch
from openpi.models_pytorch.pi0_pytorch import PI0Pytorch
from rlinf.models.embodiment.openpi import openpi_action_model
from rlinf.models.embodiment.openpi.openpi_action_model import OpenPi0Config, OpenPi0ForRLActionPrediction

CAMERA_NAMES = ("base_0_rgb", "left_wrist_0_rgb", "right_wrist_0_rgb")
PICTURE_SIDE = 28
PATCH_SIDE = 14
VISION_SIZES = {
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": PICTURE_SIDE,
    "patch_size": PATCH_SIDE,
}
STATE_INDICES = (*range(7), *range(36, 39))
"""Hand, gripper, the object's position and the goal, of the 39 numbers of Meta-World's state."""
BYTE_TOKENS = 256
"""Tokens of a prompt are its bytes; 0 pads it."""
LAYER_WIDTHS = {"tiny_vlm": 64, "tiny_expert": 256}
LAYER_SIZES = {"depth": 2, "mlp_dim": 64, "num_heads": 8, "num_kv_heads": 1, "head_dim": 16}


class TinyPi0(OpenPi0ForRLActionPrediction):
    """RLinf's class on states alone: it adds a blank picture to the environment's observation."""

    def predict_action_batch(
        self, env_obs: dict[str, Any], mode: str = "train", do_sample: bool = True, **kwargs: Any
    ) -> tuple[torch.Tensor, dict[str, Any]]:
        """Act as RLinf's class does; `do_sample=False` means `mode="eval"`."""
        return super().predict_action_batch(env_obs, mode=mode if do_sample else "eval", **kwargs)

    def obs_processor(self, env_obs: dict[str, Any]) -> dict[str, Any]:
        blank = torch.zeros(len(env_obs["states"]), PICTURE_SIDE, PICTURE_SIDE, 3, dtype=torch.uint8)
        none = {"wrist_images": None, "extra_view_images": None}
        return super().obs_processor({**none, **env_obs, "main_images": blank})

    def _preprocess_observation(self, observation: Any, *, train: bool = True) -> tuple[Any, ...]:
        """Preprocess as openpi does, for pictures of this size and without augmentation."""
        seen = preprocessing_pytorch.preprocess_observation_pytorch(
            observation, train=False, image_resolution=(PICTURE_SIDE, PICTURE_SIDE)
        )
        return (
            list(seen.images.values()),
            list(seen.image_masks.values()),
            seen.tokenized_prompt,
            seen.tokenized_prompt_mask,
            seen.state,
        )


@dataclasses.dataclass(frozen=True)
class TinyInputs(transforms.DataTransformFn):
    """Transforms an environment's sample to pi0's inputs: padded state, prompt as bytes, one of three
    pictures.
    """

    state_dim: int
    prompt_length: int

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        picture = np.asarray(data["observation/image"])
        tokens = np.zeros(self.prompt_length, dtype=np.int64)
        spelt = str(data["prompt"]).encode()[: self.prompt_length]
        tokens[: len(spelt)] = list(spelt)
        return {
            "state": transforms.pad_to_dim(
                np.asarray(data["observation/state"], np.float32)[list(STATE_INDICES)], self.state_dim
            ),
            "image": dict.fromkeys(CAMERA_NAMES, picture),
            "image_mask": {camera: np.bool_(camera == CAMERA_NAMES[0]) for camera in CAMERA_NAMES},
            "tokenized_prompt": tokens,
            "tokenized_prompt_mask": tokens != 0,
        }


@dataclasses.dataclass(frozen=True)
class TinyOutputs(transforms.DataTransformFn):
    """Removes the padding of actions."""

    action_dim: int

    def __call__(self, data: dict[str, Any]) -> dict[str, Any]:
        return {"actions": np.asarray(data["actions"][:, : self.action_dim])}


def build_tiny_pi0(cfg: Any, torch_dtype: torch.dtype | None) -> TinyPi0:
    """Build the policy from a model section with RLinf's keys of pi0, in float32 unless a type is given.

    Weights are random, from the seed of the process; the first publication makes them equal in all processes.
    """
    field_names = {field.name for field in dataclasses.fields(OpenPi0Config)}
    openpi_settings = {name: value for name, value in cfg["openpi"].items() if name in field_names}
    config = OpenPi0Config(
        **{
            "dtype": "float32",
            "paligemma_variant": "tiny_vlm",
            "action_expert_variant": "tiny_expert",
            "action_horizon": cfg["num_action_chunks"],
            "action_chunk": cfg["num_action_chunks"],
            "action_env_dim": cfg["action_dim"],
            "max_token_len": 20,
            "pytorch_compile_mode": None,
            **openpi_settings,
        }
    )
    with _tiny():
        policy = TinyPi0(config)
    policy.freeze_vlm()
    policy.setup_wrappers(
        transforms=[TinyInputs(config.action_dim, config.max_token_len)],
        output_transforms=[TinyOutputs(config.action_env_dim)],
    )
    return policy if torch_dtype is None else policy.to(torch_dtype)


class ClonedPi0:
    """A `Clone` of the warm start; it learns by openpi's own flow-matching loss, including padded actions."""

    def __init__(self, section: Mapping[str, Any], instruction: str) -> None:
        self._policy = build_tiny_pi0(section, None).eval()
        self._instruction = instruction
        self.chunk = self._policy.config.action_chunk
        self.parameters = self._policy.parameters
        self.state_dict = self._policy.state_dict
        self.load_state_dict = self._policy.load_state_dict

    def loss(self, states: torch.Tensor, actions: torch.Tensor) -> torch.Tensor:
        seen = self._policy.obs_processor(self._observation(states))
        observation = model.Observation.from_dict(self._policy.input_transform(seen, transpose=False))
        padding = self._policy.config.action_dim - actions.shape[-1]
        padded_actions = torch.nn.functional.pad(actions, (0, padding))
        return PI0Pytorch.forward(self._policy, observation, padded_actions).mean()

    def sample(self, states: torch.Tensor) -> torch.Tensor:
        return self._policy.predict_action_batch(self._observation(states), compute_values=False)[0]

    def _observation(self, states: torch.Tensor) -> dict[str, Any]:
        return {"states": states, "task_descriptions": [self._instruction] * len(states)}


@contextmanager
def _tiny() -> Iterator[None]:
    """Within the block, let openpi's constructors use the sizes of this module."""
    stock, critic = gemma.get_config, openpi_action_model.ValueHead
    paligemma, expert = gemma_pytorch.PaliGemmaForConditionalGeneration, gemma_pytorch.GemmaForCausalLM

    def get_config(variant: str) -> Any:
        return (
            gemma.Config(width=LAYER_WIDTHS[variant], **LAYER_SIZES)
            if variant in LAYER_WIDTHS
            else stock(variant)
        )

    def tiny_paligemma(config: Any) -> Any:
        config._vocab_size = config.text_config.vocab_size = BYTE_TOKENS + 1
        config.image_token_index = BYTE_TOKENS
        config.tie_word_embeddings = config.text_config.tie_word_embeddings = False
        config.projection_dim = config.vision_config.projection_dim = config.text_config.hidden_size
        config.vision_config.__dict__.update(VISION_SIZES)
        return paligemma(config=config)

    def tiny_expert(config: Any) -> Any:
        config.vocab_size = 1  # the expert has no tokens of its own
        return expert(config=config)

    def tiny_critic(input_dim: int, **sizes: Any) -> Any:
        """Build the critic for the expert's width; RLinf's would read 1024 features at any width."""
        return critic(input_dim=LAYER_WIDTHS["tiny_expert"], **sizes)

    with (
        patch.object(gemma, "get_config", get_config),
        patch.object(gemma_pytorch, "PaliGemmaForConditionalGeneration", tiny_paligemma),
        patch.object(gemma_pytorch, "GemmaForCausalLM", tiny_expert),
        patch.object(openpi_action_model, "ValueHead", tiny_critic),
    ):
        yield
