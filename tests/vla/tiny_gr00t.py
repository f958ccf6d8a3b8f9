"""RLinf's GR00T N1.5 over NVIDIA's whole model, with few layers, narrow MLPs and random weights.

Backbone, tokenizer, image processor, data transforms and action head are NVIDIA's. What RLinf hard-codes
stays as it is: its critic sees 2048 features of the backbone and 1536 of the state.
"""

import json
import os
import tempfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.vla.imports import change, stand_in
from tests.vla.sources import on_path

VOCABULARY, FEATURES, WIDTH, NARROW = 512, 2048, 1536, 32
STATES = {"x": 1, "y": 1, "z": 1, "roll": 1, "pitch": 1, "yaw": 1, "gripper": 2}
ACTIONS = dict.fromkeys(STATES, 1)
EMBODIMENT = "libero_franka"
on_path("isaac-gr00t")
os.environ.setdefault("NO_ALBUMENTATIONS_UPDATE", "1")  # it asks the package index for news when imported


@change("gr00t.model.backbone.eagle_backbone")
def _tiny_backbone(module: Any) -> None:
    stock = module.AutoConfig
    # A vision model that N1.5 does not use, whose file asks for a GPU and for its packages.
    stand_in("transformers_modules.eagle2_hg_model.radio_model", RADIOConfig=object, RADIOModel=object)

    def from_pretrained(*args: Any, **kwargs: Any) -> Any:
        config = stock.from_pretrained(*args, **kwargs)
        heads = {"num_attention_heads": 2, "intermediate_size": NARROW}
        language = {"num_key_value_heads": 1, "head_dim": 16, "num_hidden_layers": 2}
        config.text_config.update({**heads, **language, "vocab_size": VOCABULARY})
        config.vision_config.update({**heads, "hidden_size": NARROW, "num_hidden_layers": 1})
        config._attn_implementation = config.text_config._attn_implementation = "eager"
        # RLinf wraps embedding and head apart, which FSDP2 refuses for one tied parameter.
        config.tie_word_embeddings = config.text_config.tie_word_embeddings = False
        return config

    module.AutoConfig = SimpleNamespace(from_pretrained=from_pretrained)


@change("transformers.models.siglip.modeling_siglip")
def _no_flash_attention(module: Any) -> None:
    """NVIDIA's backbone asks for a package that needs a GPU."""
    stock = module.SiglipVisionModel.__init__

    def __init__(self: Any, config: Any) -> None:
        if config._attn_implementation == "flash_attention_2":
            config._attn_implementation = "eager"
        stock(self, config)

    module.SiglipVisionModel.__init__ = __init__


@change("transformers.dynamic_module_utils")
def _no_files_in_the_home_folder(module: Any) -> None:
    """The backbone's files are run from copies of them; not all packages that they name are used."""
    module.check_imports = module.get_relative_imports
    module.HF_MODULES_CACHE = str(Path(tempfile.gettempdir()) / f"rlinf-async-vla-{os.getuid()}" / "modules")


@change("transformers.models.qwen3.modeling_qwen3")
def _folded_vocabulary(module: Any) -> None:
    """The tokenizer is the real one, of 151,680 tokens; rows of the embedding are shared by them."""
    stock = module.Qwen3Model.__init__

    def __init__(self: Any, config: Any) -> None:
        stock(self, config)
        self.embed_tokens.register_forward_pre_hook(_fold)

    module.Qwen3Model.__init__ = __init__


def _fold(embedding: Any, args: tuple[Any]) -> tuple[Any]:
    return (args[0] % embedding.num_embeddings,)


@change("gr00t.model.action_head.cross_attention_dit")
def _narrow_feed_forward(module: Any) -> None:
    stock = module.FeedForward
    module.FeedForward = lambda *args, **kwargs: stock(*args, **{**kwargs, "inner_dim": NARROW})


@change("gr00t.data.embodiment_tags")
def _tags_of_rlinf(module: Any) -> None:
    """As RLinf patches it, too late where `write_checkpoint` has imported the rest in the same process."""
    from rlinf.models.embodiment.gr00t import embodiment_tags

    module.EmbodimentTag = embodiment_tags.EmbodimentTag
    module.EMBODIMENT_TAG_MAPPING = embodiment_tags.EMBODIMENT_TAG_MAPPING


