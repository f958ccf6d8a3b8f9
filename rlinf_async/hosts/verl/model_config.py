"""Stand-ins for what veRL reads from a Hugging Face model: about the policy, and on its module."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rlinf_async.hosts.workers.adapters import Adapters

MODEL_TYPE = "vla_policy"
"""Under which `PolicyEngine` is found in veRL's registry of engines."""


@dataclass(kw_only=True)
class PolicyModelConfig:
    """The config from which a learner rank builds its policy, with the names that veRL's engine looks for.

    Not frozen: veRL's training worker writes `model_type`.
    """

    section: dict[str, Any]
    """`vla.model` as plain data: what a builder of the group `rlinf_async.models` gets."""
    ckpt_path: str | None = None
    """A state dict to start from: `vla.ckpt_path`."""
    value_lr: float | None = None
    """The learning rate of `value_head`: veRL's `critic.optim.lr`. None: that of the policy."""
    adapters: Adapters | None = None
    """The policy's own, of which veRL's engine is not told."""
    seed: int = 0
    """Fresh weights are drawn by it, on every rank the same."""

    model_type: str = MODEL_TYPE
    use_remove_padding: bool = False
    use_fused_kernels: bool = False
    lora: dict[str, Any] = field(default_factory=dict)
    lora_rank: int = 0
    enable_gradient_checkpointing: bool = False
    enable_activation_offload: bool = False
    trust_remote_code: bool = False

    def get(self, name: str, default: object = None) -> Any:
        return getattr(self, name, default)

    def get_processor(self) -> None:
        """Return None: a policy has no tokenizer to be saved with it."""
        return


class PolicyConfig:
    """The fields that veRL's wrapping and checkpoints read as `module.config`."""

    # True keeps veRL from wrapping every embedding by itself: a policy may share one, or look into it.
    tie_word_embeddings = True
    name_or_path = ""

    def __init__(self, section: dict[str, Any]) -> None:
        self._section = section

    def save_pretrained(self, directory: str) -> None:
        """Write the section that the policy was built from, where a model's configuration would stand."""
        Path(directory, "config.json").write_text(json.dumps(self._section, indent=2, default=str) + "\n")


def dress(policy: Any, section: dict[str, Any]) -> Any:
    """Give `policy` the two attributes that veRL's engine asks for, unless it has them.

    Raises:
        ValueError: its own `config` is not one that veRL can read.
    """
    if not hasattr(policy, "config"):
        policy.config = PolicyConfig(section)
    elif not (hasattr(policy.config, "save_pretrained") and hasattr(policy.config, "tie_word_embeddings")):
        raise ValueError(
            f"vla.model.model_type={section.get('model_type')!r}: {type(policy).__name__}.config is a "
            f"{type(policy.config).__name__}, but veRL reads an attribute of that name as the configuration "
            "of a Hugging Face model; give it another name, or `save_pretrained` and `tie_word_embeddings`"
        )
    if not hasattr(policy, "can_generate"):
        policy.can_generate = lambda: False
    return policy
