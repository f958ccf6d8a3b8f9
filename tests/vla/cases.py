"""RLinf's model classes that tests build, tiny and random, and what each needs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from omegaconf import DictConfig, OmegaConf

from benchmarks.gpu.openpi_files import write_tokenizer
from tests.vla import (
    sources,
    tiny_cnn,
    tiny_dexbotic,
    tiny_gr00t,
    tiny_openpi,
    tiny_openvla_oft,
    tiny_starvla,
)

SAMPLING = {
    "do_sample": True,
    "temperature_train": 1.6,
    "temperature_eval": 1.6,
    "top_k": -1,
    "top_p": 1.0,
    "max_new_tokens": 56,
}
"""As RLinf's OpenVLA-OFT configurations have it; other models do not read it."""


def config(block: dict[str, Any], **algorithm: Any) -> DictConfig:
    """The parts of a run's configuration that inference and the learner read."""
    return OmegaConf.create(
        {
            "actor": {"model": block, "seed": 3},
            "rollout": {"model": block, "sampling_params": SAMPLING},
            "algorithm": {"loss_type": "actor_critic", "logprob_type": "chunk_level", **algorithm},
        }
    )


@dataclass(frozen=True)
class Case:
    """A model class, what it needs, and what is expected of it."""

    name: str
    package: str
    """Without it this is not the environment that the class runs in."""
    tree: str | None
    configure: Callable[[Path], DictConfig]
    """Write what it is built of into a folder, and return its configuration."""
    values: bool = True
    """Whether it has a critic."""
    comes_back: bool = True
    """Whether the critic, asked again, gives the values that were stored."""
    rounding: float = 0.1
    """How far a log-probability may be off in a batch of another size."""
    pictures: dict[str, str] = field(default_factory=dict)
    """Inputs that are pictures of the observation, and therefore do not travel back."""
    side: int = 256
    steps: int | None = None
    """Denoise steps, of which one is scored, or the mean; None where the action is."""
    joint: bool = False
    answer_bytes: int | None = None
    """What one decision of LIBERO sends back to its environment, as benchmarks/micro/README.md says; it does
    not depend on the size of the model. None where the tiny model's inputs are smaller than a real one's."""

    def __str__(self) -> str:
        return self.name

    @property
    def missing(self) -> str | None:
        """Why it cannot be built here, in words."""
        return sources.why_missing(self.package, self.tree)

    @contextmanager
    def environment(self, place: Path) -> Iterator[None]:
        """The variables that its package reads while it is built and used."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("OPENPI_DATA_HOME", str(place / "openpi"))
            patch.setenv("ROBOT_PLATFORM", "LIBERO")
            yield


def pi0(block: Callable[..., Any], **openpi: Any) -> Callable[[Path], DictConfig]:
    def configure(place: Path) -> DictConfig:
        write_tokenizer(place / "openpi")
        tiny_openpi.write_checkpoint(place / "checkpoint")
        return config(block(place / "checkpoint", **openpi))

    return configure


def gr00t(place: Path) -> DictConfig:
    tiny_gr00t.write_checkpoint(place)
    return config(tiny_gr00t.gr00t_block(place))


def dexbotic(place: Path) -> DictConfig:
    tiny_dexbotic.write_checkpoint(place)
    return config(tiny_dexbotic.dexbotic_block(place))


def starvla(framework: str, precision: str, prompt: int | None = None) -> Callable[[Path], DictConfig]:
    def configure(place: Path) -> DictConfig:
        tiny_starvla.write_checkpoint(place, framework, prompt=prompt)
        return config(tiny_starvla.starvla_block(place, framework, precision), logprob_type="token_level")

    return configure


def openvla_oft(place: Path) -> DictConfig:
    tiny_openvla_oft.write_checkpoint(place)
    return config(tiny_openvla_oft.openvla_oft_block(place), logprob_type="token_level")


def cnn(place: Path) -> DictConfig:
    tiny_cnn.write_checkpoint(place)
    return config(tiny_cnn.cnn_block(place))


BOTH = {"observation/image": "main_images", "observation/wrist_image": "wrist_images"}
JOINT = {"noise_method": "flow_noise", "joint_logprob": True}
CASES = [
    Case(
        "pi0",
        "jax",
        "openpi",
        pi0(tiny_openpi.pi0_block),
        comes_back=False,
        pictures=BOTH,
        steps=4,
        answer_bytes=39_600,
    ),
    Case(
        "pi0 joint", "jax", "openpi", pi0(tiny_openpi.pi0_block, **JOINT), pictures=BOTH, steps=4, joint=True
    ),
    Case("pi0.5", "jax", "openpi", pi0(tiny_openpi.pi05_block), pictures=BOTH, steps=5, answer_bytes=11_536),
    Case("GR00T N1.5", "pytorch3d", "isaac-gr00t", gr00t, steps=4, answer_bytes=617_038),
    Case(
        "Dexbotic pi0",
        "pytorch3d",
        "dexbotic",
        dexbotic,
        comes_back=False,
        rounding=1e-3,
        pictures=BOTH,
        steps=4,
    ),
    Case("StarVLA QwenOFT", "qwen_vl_utils", "starvla", starvla("QwenOFT", "bf16")),
    Case(
        "StarVLA QwenGR00T",
        "qwen_vl_utils",
        "starvla",
        starvla("QwenGR00T", "fp32", tiny_starvla.PROMPT),
        rounding=1e-3,
        steps=4,
    ),
    Case("OpenVLA-OFT", "timm", "openvla-oft", openvla_oft, values=False, answer_bytes=303_332),
    Case(
        "CNN",
        "torchvision",
        None,
        cnn,
        rounding=1e-4,
        pictures={"main_images": "main_images"},
        side=tiny_cnn.SIDE,
    ),
]
