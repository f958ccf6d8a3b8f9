"""RLinf's GR00T N1.5 class over NVIDIA's flow-matching head, tiny and random; the backbone is a stand-in.

The head (denoising, log-probabilities, critic) and RLinf's scoring are real. NVIDIA's vision-language
backbone, which fixes sizes of gigabytes, and its data pipeline are not.
"""

from types import SimpleNamespace
from typing import Any

import torch
from omegaconf import OmegaConf
from torch import nn

from tests.vla.imports import stand_in
from tests.vla.sources import on_path

TOKENS, FEATURES, CHUNKS, DIM = 20, 2048, 5, 7
"""RLinf's critic hard-codes 2048 features of the backbone."""
DENOISING_STEPS = 4


class _Base(nn.Module):
    """In the place of NVIDIA's GR00T_N1_5, from which RLinf's class inherits."""


PLACE = on_path("isaac-gr00t")
if PLACE is not None:
    for package in ("gr00t", "gr00t.model", "gr00t.model.action_head"):
        stand_in(package, path=PLACE / package.replace(".", "/"))
    for package in ("gr00t.data", "gr00t.data.transform"):
        stand_in(package)
    stand_in("gr00t.data.dataset", ModalityConfig=object)
    stand_in("gr00t.data.embodiment_tags", EmbodimentTag=object)
    stand_in("gr00t.data.schema", DatasetMetadata=object)
    stand_in("gr00t.data.transform.base", ComposedModalityTransform=object)
    stand_in("gr00t.model.gr00t_n1", GR00T_N1_5=_Base, GR00T_N1_5_Config=object)


class Backbone(nn.Module):
    """Features of the tokens and of the mean brightness of a sample's pictures."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, FEATURES)

    def forward(self, inputs: dict[str, torch.Tensor]) -> Any:
        from transformers.feature_extraction_utils import BatchFeature

        ids = inputs["eagle_input_ids"]
        brightness = inputs["eagle_pixel_values"].flatten(1).mean(dim=1).view(len(ids), -1).mean(dim=1)
        features = self.embedding(ids) + brightness[:, None, None]
        mask = torch.ones(ids.shape)
        return BatchFeature({"backbone_features": features, "backbone_attention_mask": mask})


def build() -> nn.Module:
    """RLinf's GR00T_N1_5_ForRLActionPrediction in bfloat16, as its get_model leaves it."""
    from gr00t.model.action_head.flow_matching_action_head import FlowmatchingActionHeadConfig
    from rlinf.models.embodiment.gr00t.gr00t_n1d5 import gr00t_action_model as rlinf
    from transformers.feature_extraction_utils import BatchFeature

    class TinyGr00t(rlinf.GR00T_N1_5_ForRLActionPrediction):
        def __init__(self) -> None:
            nn.Module.__init__(self)
            head = FlowmatchingActionHeadConfig(**_head())
            self.action_head = rlinf.FlowMatchingActionHeadForRLActionPrediction(head, _rl(), CHUNKS, DIM)
            self.backbone = Backbone()
            self.valid_action_dim, self.image_nums = DIM, 1
            self._modality_transform = SimpleNamespace(eval=lambda: None)

        def prepare_input(self, inputs: dict[str, Any]) -> tuple[Any, Any]:
            state = {name: inputs[name] for name in ("state", "embodiment_id")}
            return BatchFeature(inputs), BatchFeature(state)

        def validate_data(self, *args: Any, **kwargs: Any) -> None:
            """NVIDIA's checks of shapes."""

        def predict_action_batch(self, env_obs: dict[str, Any], mode: str, **kwargs: Any) -> Any:
            actions, result = self._get_rl_action(_normalized(env_obs), mode=mode)
            return actions[:, :CHUNKS, :DIM], result

    return TinyGr00t().to(torch.bfloat16)


def _normalized(observations: dict[str, Any]) -> dict[str, torch.Tensor]:
    size, states = len(observations["states"]), observations["states"]
    pictures = observations["main_images"][:, ::32, ::32].permute(0, 3, 1, 2) / 255.0
    return {
        "state": nn.functional.pad(states, (0, 64 - states.shape[1]))[:, None].to(torch.bfloat16),
        "state_mask": torch.ones(size, 1, 64, dtype=torch.bool),
        "eagle_input_ids": torch.arange(TOKENS).repeat(size, 1),
        "eagle_attention_mask": torch.ones(size, TOKENS, dtype=torch.long),
        "eagle_pixel_values": pictures.to(torch.bfloat16),
        "eagle_image_sizes": torch.full((size, 2), pictures.shape[-1]),
        "embodiment_id": torch.zeros(size, dtype=torch.long),
    }


def _head() -> dict[str, Any]:
    width = 64
    transformer = {
        "num_attention_heads": 2,
        "attention_head_dim": width // 2,
        "output_dim": width,
        "num_layers": 2,
        "dropout": 0.0,
        "cross_attention_dim": FEATURES,
        "norm_type": "ada_norm",
        "interleave_self_attention": True,
        "final_dropout": False,
        "positional_embeddings": None,
    }
    return {
        "add_pos_embed": True,
        "diffusion_model_cfg": transformer,
        "input_embedding_dim": width,
        "backbone_embedding_dim": FEATURES,
        "hidden_size": width,
        "max_seq_len": 64,
        "action_dim": 32,
        "action_horizon": 16,
        "noise_beta_alpha": 1.5,
        "noise_beta_beta": 1.0,
        "noise_s": 0.999,
        "num_timestep_buckets": 1000,
        "num_inference_timesteps": DENOISING_STEPS,
        "max_num_embodiments": 2,
        "max_state_dim": 64,
        "tune_projector": True,
        "tune_diffusion_model": True,
        "use_vlln": False,
        "vl_self_attention_cfg": None,
        "num_target_vision_tokens": 8,
        "model_dtype": "bfloat16",
    }


def _rl() -> Any:
    return OmegaConf.create(
        {
            "joint_logprob": False,
            "noise_method": "flow_sde",
            "ignore_last": False,
            "safe_get_logprob": False,
            "noise_anneal": False,
            "noise_params": [0.7, 0.3, 400],
            "noise_level": 0.5,
            "add_value_head": True,
            "chunk_critic_input": False,
            "detach_critic_input": True,
            "disable_dropout": True,
            "use_vlm_value": True,
            "value_vlm_mode": "mean_token",
            "padding_value": 570,
        }
    )


def gr00t_block() -> dict[str, Any]:
    """What a run's configuration says of the model where inference and the learner read it."""
    return {"model_type": "gr00t", "precision": "bf16", "num_action_chunks": CHUNKS, "action_dim": DIM}
