"""RLinf's StarVLA over StarVLA's own frameworks and transformers' Qwen2.5-VL, narrow, with random weights.

Every size comes from the checkpoint's configuration; only the frameworks that are used are imported.
"""

import importlib
import json
from pathlib import Path
from typing import Any

import torch

from tests.vla.imports import change
from tests.vla.sources import on_path

on_path("starvla")
CHUNK, DIM, STATE, WIDTH = 8, 7, 8, 64
PROMPT = 231
"""Tokens of the instruction in `tests.vla.classes.observations` and of two pictures of 256 x 256."""
SPECIAL = (
    "<|endoftext|>",
    "<|im_start|>",
    "<|im_end|>",
    "<|vision_start|>",
    "<|vision_end|>",
    "<|image_pad|>",
    "<|video_pad|>",
)
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n{% for part in message['content'] %}"
    "{% if part['type'] == 'image' %}<|vision_start|><|image_pad|><|vision_end|>"
    "{% else %}{{ part['text'] }}{% endif %}{% endfor %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@change("starVLA.model.framework.base_framework")
def _two_frameworks(module: Any) -> None:
    """The others import packages that neither of the two needs."""

    def import_modules() -> None:
        for name in ("QwenOFT", "QwenGR00T"):
            importlib.import_module(f"starVLA.model.framework.{name}")

    module._auto_import_framework_modules = import_modules


def write_checkpoint(directory: Path, framework: str, *, prompt: int | None = None) -> None:
    """A run of StarVLA's trainer: configuration, statistics, random weights, and the model it began with.

    Args:
        prompt: how many tokens RLinf pads a prompt to when it stores it; RLinf decides by default.
    """
    backbone = directory / "Qwen2.5-VL"
    _write_backbone(backbone)
    settings = {
        "framework": {
            "name": framework,
            "qwenvl": {"base_vlm": str(backbone), "attn_implementation": "eager"},
            "action_model": {**_action_model(framework), "rollout_prompt_seq_len": prompt or 0},
        },
        "datasets": {"vla_data": {}},
        "trainer": {},
    }
    (directory / "config.yaml").write_text(json.dumps(settings))
    bounds = {"min": [-1.0] * DIM, "max": [1.0] * DIM, "q01": [-1.0] * DIM, "q99": [1.0] * DIM}
    statistics = {"franka": {"action": {**bounds, "mask": [True] * (DIM - 1) + [False]}}}
    (directory / "dataset_statistics.json").write_text(json.dumps(statistics))
    _write_weights(directory, settings)


def _write_weights(directory: Path, settings: dict[str, Any]) -> None:
    from starVLA.model.framework.base_framework import build_framework
    from starVLA.model.framework.share_tools import dict_to_namespace

    torch.manual_seed(0)
    model = build_framework(dict_to_namespace(settings))
    (directory / "checkpoints").mkdir(exist_ok=True)
    torch.save(model.state_dict(), directory / "checkpoints" / "steps_1.pt")


def _action_model(framework: str) -> dict[str, Any]:
    common = {"action_dim": DIM, "future_action_window_size": CHUNK - 1, "past_action_window_size": 0}
    if framework == "QwenOFT":
        return {**common, "action_model_type": "MLP"}
    transformer = {
        "num_layers": 2,
        "output_dim": WIDTH,
        "dropout": 0.2,
        "final_dropout": True,
        "interleave_self_attention": True,
        "norm_type": "ada_norm",
        "positional_embeddings": None,
    }
    return {
        **common,
        "action_model_type": "DiT-B",
        "action_horizon": CHUNK,
        "state_dim": STATE,
        "hidden_size": WIDTH,
        "add_pos_embed": True,
        "max_seq_len": 64,
        "noise_beta_alpha": 1.5,
        "noise_beta_beta": 1.0,
        "noise_s": 0.999,
        "num_inference_timesteps": 4,
        "num_target_vision_tokens": 8,
        "num_timestep_buckets": 1000,
        "diffusion_model_cfg": transformer,
    }


def _write_backbone(directory: Path) -> None:
    from transformers import (
        Qwen2_5_VLConfig,
        Qwen2_5_VLForConditionalGeneration,
        Qwen2_5_VLProcessor,
        Qwen2TokenizerFast,
        Qwen2VLImageProcessorFast,
        Qwen2VLVideoProcessor,
    )
    from transformers.models.gpt2.tokenization_gpt2 import bytes_to_unicode

    directory.mkdir(exist_ok=True)
    known = [*bytes_to_unicode().values(), *SPECIAL]
    (directory / "vocab.json").write_text(json.dumps({token: at for at, token in enumerate(known)}))
    (directory / "merges.txt").write_text("#version: 0.2\n")
    tokenizer = Qwen2TokenizerFast(
        str(directory / "vocab.json"),
        str(directory / "merges.txt"),
        additional_special_tokens=list(SPECIAL[1:]),
    )
    Qwen2_5_VLProcessor(
        image_processor=Qwen2VLImageProcessorFast(),
        tokenizer=tokenizer,
        video_processor=Qwen2VLVideoProcessor(),
        chat_template=TEMPLATE,
    ).save_pretrained(directory)
    text = {
        "vocab_size": 512,
        "hidden_size": WIDTH,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "rope_scaling": {"type": "mrope", "mrope_section": [2, 3, 3]},
    }
    vision = {
        "depth": 1,
        "hidden_size": 32,
        "intermediate_size": 64,
        "num_heads": 2,
        "out_hidden_size": WIDTH,
        "fullatt_block_indexes": [0],
    }
    ids = {
        f"{name}_token_id": known.index(f"<|{token}|>")
        for name, token in (
            ("image", "image_pad"),
            ("video", "video_pad"),
            ("vision_start", "vision_start"),
            ("vision_end", "vision_end"),
        )
    }
    torch.manual_seed(0)
    config = Qwen2_5_VLConfig(text_config=text, vision_config=vision, hidden_size=WIDTH, **ids)
    Qwen2_5_VLForConditionalGeneration(config).save_pretrained(directory)


def starvla_block(run: Path, framework: str, precision: str = "bf16") -> dict[str, Any]:
    """`actor.model` of RLinf's libero_spatial_grpo_starvla with its framework or another, and a critic."""
    return {
        "model_type": "starvla",
        "model_path": str(run),
        "precision": precision,
        "action_dim": DIM,
        "num_action_chunks": CHUNK,
        "is_lora": False,
        "policy_setup": "libero",
        "unnorm_key": "franka",
        "action_stats_source": "minmax",
        "add_value_head": True,
        "starvla": {"framework_name": framework, "enable_state_input": framework != "QwenOFT"},
    }
