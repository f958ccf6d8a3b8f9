"""RLinf's example configs, each composed and asked what `full` does with it: a line of JSON per config.

    PYTHONPATH=CHECKOUT:. python docs/rlinf_examples.py CHECKOUT

RLinf itself is imported from that checkout: its own placement and its own `validate_cfg` are asked, too.
"""

from __future__ import annotations

import json
import os
import re
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import quick_reading  # noqa: F401 - first
from hydra import compose, initialize_config_dir
from hydra.errors import HydraException
from omegaconf import DictConfig, OmegaConf
from stock_rlinf import validate, world_sizes

from rlinf_async.compose import VERSION_BASE
from rlinf_async.core.config_keys import dotted
from rlinf_async.hosts.host import AssumedCluster
from rlinf_async.hosts.rlinf.checkout import on_policy_examples
from rlinf_async.hosts.rlinf.explain import explain

GPUS = 8
"""Per node, for every config: what `explain --gpus 8` says."""

ALGORITHMS = {
    "actor_critic": "PPO",
    "actor": "GRPO",
    "decoupled_actor_critic": "asynchronous PPO",
    "embodied_nft": "NFT",
    "opd": "distillation",
}
"""What RLinf's on-policy losses are, in the words of the page."""

SECTIONS = ("algorithm", "runner", "rollout", "actor")


def examples(root: Path) -> Iterator[tuple[str, DictConfig]]:
    """The on-policy training configs among a checkout's examples, with `+async.mode=full`."""
    directory = root / "examples" / "embodiment" / "config"
    for name in _variables(directory):
        os.environ.setdefault(name, f"/path/to/{name}")
    os.environ["EMBODIED_PATH"] = str(directory.parent)
    # Of Hydra, about the version that RLinf's scripts ask for.
    warnings.simplefilter("ignore")
    with initialize_config_dir(str(directory), version_base=VERSION_BASE):
        for name in on_policy_examples(root):  # by the file alone, as composing takes a while
            try:
                cfg = compose(name)
            except HydraException:
                continue  # RLinf's own slip: the config names a group that is not there
            if _is_on_policy(cfg):
                OmegaConf.update(cfg, "async", {"mode": "full"}, force_add=True)
                yield name, cfg


def row(name: str, cfg: DictConfig) -> dict[str, Any]:
    """What is said of one config: by `explain`, and by RLinf itself."""
    plain: Any = OmegaConf.to_container(cfg, resolve=True)
    _fill_in_robots(cfg)
    sizes = world_sizes(cfg, gpus=GPUS)
    return {
        "name": name,
        "algorithm": ALGORITHMS[plain["algorithm"]["loss_type"]],
        "model": plain["actor"]["model"]["model_type"],
        "environment": plain["env"]["train"]["env_type"],
        "placement": _placement(plain["cluster"]["component_placement"]),
        "keys": sorted(key for key in dotted({name: plain[name] for name in SECTIONS})),
        **_explained(cfg),
        "sizes": {part: sizes[part] for part in ("env", "rollout", "actor")},
        **_stock(cfg),
    }


def _explained(cfg: DictConfig) -> dict[str, Any]:
    try:
        facts = explain(cfg, AssumedCluster(gpus=GPUS))
    except ValueError as error:
        return {"refusal": str(error), "facts": None}
    return {"refusal": None, "facts": facts}


def _stock(cfg: DictConfig) -> dict[str, Any]:
    """RLinf's own verdict on the config without us, and what it has counted."""
    try:
        checked = validate(cfg, gpus=GPUS)
    except (AssertionError, ValueError, NotImplementedError) as error:
        return {"stock": str(error), "epochs": None}
    train = checked.env.train
    return {"stock": None, "epochs": train.rollout_epoch * train.total_num_envs}


def _is_on_policy(cfg: DictConfig) -> bool:
    trains = cfg.runner.task_type == "embodied" and not cfg.runner.get("only_eval", False)
    return trains and OmegaConf.select(cfg, "algorithm.loss_type") in ALGORITHMS


def _variables(directory: Path) -> set[str]:
    """Environment variables that the configs cannot do without: paths to assets and models."""
    text = "".join(path.read_text() for path in directory.rglob("*.yaml"))
    return set(re.findall(r"\$\{oc\.env:(\w+)\}", text))


def _fill_in_robots(cfg: DictConfig) -> None:
    """An address for every robot whose owner has to fill it in."""
    for group in OmegaConf.select(cfg, "cluster.node_groups") or ():
        for robot in OmegaConf.select(group, "hardware.configs") or ():
            for key, value in robot.items():
                if isinstance(value, str) and re.search(r"_IP(_|$)", value):
                    robot[key] = "127.0.0.1"


def _placement(placed: dict[str, Any]) -> str:
    """`component_placement` on one line, components that are placed alike together."""
    parts: dict[str, list[str]] = {}
    for names, where in placed.items():
        text = f"{where['node_group']}:{where['placement']}" if isinstance(where, dict) else str(where)
        parts.setdefault(text, []).extend(name.strip() for name in str(names).split(","))
    return "; ".join(f"{', '.join(sorted(names))}: {text}" for text, names in sorted(parts.items()))


if __name__ == "__main__":
    for name, cfg in examples(Path(sys.argv[1])):
        sys.stdout.write(json.dumps(row(name, cfg)) + "\n")
