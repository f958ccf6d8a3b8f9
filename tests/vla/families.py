"""RLinf's own configurations of real models, and what makes runs of them small, without a GPU."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.gpu.openpi_files import write_tokenizer
from tests.vla import sources, tiny_gr00t, tiny_openpi, tiny_openvla_oft

SIDE = 64
SMALL = (
    "actor.fsdp_config.strategy=fsdp2",
    *(
        f"++env.{part}.{key}"
        for part in ("train", "eval")
        for key in (
            "total_num_envs=2",
            "specific_reset_id=0",
            "video_cfg.save_video=false",
            f"init_params.camera_heights={SIDE}",
            f"init_params.camera_widths={SIDE}",
        )
    ),
    "env.train.rollout_epoch=1",
    "actor.micro_batch_size=2",
    "actor.global_batch_size=4",
)
"""Two environments that begin where the first always does, and pictures that are drawn quickly."""
TINY_OFT = {
    "hidden_size": tiny_openvla_oft.WIDTH,
    "attn_implementation": "eager",
    "is_lora": False,
    "num_images_in_input": 1,
}
TINY_PI0 = ("+actor.model.openpi.action_expert_variant=tiny_expert",)


def _decisions(chunk: int) -> tuple[str, ...]:
    """Two decisions of `chunk` actions to an episode."""
    names = ("max_episode_steps", "max_steps_per_rollout_epoch")
    return tuple(f"env.{part}.{name}={2 * chunk}" for part in ("train", "eval") for name in names)


def _openvla_oft(place: Path) -> None:
    tiny_openvla_oft.write_checkpoint(place / "checkpoint")


def _openpi(place: Path) -> None:
    write_tokenizer(place / "openpi")
    tiny_openpi.write_checkpoint(place / "checkpoint")


def _gr00t(place: Path) -> None:
    tiny_gr00t.write_checkpoint(place / "checkpoint", side=SIDE)


@dataclass(frozen=True)
class Family:
    """A model, the configuration in which RLinf trains it on LIBERO, and what a tiny one of it needs."""

    name: str
    config: str
    package: str
    """Without it this is not the environment that the model runs in."""
    tree: str
    write: Callable[[Path], None]
    """Write what stands in for published weights, tokenizers and statistics into a folder."""
    tiny: tuple[str, ...]
    signal: bool = True
    """Whether a batch without a success has gradients: those of the critic."""

    def __str__(self) -> str:
        return self.name

    @property
    def missing(self) -> str | None:
        """Why it cannot run here, in words."""
        return sources.why_missing(self.package, self.tree)

    def overrides(self, place: Path) -> tuple[str, ...]:
        """What to change in `config` when `write` has filled the folder `place`."""
        weights = tuple(f"{part}.model.model_path={place / 'checkpoint'}" for part in ("actor", "rollout"))
        return (*SMALL, *weights, *self.tiny)

    @staticmethod
    def environment(place: Path) -> dict[str, str]:
        """Variables of every process that builds the model."""
        return {"OPENPI_DATA_HOME": str(place / "openpi")}


FAMILIES = (
    Family(
        "pi0",
        "libero_object_ppo_openpi",
        "jax",
        "openpi",
        _openpi,
        (*TINY_PI0, "+actor.model.openpi.paligemma_variant=tiny_vlm", *_decisions(5)),
    ),
    Family(
        "pi0.5",
        "libero_object_ppo_openpi_pi05",
        "jax",
        "openpi",
        _openpi,
        (*TINY_PI0, "+actor.model.openpi.paligemma_variant=tiny_vlm_2048", *_decisions(5)),
    ),
    Family(
        "openvla-oft",
        "libero_object_grpo_openvlaoft",
        "timm",
        "openvla-oft",
        _openvla_oft,
        (
            *(f"++actor.model.{key}={value}" for key, value in TINY_OFT.items()),
            "algorithm.group_size=2",
            "algorithm.filter_rewards=false",  # or two failures would leave nothing to train on
            *_decisions(8),
        ),
        signal=False,
    ),
    Family("gr00t", "libero_object_ppo_gr00t", "pytorch3d", "isaac-gr00t", _gr00t, _decisions(5)),
)
ADAPTERS = ("++actor.model.is_lora=true", "++actor.model.lora_rank=4")
FSDP1 = "actor.fsdp_config.strategy=fsdp"
"""For adapters of pi0: under FSDP2 they end RLinf's own backward pass, which needs weights that are freed."""
LORA = tuple(
    replace(
        family,
        name=f"{family.name} with LoRA",
        tiny=(*family.tiny, *ADAPTERS, *((FSDP1,) if family.name == "pi0" else ())),
    )
    for family in FAMILIES
)
"""The same with RLinf's adapters."""
