"""RLinf's OpenVLA-OFT over the published classes, with two narrow layers and random weights.

The packages' own `__init__` files import TensorFlow and a data pipeline, and are not run.
"""

import json
from pathlib import Path
from typing import Any

from tests.vla.imports import change, stand_in
from tests.vla.sources import on_path

WIDTH, PAD = 64, 32000
INSTRUCTION = "pick up the ketchup and place it in the basket"

PLACE = on_path("openvla-oft")
if PLACE is not None:
    names = ("prismatic", "prismatic.vla", "prismatic.training", "prismatic.extern", "prismatic.extern.hf")
    for name in names:
        stand_in(name, path=PLACE / name.replace(".", "/"))


@change("prismatic.extern.hf.configuration_prismatic")
def _one_small_backbone(module: Any) -> None:
    module.VISION_BACKBONE_TO_TIMM_ID["siglip-vit-so400m"] = ["vit_tiny_patch16_224"]


@change("timm")
def _two_narrow_blocks(module: Any) -> None:
    stock = module.create_model

    def create_model(name: str, *args: Any, **kwargs: Any) -> Any:
        narrow = {"depth": 2, "embed_dim": 32, "num_heads": 2} if name == "vit_tiny_patch16_224" else {}
        return stock(name, *args, **{**kwargs, **narrow})

    module.create_model = create_model


def write_checkpoint(directory: Path) -> None:
    """Configuration, a tokenizer of words with Llama's special ids, statistics and random weights."""
    import torch
    from prismatic.extern.hf.configuration_prismatic import OpenVLAConfig
    from prismatic.extern.hf.modeling_prismatic import OpenVLAForActionPrediction
    from prismatic.extern.hf.processing_prismatic import PrismaticImageProcessor

    _write_tokenizer(directory)
    bounds = {"q01": [-1.0] * 7, "q99": [1.0] * 7, "min": [-1.0] * 7, "max": [1.0] * 7}
    statistics = {"libero_object_no_noops": {"action": {**bounds, "mask": [True] * 6 + [False]}}}
    text = {
        "vocab_size": 32064,
        "hidden_size": WIDTH,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 4,
        "pad_token_id": PAD,
        "max_position_embeddings": 2048,
        "torch_dtype": "bfloat16",
    }
    config = OpenVLAConfig(
        norm_stats=statistics,
        vision_backbone_id="siglip-vit-so400m",
        llm_backbone_id="llama2-7b-pure",
        arch_specifier="no-align+gelu-mlp",
        image_resize_strategy="resize-naive",
        text_config=text,
    )
    config.save_pretrained(directory)
    half = [(0.5, 0.5, 0.5)]
    PrismaticImageProcessor(
        image_resize_strategy="resize-naive",
        input_sizes=[(3, 224, 224)],
        interpolations=["bicubic"],
        means=half,
        stds=half,
    ).save_pretrained(directory)
    torch.manual_seed(0)
    OpenVLAForActionPrediction(config).to(torch.bfloat16).save_pretrained(directory)
    (directory / "dataset_statistics.json").write_text(json.dumps(statistics))


def _write_tokenizer(directory: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = f"In: What action should the robot take to {INSTRUCTION}? Out:".split()
    special = {"<unk>": 0, "<s>": 1, "</s>": 2, "<PAD>": PAD, " ": 29871}
    known = special | {word: 300 + index for index, word in enumerate(dict.fromkeys(words))}
    tokenizer = Tokenizer(models.WordLevel(known, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Split(" ", "isolated")
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 1)])
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        bos_token="<s>",
        eos_token="</s>",
        unk_token="<unk>",
        pad_token="<PAD>",
        padding_side="left",
    ).save_pretrained(directory)


def openvla_oft_block(checkpoint: Path) -> dict[str, Any]:
    """`actor.model` of RLinf's libero_object_grpo_openvlaoft, narrow and without flash attention."""
    return {
        "model_type": "openvla_oft",
        "implement_version": "rlinf",
        "model_path": str(checkpoint),
        "precision": "bf16",
        "value_type": "action_level",
        "action_dim": 7,
        "num_action_chunks": 8,
        "use_proprio": False,
        "use_film": False,
        "unnorm_key": "libero_object_no_noops",
        "center_crop": True,
        "max_prompt_length": 128,
        "vocab_size": 32000,
        "hidden_size": WIDTH,
        "add_value_head": False,
        "image_size": [224, 224],
        "is_lora": False,
        "num_images_in_input": 1,
        "attn_implementation": "eager",
        "low_cpu_mem_usage": True,
        "trust_remote_code": True,
        "policy_setup": "widowx_bridge",
    }
