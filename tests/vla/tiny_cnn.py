"""RLinf's CNN policy as genesis_cubepick_ppo_cnn has it, for LIBERO's state and small pictures."""

from pathlib import Path
from typing import Any

import torch

from tests.vla import imports  # noqa: F401  (torchvision beside a torch without CUDA)

SIDE = 64


def write_checkpoint(directory: Path) -> None:
    """Random weights where RLinf loads a pretrained encoder from."""
    from rlinf.models.embodiment.modules.resnet_utils import ResNet10

    torch.manual_seed(0)
    directory.mkdir(parents=True, exist_ok=True)
    torch.save(ResNet10(pre_pooling=True).state_dict(), directory / "resnet10_pretrained.pt")


def cnn_block(checkpoint: Path) -> dict[str, Any]:
    return {
        "model_type": "cnn_policy",
        "model_path": str(checkpoint),
        "precision": "32",
        "image_size": [3, SIDE, SIDE],
        "state_dim": 8,
        "action_dim": 7,
        "num_action_chunks": 1,
        "hidden_dim": 256,
        "add_value_head": True,
        "add_q_head": False,
        "is_lora": False,
        "backbone": "resnet",
        "encoder_config": {"ckpt_name": "resnet10_pretrained.pt"},
    }