@change("rlinf.models.embodiment.gr00t.embodiment_tags")
def _one_embodiment(module: Any) -> None:
    """Each has weights of its own, 7 million here; one is enough."""
    module.EMBODIMENT_TAG_MAPPING[EMBODIMENT] = 0


def write_checkpoint(directory: Path, side: int = 256) -> None:
    """Configuration, random weights without the critic's, and statistics for pictures of `side` x `side`."""
    import torch
    from gr00t.model.gr00t_n1 import GR00T_N1_5, GR00T_N1_5_Config

    config = GR00T_N1_5_Config(
        backbone_cfg={"select_layer": 1, "project_to_dim": None},
        action_head_cfg=_head(),
        action_horizon=16,
        action_dim=32,
        compute_dtype="bfloat16",
    )
    torch.manual_seed(0)
    model = GR00T_N1_5(config, str(directory)).to(torch.bfloat16)
    model.save_pretrained(directory)
    file = directory / "experiment_cfg" / "metadata.json"
    file.parent.mkdir(exist_ok=True)
    file.write_text(json.dumps({EMBODIMENT: _metadata(side)}))


def _head() -> dict[str, Any]:
    common = {"dropout": 0.2, "final_dropout": True, "positional_embeddings": None}
    transformer = {
        **common,
        "num_attention_heads": 2,
        "attention_head_dim": WIDTH // 2,
        "output_dim": NARROW,
        "num_layers": 2,
        "cross_attention_dim": FEATURES,
        "norm_type": "ada_norm",
        "interleave_self_attention": True,
    }
    attention = {**common, "num_attention_heads": 2, "attention_head_dim": FEATURES // 2, "num_layers": 1}
    return {
        "action_dim": 32,
        "action_horizon": 16,
        "add_pos_embed": True,
        "backbone_embedding_dim": FEATURES,
        "diffusion_model_cfg": transformer,
        "hidden_size": NARROW,
        "input_embedding_dim": WIDTH,
        "max_action_dim": 32,
        "max_num_embodiments": 1,
        "max_seq_len": 64,
        "max_state_dim": 64,
        "model_dtype": "bfloat16",
        "noise_beta_alpha": 1.5,
        "noise_beta_beta": 1.0,
        "noise_s": 0.999,
        "num_inference_timesteps": 4,
        "num_target_vision_tokens": 8,
        "num_timestep_buckets": 1000,
        "tune_diffusion_model": True,
        "tune_projector": True,
        "use_vlln": True,
        "vl_self_attention_cfg": attention,
    }


def _metadata(side: int) -> dict[str, Any]:
    def statistics(size: int) -> dict[str, list[float]]:
        values = {"max": 1.0, "min": -1.0, "mean": 0.0, "std": 1.0, "q01": -1.0, "q99": 1.0}
        return {name: [value] * size for name, value in values.items()}

    def modality(size: int) -> dict[str, Any]:
        return {"absolute": True, "rotation_type": None, "shape": [size], "continuous": True}

    sizes = {"state": STATES, "action": ACTIONS}
    camera = {"resolution": [side, side], "channels": 3, "fps": 10}
    return {
        "embodiment_tag": EMBODIMENT,
        "statistics": {
            part: {name: statistics(size) for name, size in of.items()} for part, of in sizes.items()
        },
        "modalities": {
            "video": dict.fromkeys(("image", "wrist_image"), camera),
            **{part: {name: modality(size) for name, size in of.items()} for part, of in sizes.items()},
        },
    }


def gr00t_block(checkpoint: Path) -> dict[str, Any]:
    """RLinf's own `model/gr00t.yaml`, which its LIBERO configurations of GR00T have for `actor.model`."""
    from omegaconf import OmegaConf

    from tests.checkouts import EMBODIED, configs

    file = configs("rlinf-v0.3") / EMBODIED / "config" / "model" / "gr00t.yaml"
    stock = OmegaConf.load(file)
    return OmegaConf.to_container(OmegaConf.merge(stock, {"model_path": str(checkpoint)}))
