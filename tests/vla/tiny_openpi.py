"""RLinf's pi0 and pi0.5 over openpi's own classes, with few layers, narrow MLPs and random weights.

What RLinf and openpi hard-code stays as it is: 1024 features of the action expert for the critic, 2048
of the VLM for the critic of pi0.5.
"""

from pathlib import Path
from typing import Any

from benchmarks.gpu import openpi_files
from tests.vla.imports import change, stand_in
from tests.vla.sources import on_path

VOCABULARY = 512
TINY = {"depth": 2, "mlp_dim": 16, "num_heads": 2, "num_kv_heads": 1, "head_dim": 16}
WIDTHS = {"tiny_vlm": 64, "tiny_vlm_2048": 2048, "tiny_expert": 1024}
PRESENT = on_path("openpi", "src") is not None

if PRESENT:
    # openpi's data loader imports it, which nothing here calls.
    for name in ("lerobot", "lerobot.common", "lerobot.common.datasets"):
        stand_in(name)
    stand_in("lerobot.common.datasets.lerobot_dataset")
    for name in ("lerobot.datasets", "lerobot.datasets.lerobot_dataset"):
        stand_in(name)


@change("openpi.models.gemma")
def _tiny_variants(module: Any) -> None:
    stock = module.get_config

    def get_config(variant: str) -> Any:
        return module.Config(width=WIDTHS[variant], **TINY) if variant in WIDTHS else stock(variant)

    module.get_config = get_config


@change("openpi.models_pytorch.gemma_pytorch")
def _tiny_vocabulary_and_vision(module: Any) -> None:
    paligemma, gemma = module.PaliGemmaForConditionalGeneration, module.GemmaForCausalLM

    def tiny_paligemma(config: Any) -> Any:
        config._vocab_size = config.text_config.vocab_size = VOCABULARY
        config.image_token_index = VOCABULARY - 1
        # RLinf wraps embedding and head apart, which FSDP2 refuses for one tied parameter.
        config.tie_word_embeddings = config.text_config.tie_word_embeddings = False
        config.projection_dim = config.vision_config.projection_dim = config.text_config.hidden_size
        vision = {
            "hidden_size": 32,
            "intermediate_size": 64,
            "num_hidden_layers": 1,
            "num_attention_heads": 2,
        }
        config.vision_config.__dict__.update(vision)
        return paligemma(config=config)

    def tiny_gemma(config: Any) -> Any:
        config.vocab_size = VOCABULARY
        return gemma(config=config)

    module.PaliGemmaForConditionalGeneration, module.GemmaForCausalLM = tiny_paligemma, tiny_gemma


def write_checkpoint(directory: Path) -> None:
    """What RLinf reads besides the configuration: statistics, and no weights: they stay random."""
    openpi_files.write_checkpoint(directory, data="physical-intelligence/libero", state_dim=8, action_dim=7)


def pi0_block(checkpoint: Path, **openpi: Any) -> dict[str, Any]:
    """`actor.model` of RLinf's libero_object_ppo_openpi, with the tiny variants."""
    return {
        "model_type": "openpi",
        "model_path": str(checkpoint),
        "precision": None,
        "num_action_chunks": 5,
        "action_dim": 7,
        "is_lora": False,
        "add_value_head": True,
        "openpi": {
            "config_name": "pi0_libero",
            "num_images_in_input": 2,
            "noise_level": 0.5,
            "action_chunk": 5,
            "num_steps": 4,
            "train_expert_only": True,
            "action_env_dim": 7,
            "noise_method": "flow_sde",
            "add_value_head": True,
            "detach_critic_input": True,
            "use_dsrl": False,
            "paligemma_variant": "tiny_vlm",
            "action_expert_variant": "tiny_expert",
            **openpi,
        },
    }


def pi05_block(checkpoint: Path) -> dict[str, Any]:
    """`actor.model` of RLinf's libero_object_ppo_openpi_pi05, with the tiny variants."""
    own = {"config_name": "pi05_libero", "noise_level": 0.3, "num_steps": 5, "detach_critic_input": None}
    critic = {"value_after_vlm": True, "value_vlm_mode": "mean_token"}
    return pi0_block(checkpoint, **own, **critic, paligemma_variant="tiny_vlm_2048")
