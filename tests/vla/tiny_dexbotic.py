"""RLinf's pi0 over Dexbotic's own classes, with few layers, narrow MLPs and random weights.

Every size comes from the checkpoint's configuration, so nothing of Dexbotic is changed.
"""

import json
from pathlib import Path
from typing import Any

from benchmarks.gpu.openpi_files import write_tokenizer
from tests.vla.sources import on_path

on_path("dexbotic")
GEMMA = {
    "model_type": "gemma",
    "vocab_size": 512,
    "intermediate_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "num_key_value_heads": 1,
    "head_dim": 16,
}
SIGLIP = {
    "model_type": "siglip_vision_model",
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "image_size": 224,
    "patch_size": 14,
}
DIM = 32


def write_checkpoint(directory: Path) -> None:
    """Configuration, tokenizer, image processor and statistics; no weights: they stay random."""
    from dexbotic.model.pi0.pi0_arch import Pi0Config
    from safetensors.torch import save_file
    from transformers import GemmaTokenizer, SiglipImageProcessor

    write_tokenizer(directory)
    vocabulary = directory / "big_vision" / "paligemma_tokenizer.model"
    GemmaTokenizer(str(vocabulary), model_max_length=48).save_pretrained(directory)
    SiglipImageProcessor(size={"height": 224, "width": 224}).save_pretrained(directory)
    config = Pi0Config(
        llm_config={**GEMMA, "hidden_size": 64},
        action_config={**GEMMA, "hidden_size": 32},
        vision_config=SIGLIP,
        processor_config=str(directory),
        mm_projector_type="linear",
        action_dim=DIM,
        chunk_size=50,
    )
    config.save_pretrained(directory)
    statistics = {"mean": [0.0] * DIM, "std": [1.0] * DIM, "min": [-1.0] * DIM, "max": [1.0] * DIM}
    (directory / "norm_stats.json").write_text(
        json.dumps({"norm_stats": {"state": statistics, "action": statistics}})
    )
    save_file({}, directory / "model.safetensors")


def dexbotic_block(checkpoint: Path) -> dict[str, Any]:
    """`actor.model` of RLinf's libero_object_ppo_dexbotic_pi0."""
    return {
        "model_type": "dexbotic_pi",
        "model_path": str(checkpoint),
        "precision": "bf16",
        "num_action_chunks": 5,
        "num_steps": 4,
        "action_dim": 7,
        "is_lora": False,
        "use_proprio": True,
        "add_value_head": True,
        "safe_get_logprob": False,
        "dexbotic": {
            "num_images_in_input": 2,
            "noise_level": 0.5,
            "action_chunk": 5,
            "num_steps": 4,
            "train_expert_only": True,
            "action_env_dim": 7,
            "noise_method": "flow_sde",
            "add_value_head": True,
            "detach_critic_input": True,
        },
    }
